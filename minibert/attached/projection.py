"""The output projection of each attention module, found by what it is given.

A module whose input is z itself, heads side by side, writes the sum over heads of z · W_O plus its
bias. Two things are checked: what it wrote, and that the attention module around it returns this
unchanged. Where z is first gated, normalised or mixed, no module has that input, and the output
does not divide into heads.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from minibert.attached.call import Call
from minibert.errors import TraceError

# Of the largest number that is written: rounding of the sum over heads.
_LEAST_ERROR, _ROUNDINGS = 1e-5, 64


@dataclass(frozen=True)
class Projection:
    """W_O of an attention module, or why there is none."""

    module: nn.Module | None = None
    transposed: bool = False
    """The weight is (in, out), as transformers' Conv1D has it, and not (out, in)."""
    problem: str = (
        "no module of the model is given z alone, as it is: z is gated, normalised or mixed before "
        "the output projection, so that what a head writes is not known. Read z"
    )

    def of_heads(self, z: Tensor, heads: slice, n_heads: int) -> Tensor:
        """z · W_O of some heads, (batch, head, position, d_model); `z` has these heads."""
        if self.module is None:
            raise TraceError(f"head_out: {self.problem}.")
        weight: Any = self.module.weight
        # What is read of a pass without gradients has none.
        weight = weight if z.requires_grad else weight.detach()
        by_input = weight if self.transposed else weight.T
        per_head = by_input.unflatten(0, (n_heads, -1))[heads]
        return z @ per_head


class Projections:
    """A listener for the modules that are given z, in the first run of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.found: dict[int, Projection] = {}
        self._model, self._thread = model, 0
        self._waiting: dict[int, Call] = {}
        self._written: dict[int, Tensor] = {}

    def of(self, module: nn.Module) -> Projection:
        """The output projection of an attention module."""
        return self.found.get(id(module), Projection())

    def expect(self, call: Call) -> None:
        """z of this call may come to a projection from now on."""
        if isinstance(call.out, Tensor) and call.out.dim() == 4:
            self._waiting[id(call.module)] = call

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Compare the inputs of modules in this thread with z while the block runs."""
        self._thread = get_ident()
        with ExitStack() as undo:
            undo.callback(self._waiting.clear)
            undo.callback(self._written.clear)
            for module in self._model.modules():
                undo.callback(module.register_forward_hook(self._look).remove)
            yield

    def _look(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if get_ident() != self._thread:
            return
        if (own := self._written.pop(id(module), None)) is not None:
            self._check_given_out(module, own, output)
        weight = getattr(module, "weight", None)
        tensors = isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor)
        if not tensors or not isinstance(weight, Tensor) or weight.dim() != 2:
            return
        for where, call in [*self._waiting.items()]:
            if _is_z(inputs[0], call):
                self.found[where] = _checked(module, call, output)
                del self._waiting[where]
                if any(one is module for one in call.module.modules()):
                    self._written[where] = output

    def _check_given_out(self, module: nn.Module, written: Tensor, output: Any) -> None:
        """Refuse head_out where the attention module does not return its projection's output."""
        out = output[0] if isinstance(output, tuple | list) and output else output
        same = isinstance(out, Tensor) and out.numel() == written.numel()
        if self.found[id(module)].module is not None and not (
            same and torch.equal(out.reshape(written.shape), written)
        ):
            self.found[id(module)] = Projection(
                problem=f"{type(module).__name__} changes what its output projection writes"
            )


def _is_z(given: Tensor, call: Call) -> bool:
    """True where a module is given z of this call, heads side by side."""
    z = call.out.flatten(2)
    if given.numel() != z.numel() or given.shape[-1] != z.shape[-1]:
        return False
    return given.data_ptr() == z.data_ptr() or torch.equal(given.reshape(z.shape), z)


def _checked(module: Any, call: Call, output: Tensor) -> Projection:
    """The module as the projection of a call, where its heads add up to what it wrote."""
    name = type(module).__name__
    width = call.out.flatten(2).shape[-1]
    z, heads = call.out.transpose(1, 2), call.out.shape[2]
    for transposed in (False, True):
        if module.weight.shape[0 if transposed else 1] != width:
            continue
        one = Projection(module, transposed, "")
        with torch.no_grad():
            written = one.of_heads(z, slice(None), heads).sum(1)
            bias = getattr(module, "bias", None)
            written = written if bias is None else written + bias
            same = output.numel() == written.numel()
            own = output.detach().reshape(written.shape) if same else None
        if own is None:
            continue
        error = max(_LEAST_ERROR, _ROUNDINGS * torch.finfo(own.dtype).eps)
        if float((written - own).abs().nan_to_num(torch.inf).max()) <= error * max(
            1.0, float(own.abs().nan_to_num(0).max())
        ):
            return one
    return Projection(
        problem=f"{name} is given z, and the heads' z · W_O do not add up to what it writes"
    )
