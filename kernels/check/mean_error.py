"""Is z off by more than rounding on average? Many small errors show where no large one does.

`tolerances.py` allows each value what the worst rounding can do to it. A factor, something added,
or sums in too few digits stay within that in float16 and bfloat16, and show in the mean.
"""

from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.call import wide
from minibert.kernels.check.causes import explains, factor_cause, likely_cause
from minibert.kernels.check.faults import suspects
from minibert.kernels.check.problem import Problem, by_eager, unfolded
from minibert.kernels.check.tolerances import TIMES_EAGER, mean_distance

#: A value that is off by as many times the allowed mean error is not off by rounding.
_FAR = 6.0


def mean_tolerance(problem: Problem, yardstick: Tensor, right: Tensor) -> float:
    """Twice the mean error of torch eager's z (`yardstick`), and at least the floor of rounding."""
    return max(TIMES_EAGER * mean_distance(yardstick, right), _floor(problem))


def _floor(problem: Problem) -> float:
    """The root mean square error of z that a kernel right in every step may have.

    u is the unit roundoff of the dtype, w that of the accumulator, as in `tolerances.floors`.
    Rounding errors of different terms are independent (Higham & Mary 2019), so that they add up by
    their squares: u·√(Σ p²·value²) of the probs, each rounded once, and u·|z|. A score, a sum of
    d_head terms of which A is the sum of the absolute values, is off by w·√d_head·A, which moves z
    by w·√d_head·A·√(Σ p²·(value − z)²); its constants, which are the same for all keys, by
    w·A·Σ p·|value|; and K sums of p·value by w·√K·Σ p·|value|.
    """
    plain = unfolded(problem)
    (D, K), scale = (problem.query.shape[3], problem.n_keys), abs(plain.scale)
    dtype = problem.query.dtype
    unit, fine = (torch.finfo(one).eps / 2 for one in (dtype, wide(dtype)))
    probs, value = by_eager(replace(plain, want={}), torch.float64)["probs"], plain.value
    z, squared = probs @ value, probs.square()
    size, spread = probs @ value.abs(), squared @ value.square()
    apart = spread - 2 * z * (squared @ value) + z.square() * squared.sum(-1, keepdim=True)
    largest = scale * (plain.query.abs() @ plain.key.abs().mT).amax(-1, keepdim=True)
    if plain.bias is not None:
        largest = largest + plain.bias.abs().amax(-1, keepdim=True)
    rounded = unit * (spread.sqrt() + z.abs())
    of_scores = fine * largest * (D**0.5 * apart.clamp_min(0).sqrt() + size)
    return float((rounded + of_scores + fine * K**0.5 * size).square().mean().sqrt())


def mean_cause(
    output: str,
    problem: Problem,
    found: Tensor,
    right: Tensor,
    *,
    allowed: float,
    previous: Tensor | None,
) -> str:
    """A sentence that says what is probably wrong.

    Where a few large errors are most of it, that of `likely_cause`; else the known mistake, the
    factor or the added number that is nearest.
    """
    error = found.to(right.dtype) - right
    squared, far = error.square(), error.abs() > _FAR * allowed
    if not bool(squared[~far].sum() > squared.sum() / 2):
        least = _FAR * allowed
        return likely_cause(output, problem, found, right, tolerance=least, previous=previous)
    share, added = float((error * right).sum() / right.square().sum()), float(error.mean())
    tried = [
        (right * (1 + share), f"everywhere about {1 + share:.4g} times what is right"),
        (right + added, f"about {added:.2g} is added everywhere"),
    ]
    for suspect in suspects(problem):
        other = suspect.gives(output)
        if other is not None and other.shape == found.shape and not bool(other.isnan().any()):
            tried.append((other, suspect.sentence))
    nearest, sentence = min(tried, key=lambda one: mean_distance(found, one[0]))
    if explains(found, nearest, right):
        return sentence
    return factor_cause(output, problem, found, right, _FAR * allowed) or (
        "off by more than rounding gives, on average over all values: sums or probs held in too "
        "few digits?"
    )
