"""How the weights of linear layers lie in memory: packed for oneDNN, side by side, or apart.

`minibert.load` and `model.pack()` pack by the rule in linear_backends.py; a copy lies apart.
"""

import math
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from sys import getrefcount
from typing import Protocol

import torch
from torch import Tensor, nn

from minibert.layers import linear_backends as backends
from minibert.layers.linear import (
    Linear,
    OneMatrix,
    PackedWeight,
    SharedInput,
    linear_is_plain,
)


def are_adjacent(tensors: Sequence[Tensor | None]) -> bool:
    """True when each lies right behind the one before, as in GPT-2's files; or all are None."""
    if all(each is None for each in tensors):
        return True
    there = [each for each in tensors if each is not None]
    first = there[0]
    shape, strides = _whole(there), first.stride()
    step = first.shape[0] * strides[0] * first.element_size()
    room = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (
        len(there) == len(tensors)
        and last < room
        and all(
            (each.shape, each.stride()) == (first.shape, strides)
            and each.data_ptr() == first.data_ptr() + i * step
            for i, each in enumerate(there)
        )
    )


def as_one(tensors: Sequence[Tensor]) -> Tensor:
    """A view of adjacent tensors as one, below one another."""
    return tensors[0].as_strided(_whole(tensors), tensors[0].stride())


