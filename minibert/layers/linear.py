"""The linear layer: y = x·Wᵀ + b, on the back end that is fastest here.

A weight read from a file is a view of the mapped file. Where a derived copy (packed for oneDNN,
or query, key and value side by side) is faster, the copy replaces the pages of the file in
memory, so that no weight is held twice. Whoever takes hold of a weight from outside
(`layer.weight`, `parameters()`, `state_dict()`) may change it unseen; the copy is dropped at
that moment, and made again only when nobody holds the weight and it still equals its file.
"""

import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from minibert.layers import linear_backends as backends
from minibert.layers.adjacent import are_adjacent, as_one, joined
from minibert.quantities import Float

__all__ = ["Linear", "SharedInput", "linear_is_plain"]

_SIDE_BY_SIDE = 1 << 20
_Parts = tuple[Tensor, Tensor | None]
_Plan = tuple[tuple[Any, ...], Callable[..., Tensor], Callable[[], _Parts] | None]


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
        if "weight" in self.watched:
            return self._alone(x, activation, residual)[0]
        # Pruned or parametrized: the weight is computed from other parameters each time.
        return backends.torch_linear(x, self.weight, self.bias, activation, residual)

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


def linear_is_plain(module: nn.Module) -> bool:
    """True for a Linear as minibert made it: no hooks, nothing pruned, parametrized or replaced."""
    return (
        type(module) is Linear
        and "weight" in module.watched
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
    )


class SharedInput:
    """Linear layers that read the same x (query, key and value), run as one when that is faster."""

    def __init__(self, linears: tuple[Linear, ...]) -> None:
        self.linears = linears
        self._watched = tuple(linear.watched for linear in linears)
        self._generation = -1
        self._copy: _Parts | None = None
        self._copyable: bool | None = None
        # (what it is for, how to multiply, by which one matrix): replaced as one, for other
        # threads' sake.
        self._plan: _Plan = ((), backends.torch_linear, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or pickled model derives its own, when it runs.
        return SharedInput, (self.linears,)

    def __call__(
        self, x: Tensor, activation: str | None = None, residual: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """One output a linear layer."""
        if _only_torch(x) or _needs_grad(self._watched, x, residual):
            return self._each(backends.torch_linear, x, activation, residual)
        generation = sum([watched.generation for watched in self._watched])
        rows = x.numel() // x.shape[-1]
        key = (rows, x.dtype, generation, backends.forced(), backends.expected())
        plan = self._plan
        if key != plan[0]:
            plan = self._plan = (key, *self._prepare(*key))
        _, run, one_matrix = plan
        if one_matrix is None:
            return self._each(run, x, activation, residual)
        out = run(x, *one_matrix(), activation, residual)
        return (out,) if len(self.linears) == 1 else out.split(self._splits(), dim=-1)

    def _each(
        self,
        run: Callable[..., Tensor],
        x: Tensor,
        activation: str | None,
        residual: Tensor | None,
    ) -> tuple[Tensor, ...]:
        return tuple([run(x, *parts, activation, residual) for parts in self._parts()])

    def _parts(self) -> list[_Parts]:
        return [(watched.unseen("weight"), watched.unseen("bias")) for watched in self._watched]

    def _splits(self) -> list[int]:
        return [weight.shape[0] for weight, _ in self._parts()]

    def _prepare(
        self,
        rows: int,
        dtype: torch.dtype,
        generation: int,
        forced: str | None,
        expected: int | None,
    ) -> tuple[Callable[..., Tensor], Callable[[], _Parts] | None]:
        """Choose how to multiply this many rows, and copy the weights where that is faster."""
        if generation != self._generation:
            # Somebody may have changed a weight since the copy was made.
            self._copy, self._copyable, self._generation = None, None, generation
        d_in, d_out = self._parts()[0][0].shape[1], sum(self._splits())
        backend = backends.choose(rows, d_in, d_out, dtype)
        if self._copy is None:
            copied = backends.choose(expected, d_in, d_out, dtype) if expected else backend
            if self._worth_copying(copied, d_in * d_out):
                self._copy = self._derive(copied)
            elif backend == "onednn-packed":
                backend = backends.choose(rows, d_in, d_out, dtype, packed=False)
        # A copy that is there is used whatever the number of rows: the weight is held once.
        copy = self._copy
        packed = copy is not None and copy[0].is_mkldnn
        onednn = packed or (backend != "torch" and copy is None)
        run = backends.onednn_linear if onednn else backends.torch_linear
        if copy is not None:
            return run, lambda: copy
        # Where nobody holds a weight, none can be moved away from beside the others.
        together = len(self.linears) > 1 and generation == 0
        together = together and all(are_adjacent(each) for each in zip(*self._parts(), strict=True))
        return run, (self._one_view if together else None)

    def _one_view(self) -> _Parts:
        """The weights as the one matrix they are parts of, where they lie side by side as loaded.

        Made for each call: a view that is kept would count as somebody who holds the weight.
        """
        weights, biases = zip(*self._parts(), strict=True)
        return as_one(weights), None if biases[0] is None else as_one(biases)

    def _worth_copying(self, backend: str, size: int) -> bool:
        # Side by side saves calls; where the matrices are wide that is nothing.
        side_by_side = len(self.linears) > 1 and size <= _SIDE_BY_SIDE
        if not side_by_side and (backend != "onednn-packed" or size < backends.PACK_FROM):
            return False
        if self._copyable is None:
            self._copyable = all(_is_free(linear) for linear in self.linears)
        return self._copyable

    def _derive(self, backend: str) -> _Parts:
        weights, biases = zip(*self._parts(), strict=True)
        size = sum(weight.numel() for weight in weights)
        packs = backend == "onednn-packed" and size >= backends.PACK_FROM
        weight = joined([weight.detach() for weight in weights], for_a_moment=packs)
        bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
        if packs:
            weight = backends.pack(weight)
        for mapped in (getattr(parameter, "mapped", None) for parameter in weights):
            # Pages that hold other layers' weights too are given back with those or not at all.
            if mapped is not None and mapped.parts in (1, len(weights)):
                mapped.release()
        return weight.detach(), bias


def _only_torch(x: Tensor) -> bool:
    """True where oneDNN's operators do not exist or would be recorded: then plain torch runs."""
    return (
        not x.is_cpu
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._get_tracing_state() is not None
    )


def _needs_grad(watched: tuple[_WatchedParameters, ...], *inputs: Tensor | None) -> bool:
    # Forward mode (torch.func.jvp) takes no notice of no_grad.
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    if any(tensor is not None and tensor.requires_grad for tensor in inputs):
        return True
    parameters = [each.unseen(name) for each in watched for name in ("weight", "bias")]
    return any(parameter is not None and parameter.requires_grad for parameter in parameters)


def _is_free(linear: Linear) -> bool:
    """True when a copy can stand for the weight: nobody else holds it, and it is as loaded."""
    weight, bias = linear.watched.unseen("weight"), linear.watched.unseen("bias")
    if weight.is_inference() or (bias is not None and bias.is_inference()):
        return False
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
