"""What a rung reads, writes and computes, noted while it runs.

The model of memory has two levels. What is larger than NEAR_BYTES is far, and so are query, key,
value and what is returned, whatever their size. Each operation moves its far operands once. What
is smaller stays near and is free. 128 kB is about what one core of a CPU or one multiprocessor of a
GPU has close by.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["NAMES", "NEAR_BYTES", "Counts", "Walk"]

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
