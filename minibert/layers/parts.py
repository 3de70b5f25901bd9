"""What holds the weights of a layer: attention, LayerNorm and MLP; and embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.layers.attention import Attention
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.linear_backends import activate
from minibert.quantities import Float, Hidden, Mlp

__all__ = ["Embedding", "FeedForward", "Layer", "LayerNorm"]


class LayerNorm(nn.Module):
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last axis.

    Source: Ba, Kiros and Hinton 2016, equation 4.
    """

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x with mean 0 and variance 1 over its last axis, then scaled and shifted."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Embedding(nn.Module):
    """A table with one row for each id."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of the ids."""
        return F.embedding(ids, self.weight)


class FeedForward(nn.Module):
    """mlp_out = activation(x·W_in + b_in)·W_out + b_out (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = Linear(config.d_model, config.d_mlp)
        self.down = Linear(config.d_mlp, config.d_model)
        self.activation = config.activation

    def forward(self, x: Hidden, residual: Hidden | None = None) -> Hidden:
        """mlp_out, plus the residual when one is given."""
        return self.down(self.up(x, activation=self.activation), residual=residual)

    def pre(self, x: Hidden) -> Mlp:
        """mlp_pre: what enters the activation."""
        return self.up(x)

    def post(self, pre: Mlp) -> Mlp:
        """mlp_post: what leaves the activation."""
        return activate(pre, self.activation)


class Layer(nn.Module):
    """The weights of one layer: attention, MLP and their LayerNorms, before or after each.

    Before (GPT-2):  mid = x + attn_out(LN(x)),    post = mid + mlp_out(LN(mid))
    After (BERT):    mid = LN(x + attn_out(x)),    post = LN(mid + mlp_out(mid))
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = Attention(config, layer)
        self.attention_norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.mlp = FeedForward(config)
        self.mlp_norm = LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(self, at: Any) -> Hidden:
        """resid_post of a `LayerPass` of this layer, so that hooks on a layer run."""
        return at.resid_post

    def attention_input(self, resid_pre: Hidden) -> Hidden:
        """What W_Q, W_K and W_V read."""
        return self.attention_norm(resid_pre) if self.pre_norm else resid_pre

    def after_attention(self, total: Hidden) -> Hidden:
        """resid_mid from the sum resid_pre + attn_out."""
        return total if self.pre_norm else self.attention_norm(total)

    def mlp_input(self, resid_mid: Hidden) -> Hidden:
        """What W_in reads."""
        return self.mlp_norm(resid_mid) if self.pre_norm else resid_mid

    def after_mlp(self, total: Hidden) -> Hidden:
        """resid_post from the sum resid_mid + mlp_out."""
        return total if self.pre_norm else self.mlp_norm(total)
