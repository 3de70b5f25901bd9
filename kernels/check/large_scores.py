"""Are the wrong rows those whose scores are too large for exp without their maximum taken off?

exp(s) is infinite above the logarithm of the largest number, and 0 for a whole row below that of
the smallest: inf / inf, or 0 / 0. Scores cut off at a limit are finite and wrong.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem, by_eager, truth, unfolded

_ADVICE = "take the maximum of the row off its scores before exp"
#: Where people cut off: below the logarithm of the largest float32, 88.7, or of float16, 11.1.
_LIMITS = (10, 11, 20, 30, 40, 50, 60, 64, 70, 75, 80, 85, 86, 87, 88, 88.7, 89, 90, 100)


def large_scores(
    output: str, problem: Problem, found: Tensor, wrong: Tensor, tolerance: float
) -> str | None:
    """A sentence when rows are wrong because of the size of their scores; None where not."""
    row_max = truth(replace(problem, want={"row_max": ()}))["row_max"]
    if found.shape[:3] != row_max.shape or not found.is_floating_point():
        return None
    numbers = found.reshape(*row_max.shape, -1)
    rows = wrong.reshape(numbers.shape).any(dim=-1) & (row_max > -math.inf)
    # nan_to_num turns NaN into 0 and infinity into the largest number.
    finite = (numbers.abs() < torch.finfo(found.dtype).max).all(dim=-1)
    lost = ~finite | (numbers == 0).all(dim=-1)
    if overflow := _overflow(problem, row_max, rows, lost):
        return overflow
    low = row_max < math.log(torch.finfo(torch.float32).tiny)
    if limit := _cut_off(output, problem, numbers, rows & ~low, tolerance):
        return f"scores above {limit:g} are cut off, as by a clamp before exp: {_ADVICE}"
    if bool((rows & lost).any()) and not bool((rows & ~(low & lost)).any()):
        return f"exp is 0 for all keys of rows with scores below −87, and 0 / 0 is lost: {_ADVICE}"
    return None


def _overflow(problem: Problem, row_max: Tensor, rows: Tensor, lost: Tensor) -> str | None:
    """A sentence when the rows that are lost are those whose exp no number type can hold."""
    for dtype in dict.fromkeys((torch.float32, problem.query.dtype)):
        info = torch.finfo(dtype)
        high, low = math.log(info.max), math.log(info.tiny)
        # The sum of a row, and its products with value, are larger than its largest exp.
        near = row_max > high - math.log(problem.n_keys) - 2
        beyond = row_max > high + 1
        # Beside rows that a rounded score has put on the other side, all has to fit.
        against = (beyond & ~lost) | (rows & ~((near & lost) | (row_max < low)))
        if bool((beyond & lost).any()) and int(against.sum()) * 20 <= int(rows.sum()):
            return (
                f"exp overflows: rows with scores near or above {high:.0f} are NaN, infinite or 0; "
                f"{_ADVICE}"
            )
    return None


def _cut_off(
    output: str, problem: Problem, numbers: Tensor, rows: Tensor, tolerance: float
) -> float | None:
    """The limit that, put on all scores, gives these numbers in the wrong rows; None for none."""
    plain = unfolded(problem)
    if output not in ("z", "lse") or plain.soft_cap is not None or not bool(rows.any()):
        return None
    scores = plain.scale * plain.query @ plain.key.mT
    bias = torch.zeros_like(scores) if plain.bias is None else plain.bias
    largest = float((scores + bias).max())
    for limit in _LIMITS:
        if limit < largest:
            cut = bias + (limit - scores - bias).clamp_max(0)
            other = by_eager(replace(plain, bias=cut, want={}), torch.float64)[output]
            error = (numbers - other.reshape(numbers.shape)).abs().nan_to_num(math.inf)
            if not bool((error[rows] > tolerance).any()):
                return limit
    return None
