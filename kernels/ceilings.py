"""Measures how many exponentials, and how many instructions, this device computes in a second.

The bench divides by these numbers. On a GPU they come from two small Triton kernels
that use registers only (fused/ceilings.py), on a CPU from torch.exp over numbers that fit a core's
cache.
"""

import importlib.util
import time
from collections.abc import Callable

import torch

#: Numbers in a block, steps in a run, and blocks: enough work to keep the largest GPU busy.
_NUMBERS, _STEPS, _BLOCKS = 1024, 4096, 2048


def exponentials_per_second(device: torch.device) -> float | None:
    """Exponentials a second, to base 2 on a GPU as in kernels; None on a GPU without Triton."""
    if device.type == "cuda":
        return _by_triton("exponentials", device)
    numbers = torch.rand(2**16)
    out = torch.empty_like(numbers)

    def run() -> None:
        for _ in range(16):
            torch.exp(numbers, out=out)

    return 16 * numbers.numel() / best_seconds(run, device)


def instructions_per_second(device: torch.device) -> float | None:
    """Multiply-adds a second, one instruction for each number; None on a CPU or without Triton."""
    return _by_triton("instructions", device) if device.type == "cuda" else None


def _by_triton(name: str, device: torch.device) -> float | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from minibert.kernels.fused.ceilings import launch

    out = torch.empty(_BLOCKS * _NUMBERS, device=device)

    def run() -> None:
        launch(name, out, steps=_STEPS, numbers=_NUMBERS)

    return _STEPS * out.numel() / best_seconds(run, device)


def best_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The seconds of the fastest of some runs."""
    seconds = []
    for _ in range(8):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
