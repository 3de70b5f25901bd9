"""Are the kernels right? One implementation and dtype through `parity.check`."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.plan import Task
from minibert.bench.result_rows import Row

# What the looks take: the first one every kind of input, at one size past a tile.
LOOKS: dict[str, dict[str, Any]] = {
    "parity first": {"sizes": (130,), "input_scales": (1.0, 10.0)},
    "parity quick": {"sizes": (17,), "input_scales": (1.0,), "d_head": 16, "kinds": ("causal",)},
    "parity": {},
}


def rows(task: Task, device: torch.device) -> Iterator[Row]:
    """A row for each "<implementation> <dtype>" of the task."""
    from minibert.kernels.check.parity import check
    from minibert.kernels.registry import implementations

    for contender in task.contenders:
        if contender in task.skip:
            continue
        name, dtype = contender.split()
        if name not in implementations():
            yield {"implementation": contender, "ok": False, "reason": f"{name} is not registered"}
            continue
        options = LOOKS[task.part]
        report = check(name, dtypes=[getattr(torch, dtype)], device=device, **options)
        yield {"implementation": contender, **summary(report)}


def summary(report: Any) -> Row:
    """What a row keeps of a report: how many checks, the worst one, what was not covered."""
    worst = max(report.findings, key=lambda one: one.error / max(one.tolerance, 1e-300))
    return {
        "ok": report.ok,
        "wrong": not report.ok,
        "checks": len(report.findings),
        "failures": len(report.failures),
        "worst": str(worst)[:400],
        # An exception counts as an infinite error, which JSON cannot say.
        "worst_error": worst.error if math.isfinite(worst.error) else None,
        "worst_tolerance": worst.tolerance,
        "causes": list(report.causes)[:3],
        "failed_cases": [str(one)[:200] for one in report.failures[:5]],
        "not_covered": list(report.skipped),
    }
