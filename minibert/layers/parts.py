"""The small parts both families are made of: LayerNorm, embeddings, the feed-forward block."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.linear_backends import activate
from minibert.quantities import Float, Hidden, Mlp

__all__ = ["Embedding", "FeedForward", "LayerNorm"]


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
