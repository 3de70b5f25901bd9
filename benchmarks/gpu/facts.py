"""Where rows come from: the machine, and the sources that were measured."""

import hashlib
from pathlib import Path
from typing import Any

from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row, facts

# What decides a number: measured with the same of these, a row need not be measured again.
SOURCES = (
    "kernels/**/*.py",
    "benchmarks/gpu/**/*.py",
    "benchmarks/session.py",
    "minibert/bench/**/*.py",
    *(f"minibert/{name}.py" for name in ("errors", "quantities", "untrusted", "vector_math")),
    "minibert/writing.py",
)


def machine(device: Any) -> Row:
    """Device, versions, commit, and the sources."""
    import torch

    return {
        **facts(threads=torch.get_num_threads(), device=device),
        **_capability(device),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "sources": sources(),
    }


def _capability(device: Any) -> Row:
    """The compute capability that kernels are compiled for, (9, 0) of Hopper; none off CUDA."""
    import torch

    if device.type != "cuda":
        return {}
    return {"capability": list(torch.cuda.get_device_capability(device))}


def sources(root: Path = REPOSITORY) -> str:
    """A digest of every file of the kernels and of what measures them."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
