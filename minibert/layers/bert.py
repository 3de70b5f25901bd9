"""The BERT family, in the order of the data: embeddings, then layers with LayerNorm last.

One body serves bert, roberta, distilbert, electra and albert; what differs between them is in
the Config (a projection after the embeddings, shared layers, shifted positions, no segments).
Sources: Devlin et al. 2019; Liu et al. 2019 (RoBERTa); Sanh et al. 2019 (DistilBERT); Clark et al.
2020 (ELECTRA); Lan et al. 2020 (ALBERT).
"""

from collections.abc import Collection

import torch
from torch import nn

from minibert.kernels.call import AllowedKeys
from minibert.layers.attention import Attention, Record
from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.parts import Embedding, FeedForward, LayerNorm
from minibert.quantities import Hidden, Int, TokenIds

__all__ = ["BertBody", "PostNormLayer"]


class PostNormLayer(nn.Module):
    """resid_mid = LN(x + attn_out); resid_post = LN(resid_mid + mlp_out)."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.attention_norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.mlp = FeedForward(config)
        self.mlp_norm = LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(
        self,
        x: Hidden,
        allowed: AllowedKeys,
        mask: torch.Tensor | None,
        record: Record | None = None,
        keep: Collection[str] = (),
    ) -> Hidden:
        """resid_post of this layer."""
        mid = self.after_attention(self.attention(x, x, allowed, mask, record, keep))
        post = self.after_mlp(self.mlp(mid, residual=mid))
        if record is not None:
            record |= {"resid_mid": mid, "resid_post": post}
        return post

    def attention_input(self, resid_pre: Hidden) -> Hidden:
        """What W_Q, W_K and W_V read."""
        return resid_pre

    def mid(self, resid_pre: Hidden, attn_out: Hidden) -> Hidden:
        """resid_mid from its two parts."""
        return self.after_attention(resid_pre + attn_out)

    def mlp_input(self, resid_mid: Hidden) -> Hidden:
        """What W_in reads."""
        return resid_mid

    def post(self, resid_mid: Hidden, mlp_out: Hidden) -> Hidden:
        """resid_post from its two parts."""
        return self.after_mlp(resid_mid + mlp_out)

    def after_attention(self, total: Hidden) -> Hidden:
        """resid_mid from the sum resid_pre + attn_out."""
        return self.attention_norm(total)

    def after_mlp(self, total: Hidden) -> Hidden:
        """resid_post from the sum resid_mid + mlp_out."""
        return self.mlp_norm(total)


class BertBody(nn.Module):
    """Embeddings and layers; what leaves the last layer is the hidden state."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.word = Embedding(config.vocab_size, config.d_embed)
        self.position = Embedding(config.n_positions + config.position_offset, config.d_embed)
        self.segment = Embedding(config.n_segments, config.d_embed) if config.n_segments else None
        self.embed_norm = LayerNorm(config.d_embed, eps=config.norm_eps)
        projects = config.d_embed != config.d_model or config.family == "albert"
        self.embed_project = Linear(config.d_embed, config.d_model) if projects else None
        groups = config.n_layer_groups
        self.groups = nn.ModuleList(PostNormLayer(config, index) for index in range(groups))
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers in order; ALBERT names the same one several times."""
        groups = tuple(self.groups)
        share = self.config.n_layers / len(groups)
        return tuple([groups[int(layer / share)] for layer in range(self.config.n_layers)])

    def embed(self, ids: TokenIds, segments: TokenIds | None) -> Hidden:
        """What enters layer 0: word + position (+ segment), LayerNorm, and a projection if any."""
        summed = self.word(ids)
        if self.segment is not None:
            chosen = self.segment.weight[0] if segments is None else self.segment(segments)
            summed = summed + chosen
        summed = summed + self.position(self.positions(ids))
        normed = self.embed_norm(summed)
        return normed if self.embed_project is None else self.embed_project(normed)

    def positions(self, ids: TokenIds) -> Int[torch.Tensor, "#batch position"]:
        """The row of the position table that each token has."""
        if not self.config.position_offset:
            return torch.arange(ids.shape[1], device=ids.device)[None]
        # RoBERTa counts real tokens only; padding keeps the reserved row padding_idx.
        padding = self.config.position_offset - 1
        real = (ids != padding).long()
        return real.cumsum(1) * real + padding

    def final(self, hidden: Hidden) -> Hidden:
        """The hidden state that the task head reads: the stream itself."""
        return hidden
