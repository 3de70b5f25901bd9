"""Pairs of query and key in the order of their queries, so that a block of rows finds its own."""

import torch
from torch import Tensor

from minibert.quantities import Float, Int

__all__ = ["Pairs"]


class Pairs:
    """Pairs sorted by query: `query` and `key`."""

    def __init__(self, pairs: Int[Tensor, "pair 2"]) -> None:
        self._place: Tensor | None = None
        query = pairs[:, 0]
        if bool((query[1:] < query[:-1]).any()):
            order = query.argsort(stable=True)
            self._place = torch.empty_like(order)
            self._place[order] = torch.arange(len(order), device=order.device)
            pairs = pairs[order]
        self.query, self.key = pairs.T.contiguous()
        self._queries = self.query.cpu().numpy()

    def of(self, rows: slice) -> slice:
        """The pairs whose query is one of these rows."""
        first, stop = self._queries.searchsorted((rows.start, rows.stop)).tolist()
        return slice(first, stop)

    def as_given(self, masses: Float[Tensor, "*lead pair"]) -> Float[Tensor, "*lead pair"]:
        """Numbers of the pairs in the order in which the pairs were given."""
        return masses if self._place is None else masses[..., self._place]