def _whole(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return (len(tensors) * tensors[0].shape[0], *tensors[0].shape[1:])


def joined(weights: Sequence[Tensor], *, for_a_moment: bool) -> Tensor:
    """A copy of the weights below one another, in one piece of memory; one alone is not copied."""
    if len(weights) == 1 and (weights[0].is_contiguous() or not for_a_moment):
        return weights[0]
    if not for_a_moment:
        return torch.cat(list(weights))
    shape = (sum(len(weight) for weight in weights), weights[0].shape[1])
    # malloc keeps what is freed between longer-lived blocks: a fifth of a GPT-2. This goes back.
    buffer = mmap.mmap(-1, math.prod(shape) * weights[0].element_size())
    whole = torch.frombuffer(buffer, dtype=weights[0].dtype).view(shape)
    return torch.cat(list(weights), out=whole)


# Side by side saves calls; where the matrices are wider that is nothing.
_SIDE_BY_SIDE = 1 << 20


class Mapped(Protocol):
    """What a parameter that is a view of a mapped file carries as `parameter.mapped`."""

    parts: int
    """Parameters that lie side by side in the same pages: 3 for GPT-2's query, key and value."""

    def equals(self, weight: Tensor) -> bool:
        """True when the weight still is what the file holds."""

    def release(self) -> None:
        """Give the pages back to the operating system; they are read again when touched."""


def pack(model: nn.Module, *, from_file: bool = False) -> None:
    """Pack the weights of a model's linear layers for oneDNN where the rule says so.

    Layers that are packed already stay so, and a weight whose memory somebody else holds is not
    packed. `from_file` says that the weights were just read from a file and nobody else holds them:
    then the narrow weights of layers with a SharedInput are moved side by side, and only weights
    whose pages can be given back are packed.
    """
    held = Counter(id(one) for module in model.modules() for one in module._parameters.values())
    lent = set() if from_file else _lent(model)
    for holder in _holders(model):
        linears = holder.linears if isinstance(holder, SharedInput) else (holder,)
        if not all(_may_change(linear, held, lent) for linear in linears):
            continue
        weights = [linear.weight for linear in linears]
        if _packs(weights, from_file):
            _lay(holder, "packed", from_file=from_file, moves=from_file)
        elif isinstance(holder, SharedInput) and not _stands(holder):
            narrow = sum(weight.numel() for weight in weights) <= _SIDE_BY_SIDE
            _lay(holder, "side by side", from_file=from_file, moves=from_file and narrow)


def unpack(model: nn.Module) -> None:
    """Drop every packed copy. The weights themselves were never changed by packing."""
    for holder in _holders(model):
        if holder.one_matrix is not None and holder.one_matrix.packed:
            holder.one_matrix.drop()
            holder.one_matrix = None


def is_packed(model: nn.Module) -> bool:
    """True when some linear layer of the model has a packed copy of its weight."""
    return "packed" in layout(model)


def describe(model: nn.Module) -> str:
    """The back end of a model's largest linear layer, with the processor and the rule."""
    weights = [linear.readable for linear in _linears(model)]
    if not weights:
        return "torch (there is no linear layer)"
    largest = max(weights, key=torch.Tensor.numel)
    if not largest.is_cpu:
        return f"torch (the weights are on {largest.device.type})"
    packed = is_packed(model)
    choice = backends.chosen(largest.dtype, *reversed(largest.shape), rows=None if packed else 128)
    return f"{choice.name} ({backends.processor().name}; rule: {choice.rule})"


def layout(model: nn.Module) -> tuple[str, ...]:
    """How the weights of each linear layer lie: "apart", "side by side" or "packed"."""
    return tuple(
        "apart" if (one := _stands(holder)) is None else "packed" if one.packed else "side by side"
        for holder in _holders(model)
    )


def lay_out(model: nn.Module, wanted: Sequence[str]) -> None:
    """Lay the weights of a copy as `layout` says of its model, so that both give the same bits.

    A copied or pickled model has its weights apart.
    """
    for holder, how in zip(_holders(model), wanted, strict=True):
        if how != "apart":
            _lay(holder, how, from_file=True, moves=True)


def _lay(holder: Linear | SharedInput, how: str, *, from_file: bool, moves: bool) -> None:
    """Lay the weights of a layer, or of layers with one input, packed or side by side if they can.

    `moves` says whether they may be put there.
    """
    shared = isinstance(holder, SharedInput)
    linears = holder.linears if isinstance(holder, SharedInput) else (holder,)
    weights = [linear.weight for linear in linears]
    # A layer by itself adds its own bias.
    biases = [one.bias for one in linears if one.bias is not None] if shared else []
    if len(biases) not in (0, len(weights)):
        return
    bias = _side_by_side(biases, from_file) if biases else None
    if biases and bias is None:
        return
    packed = how == "packed"
    matrix = _packed(weights, from_file) if packed else _side_by_side(weights, moves)
    if matrix is not None:
        holder.one_matrix = OneMatrix(matrix, bias, weights, biases)


def _linears(model: nn.Module) -> Iterator[Linear]:
    return (module for module in model.modules() if isinstance(module, Linear))


def _shared_inputs(model: nn.Module) -> Iterator[SharedInput]:
    values = (value for module in model.modules() for value in vars(module).values())
    return (value for value in values if isinstance(value, SharedInput))


def _holders(model: nn.Module) -> "list[Linear | SharedInput]":
    return [*_shared_inputs(model), *_linears(model)]


def _stands(holder: Linear | SharedInput) -> OneMatrix | None:
    one = holder.one_matrix
    return one if one is not None and one.stands else None


def _may_change(linear: Linear, held: Counter[int], lent: set[int]) -> bool:
    """True when a matrix may stand for the weight, and no packed one does yet.

    Nothing else in the model holds the weight, nobody outside of it holds the memory, and it is not
    being trained.
    """
    return linear_is_plain(linear) and all(
        one is None
        or (
            type(one) is not PackedWeight
            and one.is_cpu
            and not one.is_inference()
            and not one.requires_grad
            and held[id(one)] == 1
            and id(one) not in lent
        )
        for one in linear._parameters.values()
    )


def _lent(model: nn.Module) -> set[int]:
    """The parameters whose memory something outside of the model holds, and may write to unseen.

    Torch counts who holds a tensor and its memory. Memory that is an array's too cannot be resized;
    nor can that of a mapped file, which nobody writes to.
    """
    with torch._C.DisableTorchFunctionSubclass():
        parameters = [one for one in model.parameters() if one.is_cpu]
        own: list[Tensor | None] = [*parameters]
        for one in filter(None, (holder.one_matrix for holder in _holders(model))):
            own += [one.bias, *(alias for _, alias, _ in one.sources)]
            own += [] if one.packed else [one.matrix]
        uses = Counter(one.untyped_storage()._cdata for one in own if one is not None)

        nobody_else = torch.empty(1)
        alone = nobody_else.untyped_storage()

        def is_lent(parameter: nn.Parameter) -> bool:
            storage = parameter.untyped_storage()
            # One use is that of `storage`.
            users = torch._C._storage_Use_Count(storage._cdata) - 1
            return (
                users > uses[storage._cdata]
                or parameter._use_count() > 1  # type: ignore[attr-defined]
                or getrefcount(storage) > getrefcount(alone)
                or (not storage.resizable() and getattr(parameter, "mapped", None) is None)
            )

        return {id(one) for one in parameters if is_lent(one)}


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
