"""Where rows come from: accelerator, versions, commit, and the sources that were measured."""

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
# What decides a number: measured with the same of these, a row need not be measured again.
SOURCES = ("kernels/**/*.py", "benchmarks/gpu/*.py", "minibert/bench/*.py")


def machine(device: Any) -> dict[str, Any]:
    """Accelerator, versions, commit."""
    import numpy as np
    import torch

    on_gpu = device.type == "cuda"
    return {
        "accelerator": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "triton": _triton_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "commit": commit(),
        "sources": sources(),
    }


def commit() -> str | None:
    """The commit of this checkout, "+" behind it when files differ; None outside a checkout.

    Where only a copy of the files is at hand, MINIBERT_COMMIT says it.
    """
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("MINIBERT_COMMIT")
    return answer.stdout.strip()


def sources(root: Path = REPOSITORY) -> str:
    """A digest of every file of the kernels and of what measures them."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)
