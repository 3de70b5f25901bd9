"""The GPT-2 family, in the order of the data: embeddings, layers with LayerNorm first, a last one.

Source: Radford et al. 2019; the layer is that of Vaswani et al. 2017 with the norm moved to the
input of each block.
"""

from collections.abc import Collection

import torch
from torch import nn

from minibert.kernels.call import AllowedKeys
from minibert.layers.attention import Attention, Record
from minibert.layers.cache import LayerCache
from minibert.layers.config import Config
from minibert.layers.parts import Embedding, FeedForward, LayerNorm
from minibert.quantities import Hidden, Int, TokenIds

__all__ = ["Gpt2Body", "PreNormLayer"]


class PreNormLayer(nn.Module):
    """resid_mid = x + attn_out(LN(x)); resid_post = resid_mid + mlp_out(LN(resid_mid))."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(
        self,
        x: Hidden,
        allowed: AllowedKeys,
        mask: torch.Tensor | None,
        record: Record | None = None,
        keep: Collection[str] = (),
        cache: LayerCache | None = None,
    ) -> Hidden:
        """resid_post of this layer."""
        mid = self.attention(self.attention_norm(x), x, allowed, mask, record, keep, cache)
        post = self.mlp(self.mlp_norm(mid), residual=mid)
        if record is not None:
            record |= {"resid_mid": mid, "resid_post": post}
        return post

    def attention_input(self, resid_pre: Hidden) -> Hidden:
        """What W_Q, W_K and W_V read."""
        return self.attention_norm(resid_pre)

    def mid(self, resid_pre: Hidden, attn_out: Hidden) -> Hidden:
        """resid_mid from its two parts."""
        return resid_pre + attn_out

    def mlp_input(self, resid_mid: Hidden) -> Hidden:
        """What W_in reads."""
        return self.mlp_norm(resid_mid)

    def post(self, resid_mid: Hidden, mlp_out: Hidden) -> Hidden:
        """resid_post from its two parts."""
        return resid_mid + mlp_out

    def after_attention(self, total: Hidden) -> Hidden:
        """resid_mid from the sum resid_pre + attn_out: the sum itself."""
        return total

    def after_mlp(self, total: Hidden) -> Hidden:
        """resid_post from the sum resid_mid + mlp_out: the sum itself."""
        return total


class Gpt2Body(nn.Module):
    """Embeddings, layers and the last LayerNorm."""

    pooler = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.d_model)
        self.position = Embedding(config.n_positions, config.d_model)
        self.groups = nn.ModuleList(PreNormLayer(config, n) for n in range(config.n_layers))
        self.final_norm = LayerNorm(config.d_model, eps=config.norm_eps)

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers in order."""
        return tuple(self.groups)

    def embed(
        self,
        ids: TokenIds,
        segments: TokenIds | None,
        positions: Int[torch.Tensor, "batch position"] | None = None,
    ) -> Hidden:
        """What enters layer 0: word + position, from 0 on unless `positions` are given.

        GPT-2 has no segments; they are not read.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)
        return self.word(ids) + self.position(positions)

    def final(self, hidden: Hidden) -> Hidden:
        """The hidden state that the task head reads: LayerNorm of the stream."""
        return self.final_norm(hidden)
