"""Autograd functions on tensors without numbers: torch's own engine would ask a GPU's driver.

So nothing is recorded, while who asks is told that it is. In `recorded_functions` an autograd
function runs its forward at once and is kept; `run_backward` then runs its backward with gradients
of the right shapes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["Kept", "recorded_functions", "run_backward"]


class Kept:
    """The context of one autograd function, as its forward and backward use it."""

    def __init__(self, function: Any, given: tuple[Any, ...]) -> None:
        self.function = function
        self.needs_input_grad = tuple(
            isinstance(one, Tensor) and one.requires_grad for one in given
        )
        self.saved_tensors: tuple[Any, ...] = ()
        self.outputs: tuple[Any, ...] = ()
        self.constant: list[Any] = []

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant += tensors

    def set_materialize_grads(self, _: bool) -> None:
        pass


@contextlib.contextmanager
def recorded_functions() -> Iterator[list[Kept]]:
    """In here `Function.apply` runs the forward alone; the list has what was applied."""
    kept: list[Kept] = []

    def apply(function: Any, *given: Any) -> Any:
        context = Kept(function, given)
        # Inside a function torch records nothing, and says so.
        with patch.object(torch, "is_grad_enabled", lambda: False):
            if function.setup_context is not Function.setup_context:
                found = function.forward(*given)
                function.setup_context(context, given, found)
            else:
                found = function.forward(context, *given)
        context.outputs = found if isinstance(found, tuple) else (found,)
        kept.append(context)
        return found

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(patch.object(torch, "is_grad_enabled", lambda: True))
        stack.enter_context(patch.object(Function, "apply", classmethod(apply)))
        yield kept


def run_backward(kept: Kept) -> tuple[Any, ...]:
    """The gradients of the inputs, from one of each output that has one."""
    with torch.no_grad():
        given = [
            torch.empty_like(one) if _has_gradient(one, kept) else None for one in kept.outputs
        ]
        found = kept.function.backward(kept, *given)
    return found if isinstance(found, tuple) else (found,)


def _has_gradient(output: Any, kept: Kept) -> bool:
    return isinstance(output, Tensor) and not any(output is one for one in kept.constant)
