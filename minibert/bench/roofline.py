"""The shortest possible time of a workload on this machine, from measured ceilings.

Attention needs the matrix units (2·(d_head + d_value) operations a pair of query and key, and those
of the backward), an exponential a pair (two with the backward), some instructions a pair, and its
inputs and output in memory once; the largest of the four times is the least it can take. On a GPU
the four units work at the same time, so that the largest counts and not the sum.
"""

from collections.abc import Mapping
from functools import cache

import torch

from minibert.kernels.ceilings import (
    best_seconds,
    exponentials_per_second,
    instructions_per_second,
)
from minibert.kernels.check.workload import Workload

#: Instructions a pair: one multiply-add into the exponent, one maximum, one exponential, one
#: addition to the sum, half a conversion to the narrow type (two at a time).
INSTRUCTIONS = 4.5


@cache
def ceilings(device: torch.device, dtype: str) -> Mapping[str, float]:
    """What was measured here: tensor (operations), exponential, issue and memory (bytes) a second.

    issue is left out on a CPU. The best of several runs each: a ceiling is what was reached.
    """
    found = {
        "tensor": _matmul(device, getattr(torch, dtype)),
        "exponential": exponentials_per_second(device),
        "issue": instructions_per_second(device),
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
