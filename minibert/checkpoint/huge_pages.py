"""Memory in huge pages, which the processor looks up 512 times less often than usual ones.

A product of few rows reads each weight once, and waits for those lookups: see docs/speed.md.
https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

import contextlib
import mmap

import torch
from torch import Tensor

__all__ = ["empty_like"]

_HUGE_PAGE = 2**21
# Of a smaller tensor too little lies in whole huge pages.
_SMALLEST = 2 * _HUGE_PAGE


def empty_like(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Uninitialised memory of the CPU in the layout of `like`; large ones in huge pages.

    Where the system has none, in usual ones. Raises RuntimeError or OSError without room.
    """
    layout = torch.empty_like(like, dtype=dtype, device="meta")
    if layout.nbytes < _SMALLEST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty_like(like, dtype=dtype, device="cpu")
    # With room to begin where a huge page does; what is not written to takes no memory.
    memory = mmap.mmap(-1, layout.nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _HUGE_PAGE
    # A kernel without huge pages refuses.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, start, layout.nbytes // _HUGE_PAGE * _HUGE_PAGE)
    flat = torch.frombuffer(memory, dtype=dtype, count=layout.numel(), offset=start)
    return flat.as_strided(layout.shape, layout.stride())
