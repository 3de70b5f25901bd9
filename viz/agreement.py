"""Whether query and key as a page holds them give the weights of the model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.viz.inputs import Array
from minibert.viz.looking import Looking

__all__ = ["CODED_ERROR", "HALF_ERROR", "Comparing", "Named"]

# What rounding to half precision may cost a weight, and what single precision may.
HALF_ERROR, _SINGLE_ERROR = 1.2e-3, 1e-4
# What a byte a number may cost a weight: as much as the codes of weights themselves.
CODED_ERROR = 4e-3
# Queries of a head whose weights are computed from what is shipped, to see whether they agree: all
# of most texts, and those that rounding changes most of a longer one.
_CHECKED_QUERIES = 512

Named = dict[str, Array]


@dataclass(frozen=True)
class _Comparison:
    """Weights of the model, to compare with those that a browser computes."""

    probs: Tensor
    """(head, row, key), of some queries of each head."""
    rows: Tensor
    """(head, row): which queries they are."""
    looking: Looking
    key_places: Tensor
    """(head): the place of its key-value head among those of key."""

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
        if len(keys) != len(queries):
            keys = keys[self.key_places]
        products = queries.gather(1, _along(self.rows, queries)) @ keys.transpose(-1, -2)
        scores = torch.from_numpy(self.looking.scores(products.numpy(), self.rows.numpy()))
        # Infinite scores give NaN, which is no agreement.
        return (scores.softmax(-1) - self.probs).abs().amax((1, 2)).nan_to_num(torch.inf).tolist()


def _along(rows: Tensor, table: Tensor) -> Tensor:
    return rows[..., None].expand(-1, -1, table.shape[-1])


class Comparing:
    """A layer's weights beside those that its vectors give."""

    def __init__(
        self, trace: Any, layer: int, probs: Array, single: Named, key_places: list[int]
    ) -> None:
        self.single = single
        edited = getattr(trace, "edited_from", None) is not None
        n_queries = probs.shape[1]
        self.comparison = _Comparison.of(
            probs,
            single["query"],
            n_queries if edited else min(n_queries, _CHECKED_QUERIES),
            looking=Looking.of_trace(trace.config, layer),
            key_places=torch.tensor(key_places),
        )
        # By how much a model in half precision has rounded its weights itself.
        self.slack = 16 * torch.finfo(trace[layer].query.dtype).eps

    def agreement(self, rounded: Named, error: float) -> tuple[bool, set[int]]:
        """Whether the vectors give the weights, and which heads, by place, rounding spoils."""
        off = self.off(rounded, error)
        if not off:
            return True, off
        return max(self.comparison.errors(**self.single)) <= max(_SINGLE_ERROR, self.slack), off

    def off(self, vectors: Named, error: float) -> set[int]:
        """The places of the heads whose weights are further than `error` from the model's."""
        errors = self.comparison.errors(**vectors)
        return {place for place, one in enumerate(errors) if one > max(error, self.slack)}
