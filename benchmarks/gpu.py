"""Are the kernels right on this accelerator? The gate before any speed is measured on it.

    python3 -m benchmarks.gpu [--device cuda] [--output benchmarks/results]

Needs torch, numpy and this checkout, nothing installed. Every implementation but the reference
goes through `minibert.kernels.parity.check`, a dtype at a time; each result is one line of JSON
in `<output>/<accelerator>-<date>.jsonl`. The exit status is 1 when one is wrong, when none could
be checked, and when there is no accelerator.
"""

import argparse
import json
import math
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> int:
    """The exit status: 0 when everything that was checked is right."""
    parser = argparse.ArgumentParser(description="Check the kernels on an accelerator.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "benchmarks" / "results")
    chosen = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("benchmarks.gpu needs torch; choose a Python that has it: make gpu GPU_PYTHON=...")
        return 1
    device = torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees none, so nothing was checked")
        return 1
    where = machine(device)
    moment = datetime.now(UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", where["accelerator"].lower()).strip("-")
    path = chosen.output / f"{slug}-{moment:%Y-%m-%d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    verdicts = []
    with path.open("w", encoding="utf-8") as lines:
        for row in rows(device):
            verdicts.append(row["ok"])
            stamp = {"time": moment.isoformat(timespec="seconds")}
            print(json.dumps({**row, **where, **stamp}), file=lines, flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} right; rows in {path}")
    return 0 if verdicts and all(verdicts) else 1


def rows(device: Any) -> Iterator[dict[str, Any]]:
    """One row for each implementation and dtype that can run on `device`, failures included."""
    from minibert import MinibertError
    from minibert.kernels.parity import check
    from minibert.kernels.registry import implementations

    for name, record in implementations().items():
        if name == "reference":
            continue
        for dtype in record.dtypes:
            row = {"what": "parity", "implementation": name, "dtype": str(dtype)}
            try:
                report = check(name, dtypes=[dtype], device=device)
            except MinibertError as reason:
                print(f"{name}: {reason}")
                yield {**row, "ok": False, "reason": str(reason)}
                continue
            print(report, flush=True)
            yield {**row, **summary(report)}


def summary(report: Any) -> dict[str, Any]:
    """What a row keeps of a report: how many checks, the worst one, what was not covered."""
    worst = max(report.findings, key=lambda one: one.error / max(one.tolerance, 1e-300))
    return {
        "ok": report.ok,
        "checks": len(report.findings),
        "failures": len(report.failures),
        "worst": str(worst),
        # An exception counts as an infinite error, which JSON cannot say.
        "worst_error": worst.error if math.isfinite(worst.error) else None,
        "worst_tolerance": worst.tolerance,
        "causes": list(report.causes),
        "not_covered": list(report.skipped),
    }


def machine(device: Any) -> dict[str, Any]:
    """Where the rows come from: accelerator, versions, commit."""
    import numpy as np
    import torch

    on_gpu = device.type == "cuda"
    return {
        "accelerator": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of this checkout, "+" behind it when files differ; None outside a checkout."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
