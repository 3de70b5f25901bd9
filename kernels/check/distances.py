"""How far two tensors of numbers are apart, at worst and on average."""

import math

import torch
from torch import Tensor


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; an infinity where one is NaN or infinite and not both."""
    return float(_apart(found, expected).max())


def mean_distance(found: Tensor, expected: Tensor) -> float:
    """The root mean square of the differences, infinite as `distance` is."""
    return float(torch.linalg.vector_norm(_apart(found, expected))) / found.numel() ** 0.5


def _apart(found: Tensor, expected: Tensor) -> Tensor:
    found = found.to(expected.dtype)
    same = found == expected
    return (found - expected).abs().nan_to_num(math.inf, math.inf).masked_fill(same, 0)
