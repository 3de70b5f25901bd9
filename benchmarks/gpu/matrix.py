"""The parity matrix: every kind of call, width and dtype, forward and backward, against float64.

A cell asks the judge of `minibert check` about the fused kernels: each kind of input that it knows,
at a size that is more than one tile of every kernel and no multiple of one.
"""

import math
from dataclasses import replace

import torch

from benchmarks.gpu.resources import watched
from minibert.bench.result_rows import Row
from minibert.kernels.check.gradients import refused
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import FIELD_KINDS, KINDS, Workload, cases
from minibert.kernels.registry import implementations

KINDS_ASKED: dict[str, Workload] = KINDS | FIELD_KINDS
POSITIONS = 300


def drawn(kind: str, d_head: int, dtype: str, device: torch.device, *, backward: bool) -> Problem:
    """The inputs of a cell, as `row` asks about them."""
    work = replace(KINDS_ASKED[kind], backward=backward)
    [case] = cases([POSITIONS], [1.0], {kind: work})
    wants = () if backward else implementations()["triton"].wants
    kept = {"dtype": getattr(torch, dtype), "device": device, "d_head": d_head}
    return case.draw(wants=wants, seed=0, **kept)


def row(kind: str, d_head: int, dtype: str, device: torch.device) -> Row:
    """Fields of a row: how many outputs were compared, the worst one, what was not covered."""
    work = KINDS_ASKED[kind]
    with watched() as kernels:
        report = check(
            "triton",
            dtypes=[getattr(torch, dtype)],
            device=device,
            sizes=[POSITIONS if device.type == "cuda" else 17],
            input_scales=[1.0],
            d_head=d_head,
            kinds={kind: work},
            backward=refused(work) is None,
        )
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
        "not_covered": list(report.skipped),
        "d_head": d_head,
        "dtype": dtype,
        "kernels": kernels(),
    }
