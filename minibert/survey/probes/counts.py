"""Shares of what was counted, and how sure they are."""

import math

__all__ = ["SURE", "share", "wilson"]

#: The quantile of the normal distribution that 95 % lie within.
SURE = 1.959964


def share(correct: int, total: int) -> float:
    """correct / total; nan where nothing was counted."""
    return correct / total if total else math.nan


def wilson(correct: int, total: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, after Wilson 1927; (0, 1) where nothing was counted.

    It takes the instances as independent, which words of one text are not quite.
    """
    if not total:
        return 0.0, 1.0
    found, z = correct / total, SURE
    middle = (found + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total)
    half *= math.sqrt(found * (1 - found) / total + z * z / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)
