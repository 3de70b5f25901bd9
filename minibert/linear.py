"""The linear layer: y = x·Wᵀ + b, on the back end that is fastest here.

A weight read from a file is a view of the mapped file. Where a derived copy (packed for oneDNN,
or query, key and value side by side) is faster, the copy replaces the pages of the file in
memory, so that no weight is held twice. Whoever takes hold of a weight from outside
(`layer.weight`, `parameters()`, `state_dict()`) may change it unseen; the copy is dropped at
that moment, and made again only when nobody holds the weight and it still equals its file.
"""

import sys
from collections.abc import Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from minibert import backends
from minibert.axes import Float

__all__ = ["Linear", "SharedInput"]


class Mapped(Protocol):
    """What a parameter that is a view of a mapped file carries as `parameter.mapped`."""

    parts: int
    """Parameters that lie side by side in the same pages: 3 for GPT-2's query, key and value."""

    def equals(self, weight: Tensor) -> bool:
        """True when the weight still is what the file holds."""

    def release(self) -> None:
        """Give the pages back to the operating system; they are read again when touched."""


class _WatchedParameters(dict[str, Any]):
    """A module's parameters. `generation` grows whenever somebody may have taken hold of one.

    Not all are Parameters: torch.func.functional_call puts plain tensors here while it runs.
    """

    generation = 0

    def __getitem__(self, name: str) -> Any:
        self.generation += 1
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.generation += 1
        return super().get(name, default)

    def __setitem__(self, name: str, parameter: Any) -> None:
        self.generation += 1
        super().__setitem__(name, parameter)

    def items(self) -> Any:
        self.generation += 1
        return super().items()

    def values(self) -> Any:
        self.generation += 1
        return super().values()

    def unseen(self, name: str) -> Any:
        """The parameter or None, for use where nobody can take hold of it."""
        return super().__getitem__(name)


