"""Is everything off by one factor, of the output or of the scale, or by one number that is added?

A factor moves all numbers in the direction that the right answer gives, an added number moves all
alike; rounding moves each number in a direction of its own.
"""

from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem, truth

#: The step by which the scale is moved to see what a little more of it does.
_STEP = 1e-4
#: What a factor leaves unexplained of an error that it makes: its second order, and rounding.
_LEFT = 0.1
#: A factor of what has one sign, as lse nearly has, looks like something added.
_BOTH_SIGNS = ("z", "scores")


def factor_cause(output: str, problem: Problem, found: Tensor, expected: Tensor) -> str | None:
    """A sentence that names what gives nearly all of the error: a factor or what is added."""
    finite = expected.isfinite() & found.isfinite()
    if output not in _BOTH_SIGNS or not bool(finite.any()):
        return None
    right = expected[finite].double()
    error = found[finite].double() - right
    if (factor := factor_of(found[finite].double(), right)) is not None:
        return f"everywhere {factor:.5g} times what is right: a factor at the end is wrong"
    more = truth(replace(problem, scale=problem.scale * (1 + _STEP)))[output][finite].double()
    if (scale := _share(error, (more - right) / _STEP)) is not None:
        return (
            f"wrong scale: it behaves as {round(1 + scale, 4):g} times `scale`, everywhere; a "
            "rounded constant, or log2(e) with too few digits"
        )
    if _share(error, torch.ones_like(error)) is not None:
        return f"about {float(error.mean()):.2g} is added everywhere"
    return None


def factor_of(found: Tensor, right: Tensor) -> float | None:
    """How many times what is right was found, where that explains both it and its error."""
    share = _share(found - right, right)
    if share is None:
        return None
    factor = round(1 + share, 9)
    # Of numbers that are too small altogether the error is what is right, whatever they are.
    left = torch.linalg.vector_norm(found - factor * right)
    return factor if left < _LEFT * torch.linalg.vector_norm(found) else None


def _share(error: Tensor, direction: Tensor) -> float | None:
    """How often the direction is in the error, where that explains it; None where it does not."""
    size = torch.linalg.vector_norm(direction).square()
    if not bool(size > 0):
        return None
    share = error @ direction / size
    left = torch.linalg.vector_norm(error - share * direction)
    return float(share) if left < _LEFT * torch.linalg.vector_norm(error) else None
