"""The linear layer: y = activation(x·Wᵀ + b) + residual, on the back end that the rule names.

The rule is in linear_backends.py. Two states are made explicitly, by `minibert.load` or by
`model.pack()`: a weight has a copy packed for oneDNN, or the weights of layers that read the same
x (query, key and value) lie side by side and are multiplied as one. one_matrix.py says how a copy
is kept from going stale. `linear.weight` is always the weight itself; reading it unpacks nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from minibert.layers import linear_backends as backends
from minibert.layers.adjacent import are_adjacent, as_one, joined
from minibert.layers.one_matrix import OneMatrix, PackedWeight
from minibert.quantities import Float

__all__ = ["Linear", "SharedInput", "describe", "is_packed", "linear_is_plain", "pack", "unpack"]

# Side by side saves calls; where the matrices are wider that is nothing.
_SIDE_BY_SIDE = 1 << 20
# Not all are Parameters: torch.func.functional_call puts plain tensors in their place.
_Parameters = Sequence[Tensor | None]


class Mapped(Protocol):
    """What a parameter that is a view of a mapped file carries as `parameter.mapped`."""

    parts: int
    """Parameters that lie side by side in the same pages: 3 for GPT-2's query, key and value."""

    def equals(self, weight: Tensor) -> bool:
        """True when the weight still is what the file holds."""

    def release(self) -> None:
        """Give the pages back to the operating system; they are read again when touched."""


