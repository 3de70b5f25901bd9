"""Confidence intervals of means over documents and of shares, from sums that can be merged."""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

#: The share of such intervals that hold the true mean.
LEVEL = 0.95

# So fine that the quantile of 1 degree of freedom, 12.706, is right to five digits.
_STEPS = 100_001


class Interval(NamedTuple):
    """A mean, and the lower and upper end of its confidence interval; arrays of one shape."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def mean_interval(count: int, total: NDArray[np.float64], squares: NDArray[np.float64]) -> Interval:
    """The mean of `count` documents and its 95 % interval, from Σ x and Σ x².

    mean ± t·s/√count, where t is Student's quantile of count - 1 degrees of freedom and s² the
    variance with count - 1 in the denominator. The mean is nan without documents; the ends are nan
    with fewer than two, for one document says nothing about others. Shares of attention are
    cut to 0 and 1 by whoever shows them, not here.

    Source: Student 1908, "The Probable Error of a Mean".
    """
    nothing = np.full(np.shape(total), np.nan)
    if count == 0:
        return Interval(nothing, nothing, nothing)
    mean = total / count
    if count == 1:
        return Interval(mean, nothing, nothing)
    # Rounding may leave a variance of 0 a little below it.
    variance = np.maximum(squares - count * mean**2, 0.0) / (count - 1)
    half = student_quantile(count - 1) * np.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


def layer_intervals(
    counts: NDArray[np.int64], total: NDArray[np.float64], squares: NDArray[np.float64]
) -> Interval:
    """`mean_interval` of each layer, (layer, ...), where as many documents count as `counts` says.

    Layers with windows may see no key of a kind, where others see one.
    """
    if (counts == counts[0]).all():
        return mean_interval(int(counts[0]), total, squares)
    each = [mean_interval(int(n), t, s) for n, t, s in zip(counts, total, squares, strict=True)]
    return Interval(*map(np.stack, zip(*each, strict=True)))


def student_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t for which |T| <= t with probability `level`, of Student's distribution.

    With T = √degrees · tan θ the density of θ is proportional to cos(θ)^(degrees - 1) between -π/2
    and π/2, which is summed up here by the trapezoid rule.
    """
    angle = np.linspace(0.0, np.pi / 2, _STEPS)
    density = np.cos(angle) ** (degrees - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(degrees) * np.tan(np.interp(level, share / share[-1], angle)))


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
