"""Confidence intervals of means over documents, from sums that can be merged."""

from functools import cache
from typing import NamedTuple

import numpy as np
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


def layer_intervals(
    counts: NDArray[np.int64], total: NDArray[np.float64], squares: NDArray[np.float64]
) -> Interval:
    """The mean of documents and its 95 % interval, from Σ x and Σ x², (layer, ...).

    `counts` says of each layer how many documents count: layers with windows may see no key of a
    kind, where others see one. The interval is mean ± t·s/√count, where t is Student's quantile of
    count - 1 degrees of freedom and s² the variance with count - 1 in the denominator. The mean is
    nan without documents; the ends are nan with fewer than two, for one document says nothing about
    others. Shares of attention are cut to 0 and 1 by whoever shows them, not here.

    Source: Student 1908, "The Probable Error of a Mean".
    """
    quantiles = [student_quantile(n - 1) if n > 1 else np.nan for n in counts.tolist()]
    axes = (-1, *[1] * (total.ndim - 1))
    count, others = (np.where(n > 0, n, np.nan).reshape(axes) for n in (counts, counts - 1))
    mean = total / count
    # Rounding may leave a variance of 0 a little below it.
    variance = np.maximum(squares - count * mean**2, 0.0) / others
    half = np.array(quantiles).reshape(axes) * np.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


@cache
def student_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t for which |T| <= t with probability `level`, of Student's distribution.

    With T = √degrees · tan θ the density of θ is proportional to cos(θ)^(degrees - 1) between -π/2
    and π/2, which is summed up here by the trapezoid rule.
    """
    angle = np.linspace(0.0, np.pi / 2, _STEPS)
    density = np.cos(angle) ** (degrees - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(degrees) * np.tan(np.interp(level, share / share[-1], angle)))