class Linear(nn.Module):
    """activation(x·Wᵀ + b) + residual."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    one_matrix: OneMatrix | None = None
    """The packed copy of the weight, where there is one."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in), requires_grad=False)
        values = nn.Parameter(torch.empty(d_out), requires_grad=False) if bias else None
        self.register_parameter("bias", values)

    def forward(
        self,
        x: Float[Tensor, "*rows d_in"],
        *,
        activation: str | None = None,
        residual: Float[Tensor, "*rows d_out"] | None = None,
    ) -> Float[Tensor, "*rows d_out"]:
        """activation(x·Wᵀ + b) + residual."""
        parameters = self._parameters
        if "weight" not in parameters or "bias" not in parameters:
            # Pruned or parametrized: computed from other parameters each time.
            return backends.torch_linear(x, self.weight, self.bias, activation, residual)
        weight, bias = parameters["weight"], parameters["bias"]
        run, matrix = _plan(x, residual, (weight, bias), self.one_matrix)
        return run(
            x, cast(Tensor, weight) if matrix is None else matrix, bias, activation, residual
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled layer is not packed.
        return {name: value for name, value in self.__dict__.items() if name != "one_matrix"}


def linear_is_plain(module: nn.Module) -> bool:
    """True for a Linear as minibert made it: no hooks, nothing pruned, parametrized or replaced."""
    return (
        type(module) is Linear
        and "weight" in module._parameters
        and "bias" in module._parameters
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
    )


class SharedInput:
    """Linear layers that read the same x (query, key and value), run as one when that is faster."""

    one_matrix: OneMatrix | None = None
    """Their weights as one matrix, where there is one."""

    def __init__(self, linears: tuple[Linear, ...]) -> None:
        self.linears = linears

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or pickled model has its weights apart.
        return SharedInput, (self.linears,)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """One output a linear layer. The layers are plain; see `linear_is_plain`."""
        one = self.one_matrix
        if one is None:
            return tuple([linear.forward(x) for linear in self.linears])
        # Loops and not comprehensions, which are calls of Python.
        parameters = []
        for linear in self.linears:
            parameters.append(linear._parameters["weight"])
        for linear in self.linears:
            parameters.append(linear._parameters["bias"])
        run, matrix = _plan(x, None, parameters, one)
        if matrix is None:
            return tuple([linear.forward(x) for linear in self.linears])
        return run(x, matrix, one.bias, None, None).split(one.widths, dim=-1)


def _plan(
    x: Tensor, residual: Tensor | None, parameters: _Parameters, one: OneMatrix | None
) -> tuple[backends.Run, Tensor | None]:
    """How to multiply, and the one matrix to multiply by; None for each weight as it is."""
    weight = cast(Tensor, parameters[0])
    if (
        not x.is_cpu
        # Where oneDNN's operators do not exist or would be recorded.
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._get_tracing_state() is not None
        # Forward mode (torch.func.jvp) takes no notice of no_grad.
        or forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None
        or x.dtype != weight.dtype
    ):
        return backends.torch_linear, None
    if torch.is_grad_enabled():
        if x.requires_grad or (residual is not None and residual.requires_grad):
            return backends.torch_linear, None
        for parameter in parameters:
            if parameter is not None and parameter.requires_grad:
                return backends.torch_linear, None
    matrix = None if one is None else one.matrix
    if one is not None and matrix is not None:
        for parameter, (source, address, changes) in zip(parameters, one.sources, strict=False):
            if parameter is not source:
                # Another parameter, as in torch.func.functional_call: this call goes without.
                matrix = None
                break
            if source.data_ptr() != address or (changes >= 0 and source._version != changes):
                one.drop()
                matrix = None
                break
        if one.packed and matrix is not None:
            if backends.named() in (None, "onednn-packed"):
                return backends.onednn_linear, matrix
            matrix = None
    if matrix is None and not weight.is_contiguous() and not weight.t().is_contiguous():
        # Columns of a wider matrix, as query is of the c_attn of transformers' GPT-2: oneDNN has
        # no fast way to multiply by those (1,340 ms beside torch's 1.3 for 96 x 768 x 768).
        return backends.torch_linear, None
    size = weight.numel() if matrix is None else matrix.numel()
    return backends.unpacked_run(x.dtype, x.numel() // weight.shape[1], size), matrix


def pack(model: nn.Module, *, from_file: bool = False) -> None:
    """Pack the weights of a model's linear layers for oneDNN where the rule says so.

    Layers that are packed already stay so. `from_file` says that the weights were just read from
    a file and nobody else holds them: then the narrow weights of layers with a SharedInput are
    moved side by side, and only weights whose pages can be given back are packed.
    """
    held = Counter(id(one) for module in model.modules() for one in module._parameters.values())
    for shared in _shared_inputs(model):
        if all(_may_change(linear, held) for linear in shared.linears):
            _put_together(shared, from_file)
    for linear in _linears(model):
        if _may_change(linear, held) and _packs([linear.weight], from_file):
            matrix = _packed([linear.weight], from_file)
            linear.one_matrix = OneMatrix(matrix, None, [linear.weight])


def unpack(model: nn.Module) -> None:
    """Drop every packed copy. The weights themselves were never changed by packing."""
    for holder in _holders(model):
        if holder.one_matrix is not None and holder.one_matrix.packed:
            holder.one_matrix.drop()
            holder.one_matrix = None


def is_packed(model: nn.Module) -> bool:
    """True when some linear layer of the model has a packed copy of its weight."""
    return any(
        one is not None and one.packed and one.matrix is not None
        for one in (holder.one_matrix for holder in _holders(model))
    )


def describe(model: nn.Module) -> str:
    """The back end of a model's largest linear layer, with the processor and the rule."""
    weights = [linear.weight for linear in _linears(model)]
    if not weights:
        return "torch (there is no linear layer)"
    largest = max(weights, key=torch.Tensor.numel)
    if not largest.is_cpu:
        return f"torch (the weights are on {largest.device.type})"
    packed = is_packed(model)
    choice = backends.chosen(largest.dtype, *reversed(largest.shape), rows=None if packed else 128)
    return f"{choice.name} ({backends.processor().name}; rule: {choice.rule})"


def _linears(model: nn.Module) -> Iterator[Linear]:
    return (module for module in model.modules() if isinstance(module, Linear))


def _shared_inputs(model: nn.Module) -> Iterator[SharedInput]:
    values = (value for module in model.modules() for value in vars(module).values())
    return (value for value in values if isinstance(value, SharedInput))


def _holders(model: nn.Module) -> "list[Linear | SharedInput]":
    return [*_shared_inputs(model), *_linears(model)]


def _may_change(linear: Linear, held: Counter[int]) -> bool:
    """True when a matrix may stand for the weight, and no packed one does yet.

    Nothing else in the model holds the weight, and it is not being trained.
    """
    return linear_is_plain(linear) and all(
        one is None
        or (
            one.is_cpu
            and not one.is_inference()
            and not one.requires_grad
            and not isinstance(one, PackedWeight)
            and held[id(one)] == 1
        )
        for one in linear._parameters.values()
    )


def _put_together(shared: SharedInput, from_file: bool) -> None:
    weights = [linear.weight for linear in shared.linears]
    packs, one = _packs(weights, from_file), shared.one_matrix
    if one is not None and one.matrix is not None and not packs:
        return
    biases = [linear.bias for linear in shared.linears if linear.bias is not None]
    if len(biases) not in (0, len(weights)):
        return
    bias = _side_by_side(biases, from_file) if biases else None
    if biases and bias is None:
        return
    if packs:
        matrix: Tensor | None = _packed(weights, from_file)
    else:
        narrow = sum(weight.numel() for weight in weights) <= _SIDE_BY_SIDE
        matrix = _side_by_side(weights, from_file and narrow)
    if matrix is not None:
        shared.one_matrix = OneMatrix(matrix, bias, weights, biases)


def _packs(weights: Sequence[nn.Parameter], from_file: bool) -> bool:
    d_out = sum(len(weight) for weight in weights)
    choice = backends.chosen(weights[0].dtype, weights[0].shape[1], d_out)
    mapped = all(getattr(weight, "mapped", None) is not None for weight in weights)
    return choice.name == "onednn-packed" and (mapped or not from_file)


def _packed(weights: Sequence[nn.Parameter], from_file: bool) -> Tensor:
    matrix = joined([weight.detach() for weight in weights], for_a_moment=True)
    packed = backends.packed_copy(matrix)
    _give_back(weights, from_file)
    return packed


def _side_by_side(parameters: Sequence[nn.Parameter], may_move: bool) -> Tensor | None:
    """The memory that the parameters are views of, one below the other; None where they are not."""
    values = [parameter.detach() for parameter in parameters]
    if are_adjacent(values):
        return as_one(values)
    if not may_move:
        return None
    whole = torch.cat(values)
    for parameter, part in zip(parameters, whole.split([len(v) for v in values]), strict=True):
        parameter.data = part
    _give_back(parameters, True)
    for parameter in parameters:
        vars(parameter).pop("mapped", None)
    return whole


def _give_back(parameters: Sequence[nn.Parameter], as_read: bool) -> None:
    """Give the pages of mapped parameters back to the system, where their file still has them."""
    for parameter in parameters:
        mapped: Mapped | None = getattr(parameter, "mapped", None)
        # Pages that hold other layers' weights too are given back with those or not at all.
        if mapped is None or mapped.parts not in (1, len(parameters)):
            continue
        if as_read or all(_equals_its_file(one) for one in parameters):
            mapped.release()


def _equals_its_file(parameter: nn.Parameter) -> bool:
    mapped: Mapped | None = getattr(parameter, "mapped", None)
    return mapped is not None and mapped.equals(parameter)
