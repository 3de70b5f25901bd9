"""The two bodies: embeddings, layers, and for GPT-2 a last LayerNorm.

`BertBody` serves bert, roberta, distilbert, electra and albert; what differs between them is in the
Config (a projection after the embeddings, shared layers, shifted positions, no segments). Sources:
Devlin et al. 2019; Liu et al. 2019 (RoBERTa); Sanh et al. 2019 (DistilBERT); Clark et al. 2020
(ELECTRA); Lan et al. 2020 (ALBERT); Radford et al. 2019 (GPT-2).
"""

import torch
from torch import nn

from minibert.layers.config import Config
from minibert.layers.linear import Linear
from minibert.layers.parts import Embedding, Layer, LayerNorm
from minibert.quantities import Hidden, Int, TokenIds

__all__ = ["BertBody", "Body", "Gpt2Body", "Positions", "build_body"]

Positions = Int[torch.Tensor, "#batch position"]


class Body(nn.Module):
    """What every body has."""

    config: Config
    word: Embedding
    position: Embedding
    groups: nn.ModuleList
    pooler: Linear | None
    final_norm: LayerNorm | None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; ALBERT names the same one several times."""
        groups = tuple(self.groups)
        share = self.config.n_layers / len(groups)
        return tuple([groups[int(n / share)] for n in range(self.config.n_layers)])  # type: ignore[misc]

    def positions(self, ids: TokenIds) -> Positions:
        """The row of the position table that each token has."""
        return torch.arange(ids.shape[1], device=ids.device)[None]

    def embed(
        self, ids: TokenIds, segments: TokenIds | None, positions: Positions | None = None
    ) -> Hidden:
        """What enters layer 0; `positions` are rows of the position table."""
        raise NotImplementedError

    def final(self, hidden: Hidden) -> Hidden:
        """The hidden state that the task head reads."""
        raise NotImplementedError


class BertBody(Body):
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
        self.groups = nn.ModuleList(Layer(config, n) for n in range(config.n_layer_groups))
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None
        self.final_norm = None

    def embed(
        self, ids: TokenIds, segments: TokenIds | None, positions: Positions | None = None
    ) -> Hidden:
        """word + position (+ segment), LayerNorm, and a projection if there is one."""
        summed = self.word(ids)
        if self.segment is not None:
            chosen = self.segment.weight[0] if segments is None else self.segment(segments)
            summed = summed + chosen
        summed = summed + self.position(self.positions(ids) if positions is None else positions)
        normed = self.embed_norm(summed)
        return normed if self.embed_project is None else self.embed_project(normed)

    def positions(self, ids: TokenIds) -> Positions:
        """The row of the position table that each token has."""
        if not self.config.position_offset:
            return super().positions(ids)
        # RoBERTa counts real tokens only; padding keeps the reserved row padding_idx.
        padding = self.config.position_offset - 1
        real = (ids != padding).long()
        return real.cumsum(1) * real + padding

    def final(self, hidden: Hidden) -> Hidden:
        """The hidden state that the task head reads: the stream itself."""
        return hidden


class Gpt2Body(Body):
    """Embeddings, layers and the last LayerNorm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.word = Embedding(config.vocab_size, config.d_model)
        self.position = Embedding(config.n_positions, config.d_model)
        self.groups = nn.ModuleList(Layer(config, n) for n in range(config.n_layers))
        self.final_norm = LayerNorm(config.d_model, eps=config.norm_eps)
        self.pooler = None

    def embed(
        self, ids: TokenIds, segments: TokenIds | None, positions: Positions | None = None
    ) -> Hidden:
        """word + position; GPT-2 has no segments, and they are not read."""
        rows = self.positions(ids) if positions is None else positions
        return self.word(ids) + self.position(rows)

    def final(self, hidden: Hidden) -> Hidden:
        """The hidden state that the task head reads: LayerNorm of the stream."""
        assert self.final_norm is not None
        return self.final_norm(hidden)


def build_body(config: Config) -> Body:
    """The body of config.family, its weights without values yet."""
    return Gpt2Body(config) if config.family == "gpt2" else BertBody(config)
