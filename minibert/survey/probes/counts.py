"""What was counted in parts of a corpus: sums of counts, their shares, and how sure those are."""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Counts", "added", "share", "wilson"]

Counts = npt.NDArray[np.int64]
Name = TypeVar("Name")
Amount = TypeVar("Amount", int, Counts)

# The quantile of the normal distribution that 95 % lie within.
_SURE = 1.959964


def added(one: Mapping[Name, Amount], other: Mapping[Name, Amount]) -> dict[Name, Amount]:
    """The sums by name; a name that one of them lacks counts as 0 there."""
    sums = dict(one)
    for name, amount in other.items():
        sums[name] = sums[name] + amount if name in sums else amount
    return sums


def share(correct: int, total: int) -> float:
    """correct / total; nan where nothing was counted."""
    return correct / total if total else math.nan


def wilson(correct: int, total: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, after Wilson 1927; (0, 1) where nothing was counted.

    It takes the instances as independent, which words of one text are not quite.
    """
    if not total:
        return 0.0, 1.0
    found, z = correct / total, _SURE
    middle = (found + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total)
    half *= math.sqrt(found * (1 - found) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)
