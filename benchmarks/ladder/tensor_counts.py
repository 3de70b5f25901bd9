"""Counts what a torch rung does, operation by operation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.ladder.counts import NEAR_BYTES, Counts

__all__ = ["TensorCounts", "count_tensors"]

_PRODUCTS = ("mm", "bmm")
#: These take the shape of what they are given and read none of its numbers.
_SHAPE_ALONE = ("empty_like", "zeros_like", "full_like", "new_empty", "new_zeros", "new_full")
#: These write into their first tensor without reading it.
_FILLING = ("copy_", "fill_", "zero_")


class TensorCounts(TorchDispatchMode):
    """Notes in `counts` what the operations below it read and write, unless `paused`."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts, self.paused = counts, False
        # Rows of a given tensor that were computed on and now lie near, by address.
        self._near: dict[int, tuple[str, range]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if self.paused or name in _SHAPE_ALONE:
            return found
        given = _tensors((args, kwargs))
        made = _tensors(found)
        memory = {_memory(one) for one in given}
        if not func._schema.is_mutable and any(_memory(one) in memory for one in made):
            # A view: nothing moves.
            return found
        rows = dict(filter(None, map(self._read, given[1:] if name in _FILLING else given)))
        for one in made:
            if one.untyped_storage().nbytes() > NEAR_BYTES and not name.startswith("empty"):
                self.counts.written[_named(one)] += one.nbytes
        if name in _PRODUCTS:
            self.counts.flop += 2 * given[0].numel() * given[1].shape[-1]
            if set(rows) >= {"query", "key"}:
                self.counts.computes(rows["query"], rows["key"])
        elif len(rows) == 1 and len(made) == 1:
            self._near[made[0].data_ptr()] = next(iter(rows.items()))
        if name == "exp":
            self.counts.exponentials += made[0].numel()
        return found

    def _read(self, one: Tensor) -> tuple[str, range] | None:
        """Notes that this was read, and says which rows of a given tensor it is."""
        owner = self.counts.name_at(one.data_ptr())
        if owner is not None:
            rows = self.counts.rows(owner, one.data_ptr(), one.numel())
            self.counts.reads(owner, one.nbytes, rows)
            return owner, rows
        if one.untyped_storage().nbytes() > NEAR_BYTES:
            self.counts.reads(_named(one), one.nbytes)
        return self._near.get(one.data_ptr())


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def _memory(one: Tensor) -> int:
    return one.untyped_storage().data_ptr()


def _named(one: Tensor) -> str:
    square = one.ndim > 1 and one.shape[-1] == one.shape[-2]
    return "scores" if square and one.nbytes > NEAR_BYTES else "rows"


def count_tensors(
    attention: Callable[..., dict[str, Tensor]], given: dict[str, Tensor], *, causal: bool
) -> Counts:
    """The counts of `attention(query, key, value, None, causal)` for one head."""
    n, d_head = given["query"].shape[2:]
    places = {name: (one.data_ptr(), one.data_ptr() + one.nbytes) for name, one in given.items()}
    counts = Counts(n, d_head, places)
    with torch.no_grad(), TensorCounts(counts):
        found = attention(*given.values(), None, causal)
    for one in found.values():
        if one.nbytes <= NEAR_BYTES:
            counts.written["rows"] += one.nbytes
    return counts
