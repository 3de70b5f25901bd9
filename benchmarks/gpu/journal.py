"""Where rows come from and go to: the machine, the sources that were measured, the file of rows.

A line of JSON each, written as it comes, read again by the next run. A run that is cut off leaves
whole lines and at most one half line, which reading leaves out. The rows of one run and task were
measured in turns; only those are divided by one another.
"""

import hashlib
import json
import re
from collections.abc import Iterable
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
    *(f"minibert/{name}.py" for name in ("doors", "errors", "quantities", "untrusted")),
    *(f"minibert/{name}.py" for name in ("vector_math", "writing")),
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


class Journal:
    """Rows of one file; `stamp` is put into each row that is written."""

    def __init__(self, path: Path, stamp: Row) -> None:
        self.path, self.stamp = path, stamp
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = read(path)
        # A half line must not swallow the next one.
        if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
            with path.open("a", encoding="utf-8") as lines:
                print(file=lines)

    def write(self, row: Row) -> Row:
        """The row as it was written: with its stamp, numbers that JSON lacks as None."""
        whole = {**row, **self.stamp}
        text = json.dumps(_finite(whole), ensure_ascii=False, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as lines:
            print(text, file=lines, flush=True)
        self.rows.append(json.loads(text))
        return self.rows[-1]

    def tried(self) -> set[str]:
        """Keys of the rows that these sources left on this accelerator."""
        return {row["key"] for row in self._ours()}

    def done(self) -> set[str]:
        """Keys of those whose last row has a result."""
        last = {row["key"]: row["ok"] for row in self._ours()}
        return {key for key, ok in last.items() if ok}

    def _ours(self) -> Iterable[Row]:
        same = ("device", "sources", "versions")
        return (
            row
            for row in self.rows
            if "key" in row and all(row.get(name) == self.stamp.get(name) for name in same)
        )


def read(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def path_of(folder: Path, accelerator: str, day: str) -> Path:
    """`<folder>/<accelerator>-<day>.jsonl`."""
    slug = re.sub(r"[^a-z0-9]+", "-", accelerator.lower()).strip("-")
    return folder / f"{slug}-{day}.jsonl"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