class Linear(nn.Module):
    """activation(x·Wᵀ + b) + residual."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True) -> None:
        super().__init__()
        self._parameters = cast(Any, _WatchedParameters())
        self.weight = nn.Parameter(torch.empty(d_out, d_in), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(d_out), requires_grad=False) if bias else None
        if not bias:
            self._parameters["bias"] = None
        self._alone = SharedInput((self,))

    @property
    def watched(self) -> _WatchedParameters:
        """The parameters, with the count of the times they were handed out."""
        return cast(_WatchedParameters, self.__dict__["_parameters"])

    def forward(
        self,
        x: Float[Tensor, "*rows d_in"],
        *,
        activation: str | None = None,
        residual: Float[Tensor, "*rows d_out"] | None = None,
    ) -> Float[Tensor, "*rows d_out"]:
        """activation(x·Wᵀ + b) + residual."""
        return self._alone(x, activation, residual)[0]

    def seal(self) -> None:
        """Say that the parameters are as loaded and that nobody outside holds them."""
        self.watched.generation = 0

    def __getstate__(self) -> dict[str, Any]:
        # A shallow copy holds the same parameters.
        self.watched.generation += 1
        state = dict(self.__dict__)
        state.pop("_alone")
        state["_parameters"] = dict(self.watched)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        parameters = _WatchedParameters()
        parameters.update(state["_parameters"])
        self._parameters = cast(Any, parameters)
        self._alone = SharedInput((self,))


class SharedInput:
    """Linear layers that read the same x (query, key and value), run as one when possible."""

    def __init__(self, linears: tuple[Linear, ...]) -> None:
        self.linears = linears
        self._generation = -1
        self._copy: tuple[str, Tensor, Tensor | None] | None = None
        self._splits: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or pickled model derives its own, when it runs.
        return SharedInput, (self.linears,)

    def __call__(
        self, x: Tensor, activation: str | None = None, residual: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """One output a linear layer."""
        if not x.is_cpu or torch.compiler.is_compiling() or _needs_grad(self.linears, x, residual):
            return self._each("torch", x, activation, residual)
        if self._generation != sum(linear.watched.generation for linear in self.linears):
            self._settle()
        rows, d_in = x.numel() // x.shape[-1], x.shape[-1]
        backend = self._choose(rows, d_in, x.dtype)
        if self._copy is None and self._worth_copying(backend):
            self._copy = self._derive(backend)
        if self._copy is None:
            return self._each(backend, x, activation, residual)
        kind, weight, bias = self._copy
        run = backends.torch_linear if kind == "torch" else backends.onednn_linear
        return run(x, weight, bias, activation, residual).split(self._splits, dim=-1)

    def _each(
        self, backend: str, x: Tensor, activation: str | None, residual: Tensor | None
    ) -> tuple[Tensor, ...]:
        run = backends.torch_linear if backend == "torch" else backends.onednn_linear
        return tuple(run(x, *parts, activation, residual) for parts in self._parts())

    def _choose(self, rows: int, d_in: int, dtype: torch.dtype) -> str:
        key = (rows, dtype, backends._forced)
        if key != self._choice_key:
            self._choice = backends.choose(rows, d_in, sum(self._splits), dtype)
            self._choice_key = key
        return self._choice

    _choice = "torch"
    _choice_key: tuple[Any, ...] = ()

    def _parts(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for linear in self.linears:
            yield linear.watched.unseen("weight"), linear.watched.unseen("bias")

    def _settle(self) -> None:
        """Forget the copy: somebody may have changed a weight since it was made."""
        self._generation = sum(linear.watched.generation for linear in self.linears)
        self._copy = None
        self._splits = [weight.shape[0] for weight, _ in self._parts()]
        self._copyable: bool | None = None

    def _worth_copying(self, backend: str) -> bool:
        if backend != "onednn-packed" and len(self.linears) == 1:
            return False
        if self._copyable is None:
            self._copyable = all(_is_free(linear) for linear in self.linears)
        return self._copyable

    def _derive(self, backend: str) -> tuple[str, Tensor, Tensor | None]:
        weights, biases = zip(*self._parts(), strict=True)
        weight = weights[0] if len(weights) == 1 else torch.cat([w.detach() for w in weights])
        bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
        if backend == "onednn-packed" and weight.numel() >= backends.PACK_FROM:
            weight = backends.pack(weight)
        for mapped in (getattr(parameter, "mapped", None) for parameter in weights):
            # Pages that hold other layers' weights too are given back with those or not at all.
            if mapped is not None and mapped.parts == len(weights):
                mapped.release()
        return ("torch" if backend == "torch" else "onednn"), weight.detach(), bias


def _needs_grad(linears: tuple[Linear, ...], *inputs: Tensor | None) -> bool:
    # Forward mode (torch.func.jvp) takes no notice of no_grad.
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    if any(tensor is not None and tensor.requires_grad for tensor in inputs):
        return True
    return any(
        parameter is not None and parameter.requires_grad
        for linear in linears
        for parameter in (linear.watched.unseen("weight"), linear.watched.unseen("bias"))
    )


def _is_free(linear: Linear) -> bool:
    """True when a copy can stand for the weight: nobody else holds it, and it is as loaded."""
    weight, bias = linear.watched.unseen("weight"), linear.watched.unseen("bias")
    # Three references: the module's, the name here, and the argument of getrefcount.
    if sys.getrefcount(weight) > 3 or (bias is not None and sys.getrefcount(bias) > 3):
        return False
    mapped: Mapped | None = getattr(weight, "mapped", None)
    untouched = linear.watched.generation == 0
    if mapped is None and not (untouched and weight.numel() < backends.PACK_FROM):
        return False
    if _has_alias(weight) or (bias is not None and _has_alias(bias)):
        return False
    if mapped is None or untouched:
        return weight._version == 0
    return weight._version == 0 and mapped.equals(weight)


def _has_alias(parameter: Tensor) -> bool:
    """True when another tensor or array may share the memory: `.data`, a view, a state dict."""
    # Two owners: the parameter, and the handle of its storage made here.
    owners: int = torch._C._storage_Use_Count(parameter.untyped_storage()._cdata)
    handles: int = parameter._use_count() if hasattr(parameter, "_use_count") else 1
    return owners > 2 or handles > 1 or parameter.is_shared()
