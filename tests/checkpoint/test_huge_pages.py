"""huge_pages.py: memory as torch gives it, which the kernel was asked to hold in huge pages."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from minibert.checkpoint.values import empty_like

LARGE = (2048, 1537)


@pytest.mark.parametrize("shape", [LARGE, (3, 5), (0, 4), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_memory_has_the_layout_that_torch_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for like in (torch.empty(shape), torch.empty(shape).mT if shape else torch.empty(())):
        made, usual = empty_like(like, dtype), torch.empty_like(like, dtype=dtype)
        assert (made.shape, made.stride(), made.dtype) == (usual.shape, usual.stride(), dtype)
        values = torch.arange(like.numel()).view(like.shape).to(dtype)
        assert torch.equal(made.copy_(values), values)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without huge pages")
@pytest.mark.parametrize(("rows", "asked"), [(2048, True), (64, False)])
def test_the_kernel_is_asked_for_huge_pages_of_large_tensors(rows: int, asked: bool) -> None:
    made = empty_like(torch.empty(rows, 1537), torch.float32)
    middle = made.data_ptr() + made.nbytes // 2
    assert made.data_ptr() % (2**21 if asked else 64) == 0
    assert ("hg" in flags(middle)) == asked


def flags(address: int) -> list[str]:
    """Linux's flags of the memory at an address."""
    found: list[str] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            found = line.split()[1:]
    return found
