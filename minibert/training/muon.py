"""Muon in the precision of the weights.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
torch.optim.Muon multiplies in bfloat16. On a processor without bfloat16 products that took half of
a training step; in float32 it is a twentieth of that. Matrices of one shape are one batch here.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Muon", "orthogonal"]

# The quintic polynomial of Jordan et al.: five rounds bring singular values between 0.7 and 1.2.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5
_SMALLEST = 1e-7


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonal matrix nearest to the Nesterov momentum, with decoupled decay."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the matrices that have a gradient."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[tuple(matrix.shape)].append(matrix)
            for (rows, columns), matrices in alike.items():
                wanted = torch.stack([self._direction(m, group["momentum"]) for m in matrices])
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, direction in zip(matrices, orthogonal(wanted), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.sub_(direction, alpha=rate)

    def _direction(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """The gradient mixed with its running mean."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        mean: Tensor = state["momentum_buffer"]
        mean.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Near-orthogonal matrices in the directions of these, [matrix, row, column], by Newton-Schulz.

    The singular vectors stay; the singular values come to lie between 0.7 and 1.2.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(_SMALLEST)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x
