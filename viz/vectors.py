"""query, key and value of a sentence, as precise as a page needs them.

Half precision is enough for most heads: the weights that a browser computes from it differ by
less than can be seen. Where scores are large it is not, and such heads have a byte more for each
number, or single precision where that is not enough; where no precision gives the model's weights,
an edit has changed them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.viz.inputs import Array, of_heads
from minibert.viz.payload import Block, pack_remainders, pack_vectors, refined

__all__ = ["Holding", "packed_values", "packed_vectors", "value_size"]

# What rounding to half precision may cost a weight, and what single precision may.
_HALF_ERROR, _SINGLE_ERROR = 1.2e-3, 1e-4
# Queries of a head whose weights are computed from what is shipped, to see whether they agree.
_CHECKED_QUERIES = 16

Read = Callable[[str, int], Array]


@dataclass(frozen=True)
class Holding:
    """What a page holds of each sentence of a trace."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    vectors: bool
    exact: frozenset[tuple[int, int]]
    """Heads, by layer and head, whose vectors are not rounded."""
    overview: bool
    """Thumbnails, and no weights or vectors."""

    def rounded(self, layer: int) -> bool:
        """True where the layer has heads with rounded vectors."""
        return self.vectors and any((layer, head) not in self.exact for head in self.heads)


@dataclass(frozen=True)
class _Comparison:
    """Weights of the model, to compare with those that a browser computes."""

    probs: Tensor
    """(head, row, key), of some queries of each head."""
    rows: Tensor
    """(head, row): which queries they are."""
    scale: float
    causal: bool

    @classmethod
    def of(cls, probs: Array, query: Array, n_rows: int, **about: Any) -> "_Comparison":
        """With `n_rows` queries of each head: those in which rounding changes most."""
        weights, norms = torch.from_numpy(probs), torch.from_numpy(query).norm(dim=-1)
        largest = weights.amax(-1)
        # A weight p moves by p·(1 - p) times the change of its score, which grows with the query.
        suspicion = largest * (1 - largest) * norms
        rows = suspicion.topk(n_rows, -1).indices
        return cls(weights.gather(1, _along(rows, weights)), rows, **about)

    def errors(self, query: Array, key: Array) -> list[float]:
        """The largest difference in each head."""
        # In double precision, as a browser computes them.
        queries, keys = (torch.from_numpy(part).double() for part in (query, key))
        scores = queries.gather(1, _along(self.rows, queries)) @ keys.transpose(-1, -2) * self.scale
        if self.causal:
            ahead = torch.arange(keys.shape[1]) > self.rows[..., None]
            scores = scores.masked_fill(ahead, -torch.inf)
        # Infinite scores give NaN, which is no agreement.
        return (scores.softmax(-1) - self.probs).abs().amax((1, 2)).nan_to_num(torch.inf).tolist()


def _along(rows: Tensor, table: Tensor) -> Tensor:
    return rows[..., None].expand(-1, -1, table.shape[-1])


def packed_vectors(
    trace: Any, layer: int, read: Read, probs: Array, holding: Holding
) -> tuple[list[Block], bool]:
    """query and key of a layer, value of its exact heads, and whether they give its weights.

    `read` gives (head, position, d_head) of all heads by name and layer, `probs` are the weights
    of the held ones.
    """
    exact = [head for head in holding.heads if (layer, head) in holding.exact]
    if not exact and not holding.vectors:
        return [], True
    heads = list(holding.heads)
    whole = {name: read(name, layer) for name in ("query", "key")}
    single = {name: of_heads(vectors, heads) for name, vectors in whole.items()}
    half = {name: rounded(vectors) for name, vectors in single.items()}
    agreeing, off = _agreement(trace, layer, probs, half, single)
    if not agreeing:
        off = set()
    fine = off - _still_off(trace, layer, probs, single, off)
    precise = {heads[place] for place in off - fine}
    blocks = []
    if holding.rounded(layer) and not precise.union(exact).issuperset(heads):
        kept = half if _finite(*half.values()) or agreeing else single
        for name, vectors in kept.items():
            blocks.append(pack_vectors(name, layer, vectors, single=kept is single))
        for place in sorted(fine):
            for name, vectors in single.items():
                blocks.append(pack_remainders(name, layer, heads[place], vectors[place]))
    for head in sorted(precise.union(exact) if holding.vectors else exact):
        for name, vectors in whole.items():
            blocks.append(pack_vectors(name, layer, vectors[head], head=head))
    for head in exact:
        blocks.append(pack_vectors("value", layer, read("value", layer)[head], head=head))
    return blocks, agreeing


def _agreement(
    trace: Any, layer: int, probs: Array, half: dict[str, Array], single: dict[str, Array]
) -> tuple[bool, set[int]]:
    """Whether the vectors give the weights, and the places of the heads that rounding spoils."""
    comparison, slack = _comparison(trace, layer, probs, single)
    errors = comparison.errors(**half)
    off = {place for place, error in enumerate(errors) if error > max(_HALF_ERROR, slack)}
    if not off:
        return True, off
    return max(comparison.errors(**single)) <= max(_SINGLE_ERROR, slack), off


def _still_off(
    trace: Any, layer: int, probs: Array, single: dict[str, Array], off: set[int]
) -> set[int]:
    """Those of the places whose heads are spoiled even with a byte more for each number."""
    if not off:
        return off
    comparison, slack = _comparison(trace, layer, probs, single)
    with np.errstate(over="ignore", invalid="ignore"):
        errors = comparison.errors(**{name: refined(vectors) for name, vectors in single.items()})
    return {place for place in off if errors[place] > max(_HALF_ERROR, slack)}


def _comparison(
    trace: Any, layer: int, probs: Array, single: dict[str, Array]
) -> tuple[_Comparison, float]:
    """What to compare with, and by how much a model in half precision has rounded it itself."""
    edited = getattr(trace, "edited_from", None) is not None
    n_queries = probs.shape[1]
    comparison = _Comparison.of(
        probs,
        single["query"],
        n_queries if edited else min(n_queries, _CHECKED_QUERIES),
        scale=trace.config.attention_scale(layer),
        causal=bool(trace.config.causal),
    )
    return comparison, 16 * torch.finfo(trace[layer].query.dtype).eps


def rounded(vectors: Array) -> Array:
    """The same in half precision; infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return vectors.astype(np.float16)


def _finite(*vectors: Array) -> bool:
    return all(bool(np.isfinite(one).all()) for one in vectors)


def value_size(holding: Holding, n_tokens: int, d_head: int) -> int:
    """Bytes that `packed_values` take in a file."""
    n_layers = sum(holding.rounded(layer) for layer in holding.layers)
    return 8 * n_layers * len(holding.heads) * n_tokens * d_head // 3


def packed_values(read: Read, holding: Holding) -> list[Block]:
    """value of all held heads, rounded."""
    blocks = []
    for layer in filter(holding.rounded, holding.layers):
        value = of_heads(read("value", layer), holding.heads)
        blocks.append(pack_vectors("value", layer, value, single=not _finite(rounded(value))))
    return blocks
