"""Muon for the matrices of attention and MLPs, AdamW for everything else.

Muon steps along the orthogonal matrix nearest to the momentum (Jordan et al. 2024, "Muon: an
optimizer for hidden layers"). In a model of this size the previous-token, next-token and induction
heads then form within a few hundred steps; with AdamW alone they need thousands.
"""

from typing import Any

import torch
from torch import nn

from minibert.training.muon import Muon
from minibert.training.recipe import Recipe

__all__ = ["Optimizer"]


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

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of both."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
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
