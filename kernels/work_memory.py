"""The memory that blocks of scores are computed in, how much of it a block takes, and its keeping.

On a CPU new memory for each call is slow: at 12 heads of 512 tokens, where the operating system
maps each page at its first touch, it took up to four tenths of the time. So a thread keeps the
memory of its last call for the next one.
"""

import math
import threading
from collections.abc import Callable
from functools import cached_property
from types import TracebackType

import torch
from torch import Tensor

from minibert.kernels.call import wide
from minibert.quantities import Bool, Float

#: Scores of a block for each thread: 4 MiB in float32. The operations of a block, small ones all,
#: take time to start: with half as many a pass was a tenth slower; twice as many gained nothing.
CELLS = 2**20
#: Instead, where that is enough for all rows of a head: two such blocks fit in a core's own cache.
CACHED_CELLS = 2**18
#: No block has more, and one on another device than a CPU has as many, since it pays for its
#: launches: 16 MiB in float32.
MOST_CELLS = 2**22
#: Below this many rows a matrix product is slow; very long rows leave the cache instead.
LEAST_ROWS = 16
#: Causal blocks are not taller, and take more heads instead: half of the square on the diagonal is
#: computed in vain.
CAUSAL_ROWS = 64
#: Queries, keys, values, z or its gradient held together for each thread: 1 MiB each in float32.
VECTORS = 2**18
#: No more are.
MOST_VECTORS = 2**20

_BLOCKS = ("scores", "second")


