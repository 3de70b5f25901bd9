"""Muon for the matrices of attention and MLPs, AdamW for everything else.

Muon steps along the orthogonal matrix nearest to the momentum (Jordan et al. 2024, "Muon: an
optimizer for hidden layers in neural networks"). In a model of this size the previous-token,
next-token and induction heads then form within a few hundred steps; with AdamW alone they need
thousands. torch.optim.Muon multiplies in bfloat16. On a processor without bfloat16 products that
took half of a training step; in float32 it is a twentieth of that. Matrices of one shape are one
batch here.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minibert.training.recipe import Recipe

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


class Optimizer:
    """The two optimisers as one."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        matrices, tables, vectors = _kinds(model)
        self.recipe = recipe
        muon = Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay)
        groups = [
            {"params": tables, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        adam = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)
        self.parts: tuple[torch.optim.Optimizer, ...] = (muon, adam)
        self.parameters = [*matrices, *tables, *vectors]

    def step(self, step: int) -> None:
        """Clip the gradients, update the weights, and set the gradients to None."""
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        rates = (self.recipe.matrix_rate, self.recipe.rate)
        for part, rate in zip(self.parts, rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * self.recipe.pace(step)
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, object]]:
        """The state of both."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Restore a state that `state_dict` returned."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def _kinds(model: nn.Module) -> tuple[list[nn.Parameter], ...]:
    """The matrices of the layers; embeddings and classifiers; biases and LayerNorms."""
    matrices, tables, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            vectors.append(parameter)
        elif ".attention." in name or ".mlp." in name or name == "head.transform.weight":
            matrices.append(parameter)
        else:
            tables.append(parameter)
    return matrices, tables, vectors
