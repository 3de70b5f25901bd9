"""Tensors that lie, or are put, side by side in memory, as one: query, key and value weights.

Beneath packing.py; linear.py runs what reads the same input as one product.
"""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["are_adjacent", "as_one", "joined"]


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
