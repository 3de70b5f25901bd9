"""The shortest possible time of a workload on this machine, from measured ceilings.

Attention needs the matrix units (2·(d_head + d_value) operations a pair of query and key, and those
of the backward), an exponential a pair (two with the backward), some instructions a pair, and its
inputs and output in memory once; the largest of the four times is the least it can take. On a GPU
the four units work at the same time, so that the largest counts and not the sum. How many
exponentials and instructions a GPU computes is measured by two small Triton kernels that use
registers only (kernels/fused/ceilings.py); on a CPU by torch.exp over numbers that fit a core's
cache.
"""

import importlib.util
import time
from collections.abc import Callable, Mapping
from functools import cache

import torch

from minibert.kernels.check.workload import Workload

#: Instructions a pair: one multiply-add into the exponent, one maximum, one exponential, one
#: addition to the sum, half a conversion to the narrow type (two at a time).
INSTRUCTIONS = 4.5


@cache
def ceilings(device: torch.device, dtype: str) -> Mapping[str, float]:
    """The measured rates: tensor (operations), exponential, issue and memory (bytes) a second.

    issue is left out on a CPU. The best of several runs each: a ceiling is what was reached.
    """
    found = {
        "tensor": _matmul(device, getattr(torch, dtype)),
        "exponential": exponentials_per_second(device),
        "issue": _by_triton("instructions", device) if device.type == "cuda" else None,
        "memory": _copy(device),
    }
    return {name: value for name, value in found.items() if value is not None}


def least_times(workload: Workload, reached: Mapping[str, float]) -> dict[str, float]:
    """The least milliseconds of each unit; the largest of them is the roofline."""
    # A backward computes the probabilities once more.
    exponentials = workload.pairs * (2 if workload.backward else 1)
    work = {
        "tensor": workload.flop,
        "exponential": exponentials,
        "issue": INSTRUCTIONS * exponentials,
        "memory": workload.bytes,
    }
    return {name: 1e3 * work[name] / value for name, value in reached.items()}


def _matmul(device: torch.device, dtype: torch.dtype) -> float:
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / best_seconds(lambda: torch.matmul(a, b, out=out), device)


def _copy(device: torch.device) -> float:
    n = 2**30 if device.type == "cuda" else 2**27
    source = torch.zeros(n, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * n / best_seconds(lambda: target.copy_(source), device)


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


def _by_triton(name: str, device: torch.device) -> float | None:
    """Exponentials, or multiply-adds of one instruction each, a second; None without Triton."""
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
