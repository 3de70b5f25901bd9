"""Counts what a Triton rung does, load by load, in Triton's interpreter.

The interpreter runs one program after another, and each load and store has the addresses of its
numbers. So what is counted is what the kernel asks of memory; masked numbers are not asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from benchmarks.ladder.counts import Counts
from benchmarks.ladder.tensor_counts import TensorCounts

__all__ = ["count_kernels"]


class KernelCounts:
    """Notes in `counts` what the programs of a kernel load, store and compute."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._program: Any = None
        self._last: dict[str, range] = {}

    def loads(self, builder: Any, pointers: Any, mask: Any) -> None:
        addresses = pointers.data[mask.data]
        if not addresses.size:
            return
        if builder.grid_idx != self._program:
            self._program, self._last = builder.grid_idx, {}
        n_bytes = addresses.size * (pointers.get_element_ty().primitive_bitwidth // 8)
        first = int(addresses.min())
        name = self.counts.name_at(first)
        if name is None:
            self.counts.reads("rows", n_bytes)
            return
        rows = self.counts.rows(name, first, addresses.size)
        self.counts.reads(name, n_bytes, rows)
        if name in ("query", "key"):
            self._last[name] = rows
            if len(self._last) == 2:
                self.counts.computes(self._last["query"], self._last["key"])

    def stores(self, pointers: Any, mask: Any) -> None:
        width = pointers.get_element_ty().primitive_bitwidth // 8
        self.counts.written["rows"] += int(mask.data.sum()) * width

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Within it the interpreter tells of each operation."""
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
        dot, exp2 = InterpreterBuilder.create_dot, InterpreterBuilder.create_exp2

        def noted_load(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
            self.loads(builder, pointers, mask)
            return load(builder, pointers, mask, *others)

        def noted_store(builder: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
            self.stores(pointers, mask)
            return store(builder, pointers, value, mask, *others)

        def noted_dot(builder: Any, one: Any, other: Any, *others: Any) -> Any:
            self.counts.flop += 2 * one.data.size * other.data.shape[-1]
            return dot(builder, one, other, *others)

        def noted_exp2(builder: Any, one: Any) -> Any:
            self.counts.exponentials += one.data.size
            return exp2(builder, one)

        with patch.multiple(
            InterpreterBuilder, create_masked_load=noted_load, create_masked_store=noted_store,
            create_dot=noted_dot, create_exp2=noted_exp2,
        ):  # fmt: skip
            yield


def count_kernels(call: Callable[[], Any], given: dict[str, Tensor]) -> Counts:
    """The counts of `call()`, with what torch computes next to the kernels.

    given are the tensors of one head that it reads, by name.
    """
    n, d_head = given["query"].shape[2:]
    places = {name: (one.data_ptr(), one.data_ptr() + one.nbytes) for name, one in given.items()}
    counts = Counts(n, d_head, places)
    noting = KernelCounts(counts).noting()
    with torch.no_grad(), noting, TensorCounts(counts) as mode, _told_of_launches(mode):
        call()
    return counts


@contextmanager
def _told_of_launches(mode: TensorCounts) -> Iterator[None]:
    """Within it each launch is a walk, and the mode does not see the interpreter's own copies."""
    run = GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        mode.counts.begins_walk()
        mode.paused = True
        run(executor, *args, **kwargs)
        mode.paused = False

    with patch.object(GridExecutor, "__call__", launch):
        yield
