"""A backward called by hand, held to float64 and to what rounding explains."""

import torch
from torch import Tensor

from minibert.kernels.check.gradients import eager_gradients, gradient_tolerances
from minibert.kernels.check.problem import Problem, distance


def check_gradients(
    found: dict[str, Tensor], problem: Problem, *, lse_gradient: Tensor | None = None
) -> None:
    """Each gradient, by the names of `eager_gradients`, is within its tolerance."""
    expected = eager_gradients(problem, torch.float64, lse_gradient=lse_gradient)
    allowed = gradient_tolerances(problem, lse_gradient=lse_gradient)
    for name, gradient in found.items():
        error = distance(gradient, expected[name])
        said = f"off by {error:.3g}, rounding explains {allowed[name]:.3g}"
        assert error <= allowed[name], f"The gradient of {name} is wrong: {said}"
