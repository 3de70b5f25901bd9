"""Counts what a NumPy rung does: arrays that note each operation on them."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from benchmarks.ladder.counts import NEAR_BYTES, Counts

__all__ = ["count_arrays"]

#: These take the shape of what they are given and read none of its numbers.
_SHAPE_ALONE = ("zeros_like", "empty_like", "full_like")


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
        self._note(function.__name__, () if function.__name__ in _SHAPE_ALONE else args, found)
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
                cls.counts.reads(_named(_owner(one)), one.nbytes)
        if isinstance(found, np.ndarray) and _owner(found).nbytes > NEAR_BYTES:
            cls.counts.written[_named(_owner(found))] += found.nbytes
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


def _named(owner: np.ndarray) -> str:
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