class WorkMemory:
    """The memory of a pass over blocks, used within `with`; the thread keeps it afterwards.

    Two arrays for blocks of scores, z of a block, and the queries, keys and values of a part.
    """

    def __init__(
        self, query: Float[Tensor, "batch head query d_head"], *, n_keys: int, causal: bool
    ) -> None:
        self.device, self.dtype = query.device, wide(query.dtype)
        on_cpu = self.device.type == "cpu"
        # Other devices have torch's cache.
        self.kept = on_cpu and type(query) is Tensor and not traced()
        self.threads = torch.get_num_threads() if on_cpu else 1
        self.most_cells = min(CELLS * self.threads, MOST_CELLS) if on_cpu else MOST_CELLS
        self.n_queries, self.cells = query.shape[2], self.most_cells
        n_queries = self.n_queries
        if on_cpu and n_queries * n_keys <= CACHED_CELLS:
            self.cells = min(self.cells, CACHED_CELLS * self.threads)
        self.most_numbers = min(VECTORS * self.threads, MOST_VECTORS)
        self.most_rows = min(n_queries, CAUSAL_ROWS) if causal else n_queries
        self.size = min(max(self.cells, LEAST_ROWS * n_keys), query[..., 0].numel() * n_keys)
        self._arrays: dict[str, Tensor] = {}
        self._views: dict[str, Tensor] = {}
        self._known: dict[str, tuple[tuple[int, ...], Tensor]] = {}

    def __enter__(self) -> "WorkMemory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.kept:
            _kept.arrays |= {
                name: array
                for name, array in self._arrays.items()
                if array.numel() <= (self.most_cells if name in _BLOCKS else self.most_numbers)
            }
        self._arrays, self._views, self._known = {}, {}, {}

    def n_units(self, n_heads: int, n_keys: int) -> tuple[int, int]:
        """Sentences of a part, and heads of each: as many as fit with all the rows of a block.

        At least one for each thread, where blocks of fewer rows make room for them.
        """
        units = self.cells // (self.most_rows * n_keys)
        units -= units % self.threads
        units = max(units, min(self.threads, self.cells // (LEAST_ROWS * n_keys)), 1)
        if units >= n_heads:
            return units // n_heads, n_heads
        return 1, math.ceil(n_heads / math.ceil(n_heads / units))

    def with_room(self, number: int, step: int, numbers_each: int) -> int:
        """How many of `number` have room for their keys: whole steps, and one at least."""
        fitting = self.most_numbers // max(numbers_each, 1)
        return min(number, max(step, fitting - fitting % step))

    def n_rows(self, units: int, n_keys: int) -> int:
        """Rows of a block."""
        wanted = max(self.cells // (units * n_keys), LEAST_ROWS)
        return max(1, min(wanted, self.most_rows, self.size // (units * n_keys)))

    @cached_property
    def ahead(self) -> Bool[Tensor, "rows key"]:
        """True above the diagonal of the tallest block."""
        # A packed sentence of up to two blocks is one block (chunked.py).
        rows = min(2 * CAUSAL_ROWS, self.n_queries)
        size = (rows, rows)
        return torch.ones(size, dtype=torch.bool, device=self.device).triu_(1)

    @cached_property
    def ones(self) -> Float[Tensor, "1 rows"]:
        """A 1 for each row of the tallest block."""
        return torch.ones(1, self.n_queries, dtype=self.dtype, device=self.device)

    def distances(self, first: int, shape: tuple[int, ...]) -> Float[Tensor, "rows key"]:
        """Position of the query minus that of the key, of a block that begins with `first`."""

        def made() -> Tensor:
            positions = torch.arange(first, first + shape[-2], dtype=self.dtype, device=self.device)
            keys = torch.arange(shape[-1], dtype=self.dtype, device=self.device)
            return positions[:, None] - keys

        return self.known("distances", first, shape, made)

    def known(
        self, name: str, first: int, shape: tuple[int, ...], make: Callable[[], Tensor]
    ) -> Tensor:
        """What was made for the last block, where this one has the same place in its window."""
        place = (first, *shape[-2:])
        last = self._known.get(name)
        if last is None or last[0] != place:
            last = self._known[name] = (place, make())
        return last[1]

    def scores(self, shape: tuple[int, ...]) -> Tensor:
        """A block as a tensor of this shape; what it holds is left from before."""
        return self._array("scores", shape, self.size)

    def second(self, shape: tuple[int, ...]) -> Tensor:
        """Another one."""
        return self._array("second", shape, self.size)

    def vectors(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Vectors of a part, or "z" of a block; those of the same name come in the same memory."""
        return self._array(name, shape, math.prod(shape))

    def diagonals(self, shape: tuple[int, ...]) -> Tensor:
        """A block with zeros in front of its rows."""
        return self._array("diagonals", shape, math.prod(shape))

    def _array(self, name: str, shape: tuple[int, ...], size: int) -> Tensor:
        # Most blocks have one shape, and a view takes as long to make as a small operation.
        last = self._views.get(name)
        if last is not None and last.shape == shape:
            return last
        array = self._arrays.get(name)
        if array is None or array.numel() < size:
            array = self._arrays[name] = self._taken(name, size)
        view = self._views[name] = array[: math.prod(shape)].view(shape)
        return view

    def _taken(self, name: str, size: int) -> Tensor:
        array = _kept.arrays.pop(name, None) if self.kept else None
        if array is not None and array.dtype == self.dtype and array.numel() >= size:
            return array
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            return torch.empty(size, dtype=self.dtype, device=self.device)


def traced() -> bool:
    """Whether what is made now is a tracer's, which is not to outlive it."""
    functorch, c = torch._C._functorch, torch._C
    return (
        torch.compiler.is_compiling()
        or c._get_tracing_state() is not None
        or c._len_torch_dispatch_stack() > 0
        or functorch.peek_interpreter_stack() is not None
    )


class _Kept(threading.local):
    """The arrays of each thread that its calls do not need at the moment, one of each name."""

    def __init__(self) -> None:
        self.arrays: dict[str, Tensor] = {}


_kept = _Kept()


def release() -> None:
    """Give back the memory that the calling thread keeps between calls.

    That is at most 13 MiB in float32 for each thread torch computes with, and 52 MiB in all; twice
    that in float64.
    """
    _kept.arrays = {}
