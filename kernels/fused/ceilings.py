"""Kernels that keep one unit of a GPU busy and nothing else, for `minibert.bench.roofline`."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def exponentials_kernel(out, steps, numbers: tl.constexpr):  # type: ignore[no-untyped-def]
    """x ← 2^(−x), step after step: it goes to 0.64 and can neither overflow nor be left out."""
    places = tl.program_id(0) * numbers + tl.arange(0, numbers)
    x = tl.arange(0, numbers) / numbers
    for _ in range(steps):
        x = tl.exp2(-x)
    tl.store(out + places, x)


@triton.jit  # type: ignore[untyped-decorator]
def instructions_kernel(out, steps, numbers: tl.constexpr):  # type: ignore[no-untyped-def]
    """x ← x/2 + 1, step after step: it goes to 2."""
    places = tl.program_id(0) * numbers + tl.arange(0, numbers)
    x = tl.arange(0, numbers) / numbers
    for _ in range(steps):
        x = x * 0.5 + 1.0
    tl.store(out + places, x)


_KERNELS = {"exponentials": exponentials_kernel, "instructions": instructions_kernel}


def launch(name: str, out: Tensor, *, steps: int, numbers: int) -> None:
    """Run the kernel of this name once over `out`, whose size is a multiple of `numbers`."""
    _KERNELS[name][(out.numel() // numbers,)](
        out, steps, numbers, num_warps=4, enable_fp_fusion=True
    )
