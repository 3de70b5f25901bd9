"""Packs the weights of linear layers for oneDNN, and takes that back.

`minibert.load` and `model.pack()` pack by the rule in linear_backends.py; a copy is not packed.
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


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """The weights below one another, in one piece of memory, to be read once."""
    if len(weights) == 1 and weights[0].is_contiguous():
        return weights[0]
    shape = (sum(len(weight) for weight in weights), weights[0].shape[1])
    # malloc keeps what is freed between longer-lived blocks: a fifth of a GPT-2. This goes back.
    buffer = mmap.mmap(-1, math.prod(shape) * weights[0].element_size())
    whole = torch.frombuffer(buffer, dtype=weights[0].dtype).view(shape)
    return torch.cat(list(weights), out=whole)


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
    then only weights whose pages can be given back are packed.
    """
    held = Counter(id(one) for module in model.modules() for one in module._parameters.values())
    lent = set() if from_file else _lent(model)
    for holder in _holders(model):
        linears = _linears_of(holder)
        if all(_may_change(linear, held, lent) for linear in linears):
            weights = [linear.weight for linear in linears]
            if _packs(weights, from_file):
                _pack(holder, from_file)


def unpack(model: nn.Module) -> None:
    """Drop every packed copy. The weights themselves were never changed by packing."""
    for holder in _holders(model):
        if holder.one_matrix is not None:
            holder.one_matrix.drop()
            holder.one_matrix = None


def is_packed(model: nn.Module) -> bool:
    """True when some linear layer of the model has a packed copy of its weight."""
    return any(layout(model))


def describe(model: nn.Module) -> str:
    """The back end of a model's largest linear layer, with the processor and the rule."""
    weights = [linear.readable for linear in _linears(model)]
    if not weights:
        return "torch (there is no linear layer)"
    largest = max(weights, key=torch.Tensor.numel)
    if not largest.is_cpu:
        return f"torch (the weights are on {largest.device.type})"
    choice = backends.chosen(largest.dtype, *reversed(largest.shape))
    if choice.name != "torch" and not is_packed(model):
        return f"torch ({backends.processor().name}; rule: the weights are not packed)"
    return f"{choice.name} ({backends.processor().name}; rule: {choice.rule})"


def layout(model: nn.Module) -> tuple[bool, ...]:
    """Of each linear layer, and of each group with one input, whether it is packed."""
    return tuple(
        holder.one_matrix is not None and holder.one_matrix.stands for holder in _holders(model)
    )


def _pack(holder: Linear | SharedInput, from_file: bool) -> None:
    """Make a packed copy of the weights of a layer, or of layers with one input if it can be."""
    linears = _linears_of(holder)
    weights = [linear.weight for linear in linears]
    # A layer by itself adds its own bias.
    shared = isinstance(holder, SharedInput)
    biases = [one.bias for one in linears if one.bias is not None] if shared else []
    if len(biases) not in (0, len(weights)):
        return
    matrix = backends.packed_copy(_joined([weight.detach() for weight in weights]))
    _give_back(weights, from_file)
    bias = _side_by_side(biases) if biases else None
    holder.one_matrix = OneMatrix(matrix, bias, weights, biases)


def _linears_of(holder: Linear | SharedInput) -> tuple[Linear, ...]:
    return holder.linears if isinstance(holder, SharedInput) else (holder,)


def _linears(model: nn.Module) -> Iterator[Linear]:
    return (module for module in model.modules() if isinstance(module, Linear))


def _shared_inputs(model: nn.Module) -> Iterator[SharedInput]:
    values = (value for module in model.modules() for value in vars(module).values())
    return (value for value in values if isinstance(value, SharedInput))


def _holders(model: nn.Module) -> "list[Linear | SharedInput]":
    return [*_shared_inputs(model), *_linears(model)]


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


def _side_by_side(biases: Sequence[nn.Parameter]) -> Tensor:
    """Memory that the biases are views of from now on, one behind the other."""
    values = [bias.detach() for bias in biases]
    whole = torch.cat(values)
    for bias, part in zip(biases, whole.split([len(each) for each in values]), strict=True):
        bias.data = part
        vars(bias).pop("mapped", None)
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
