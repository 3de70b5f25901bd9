"""Pairs of query and key in the order of their queries, so that a block of rows finds its own."""

from bisect import bisect_left

import torch
from torch import Tensor

from minibert.quantities import Int

__all__ = ["Pairs"]


class Pairs:
    """Pairs sorted by query: `query` and `key`, and in `place` where each given pair went."""

    def __init__(self, pairs: Int[Tensor, "pair 2"]) -> None:
        order = pairs[:, 0].argsort(stable=True)
        self.query, self.key = pairs[order].unbind(-1)
        self.place = torch.empty_like(order)
        self.place[order] = torch.arange(len(order), device=order.device)
        self._queries = self.query.tolist()

    def of(self, rows: slice) -> slice:
        """The pairs whose query is one of these rows."""
        first = bisect_left(self._queries, rows.start)
        return slice(first, bisect_left(self._queries, rows.stop, first))
