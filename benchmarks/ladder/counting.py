"""What a rung reads, writes and computes, noted while it runs: in NumPy, torch or Triton.

The model of memory has two levels. What is larger than NEAR_BYTES is far, and so are query, key,
value and what is returned, whatever their size. Each operation moves its far operands once. What
is smaller stays near and is free. 128 kB is about what one core of a CPU or one multiprocessor of a
GPU has close by. NumPy arrays and torch operations note themselves; Triton's interpreter runs one
program after another, and each load and store has the addresses of its numbers, so what is counted
is what the kernel asks of memory; masked numbers are not asked for.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NEAR_BYTES = 128 * 1024
#: The vectors that are given, by name; what else is far is `scores` (query x key) or `rows`.
NAMES = ("query", "key", "value", "z_gradient")


@dataclass
class Walk:
    """The tiles of scores in the order in which they are computed, each as (rows, keys).

    times_read: how often each of the n rows of query and key is read.
    """

    n: int
    tiles: list[tuple[range, range]] = field(default_factory=list)
    times_read: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.times_read = {name: np.zeros(self.n, int) for name in ("query", "key")}


@dataclass
class Counts:
    """The counts of one run with `n` queries and keys of one head.

    places: the first and last address of each given tensor. read and written: bytes by name. flop:
    those of matrix products, 2 a multiplication with its addition. walks: one for each kernel.
    """

    n: int
    d_head: int
    places: Mapping[str, tuple[int, int]]
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    flop: int = 0
    exponentials: int = 0
    walks: list[Walk] = field(init=False)

    def __post_init__(self) -> None:
        self.walks = [Walk(self.n)]

    def name_at(self, address: int) -> str | None:
        """The given tensor that has this address; None where none has."""
        for name, (first, last) in self.places.items():
            if first <= address < last:
                return name
        return None

    def rows(self, name: str, address: int, size: int) -> range:
        """The rows of a given tensor that `size` numbers from `address` on fill."""
        first, last = self.places[name]
        row_bytes = (last - first) // self.n
        begin = (address - first) // row_bytes
        return range(begin, begin + max(1, size // self.d_head))

    def reads(self, name: str, n_bytes: int, rows: range | None = None) -> None:
        """Notes that far memory of this name was read."""
        self.read[name] += n_bytes
        times_read = self.walks[-1].times_read
        if rows is not None and name in times_read:
            times_read[name][rows.start : rows.stop] += 1

    def computes(self, rows: range, keys: range) -> None:
        """Notes that the scores of these queries and keys were computed."""
        self.walks[-1].tiles.append((rows, keys))

    def begins_walk(self) -> None:
        """Notes that what comes is of another kernel."""
        if self.walks[-1].tiles:
            self.walks.append(Walk(self.n))

    @property
    def total_bytes(self) -> int:
        """All bytes that were moved."""
        return self.read.total() + self.written.total()


#: These take the shape of what they are given and read none of its numbers.
_SHAPE_OF_ARRAYS = ("zeros_like", "empty_like", "full_like")


class CountedArray(np.ndarray):
    """An array whose operations are noted in `counts`."""

    counts: ClassVar[Counts]

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any
    ) -> Any:
        if out:
            options["out"] = tuple(map(_plain, out))
        found = getattr(ufunc, method)(*map(_plain, inputs), **options)
        self._note(ufunc.__name__, inputs, found)
        return found.view(CountedArray) if isinstance(found, np.ndarray) else found

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = function(*map(_plain, args), **kwargs)
        self._note(function.__name__, () if function.__name__ in _SHAPE_OF_ARRAYS else args, found)
        return found.view(CountedArray)

    @classmethod
    def _note(cls, name: str, given: Iterable[Any], found: Any) -> None:
        arrays = [one for one in given if isinstance(one, np.ndarray)]
        rows = {}
        for one in arrays:
            owner = cls.counts.name_at(_address(one))
            if owner is not None:
                rows[owner] = cls.counts.rows(owner, _address(one), one.size)
                cls.counts.reads(owner, one.nbytes, rows[owner])
            elif _owner(one).nbytes > NEAR_BYTES:
                cls.counts.reads(_array_name(_owner(one)), one.nbytes)
        if isinstance(found, np.ndarray) and _owner(found).nbytes > NEAR_BYTES:
            cls.counts.written[_array_name(_owner(found))] += found.nbytes
        if name == "matmul":
            cls.counts.flop += 2 * arrays[0].size * arrays[1].size // arrays[1].shape[0]
            if set(rows) >= {"query", "key"}:
                cls.counts.computes(rows["query"], rows["key"])
        if name == "outer":
            cls.counts.flop += 2 * found.size
        if name == "exp":
            cls.counts.exponentials += found.size


def _plain(one: Any) -> Any:
    return one.view(np.ndarray) if isinstance(one, CountedArray) else one


def _address(one: np.ndarray) -> int:
    return int(one.__array_interface__["data"][0])


def _owner(one: np.ndarray) -> np.ndarray:
    """The array whose memory this is a view of."""
    while isinstance(one.base, np.ndarray):
        one = one.base
    return one


def _array_name(owner: np.ndarray) -> str:
    return "scores" if owner.ndim == 2 and owner.shape[0] == owner.shape[1] else "rows"


def count_arrays(
    one_head: Callable[..., Any], given: dict[str, np.ndarray], allowed: np.ndarray
) -> Counts:
    """The counts of `one_head(query, key, value, allowed)`."""
    n, d_head = given["query"].shape
    places = {name: (_address(one), _address(one) + one.nbytes) for name, one in given.items()}
    CountedArray.counts = counts = Counts(n, d_head, places)
    found = one_head(*(one.view(CountedArray) for one in (*given.values(), allowed)))
    for one in found if isinstance(found, tuple) else (found,):
        if one.nbytes <= NEAR_BYTES:
            counts.written["rows"] += one.nbytes
    return counts


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
    call: Callable[[], dict[str, Tensor]], given: dict[str, Tensor], *, kernels: bool = False
) -> Counts:
    """The counts of `call()`; with `kernels` those of Triton's, and of what torch computes beside.

    given are the tensors of one head that it reads, by name. What a kernel stores is counted there.
    """
    n, d_head = given["query"].shape[2:]
    places = {name: (one.data_ptr(), one.data_ptr() + one.nbytes) for name, one in given.items()}
    counts = Counts(n, d_head, places)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if kernels:
            stack.enter_context(KernelCounts(counts).noting())
        mode = stack.enter_context(TensorCounts(counts))
        if kernels:
            stack.enter_context(_told_of_launches(mode))
        found = call()
    for one in () if kernels else found.values():
        if one.nbytes <= NEAR_BYTES:
            counts.written["rows"] += one.nbytes
    return counts


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
        # Imported late: whoever counts has switched the interpreter on by then.
        from triton.runtime.interpreter import InterpreterBuilder

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


@contextmanager
def _told_of_launches(mode: TensorCounts) -> Iterator[None]:
    """Within it each launch is a walk, and the mode does not see the interpreter's own copies."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        mode.counts.begins_walk()
        mode.paused = True
        run(executor, *args, **kwargs)
        mode.paused = False

    with patch.object(GridExecutor, "__call__", launch):
        yield
