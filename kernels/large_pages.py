"""Zeros in memory of large pages: a big new tensor costs few page faults.

Where an operating system maps pages of 4 KiB at their first touch, that takes longer than the
softmax of what is put there. Linux gives pages of 2 MiB to memory that asks for them.
"""

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

__all__ = ["zeros"]

_PAGE = 2**21
_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the CPU. Rows that are never written take no time and little memory."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if _ADVICE is None or size < _PAGE:
        return torch.zeros(shape, dtype=dtype)
    # The tensor keeps the memory, which starts where a large page can.
    memory = mmap.mmap(-1, size + _PAGE, flags=_FLAGS)
    with suppress(OSError):
        memory.madvise(_ADVICE)
    start = -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % _PAGE
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)
