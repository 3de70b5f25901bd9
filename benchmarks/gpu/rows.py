"""Where rows go, and what they come to: the machine, the sources measured, the file, the table.

A line of JSON each, written as it comes, read again by the next run. A run that is cut off leaves
whole lines and at most one half line, which reading leaves out. The rows of one run and task were
measured in turns; only those are divided by one another.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row, facts

#: What decides a number: measured with the same of these, a row need not be measured again.
SOURCES = (
    "kernels/**/*.py",
    "benchmarks/gpu/**/*.py",
    "benchmarks/session.py",
    "minibert/bench/**/*.py",
    *(f"minibert/{name}.py" for name in ("doors", "errors", "quantities", "untrusted")),
    *(f"minibert/{name}.py" for name in ("vector_math", "writing")),
)
#: Rows with the same of these can stand for one another.
_SAME = ("device", "sources", "versions")


def machine(device: Any) -> Row:
    """Device, versions, commit and sources; the compute capability, [9, 0] of Hopper, of a GPU."""
    import torch

    found = {**facts(threads=torch.get_num_threads(), device=device), "sources": sources()}
    if device.type == "cuda":
        found["capability"] = list(torch.cuda.get_device_capability(device))
    return found


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
        if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            with path.open("a", encoding="utf-8") as lines:
                print(file=lines)

    def write(self, row: Row) -> Row:
        """The row as it was written: with its stamp, numbers that JSON lacks as None."""
        text = json.dumps(_finite({**row, **self.stamp}), ensure_ascii=False, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as lines:
            print(text, file=lines, flush=True)
        self.rows.append(json.loads(text))
        return self.rows[-1]

    def of_these_sources(self) -> list[Row]:
        """The rows that these sources left on this accelerator."""
        return [
            one
            for one in self.rows
            if "key" in one and all(one.get(name) == self.stamp.get(name) for name in _SAME)
        ]

    def tried(self) -> set[str]:
        """Their keys."""
        return {row["key"] for row in self.of_these_sources()}

    def done(self) -> set[str]:
        """Keys of those whose last row has a result."""
        last = {row["key"]: row["ok"] for row in self.of_these_sources()}
        return {key for key, ok in last.items() if ok}


def read(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    rows = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
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


def shown(rows: list[Row]) -> str:
    """The table as text: the last row of each contender, a ratio where its task has one."""
    last = list({row["key"]: row for row in rows}.values())
    wrong = [row["key"] for row in last if row.get("wrong")]
    lines = [f"WRONG, so trust no number below: {'; '.join(wrong[:6])}"] if wrong else []
    lines += [f"{row['key']:64} {'  '.join(_cells(row))}" for row in last if row["ok"]]
    failed = [row for row in last if not row["ok"]]
    lines += [f"{len(failed)} rows failed" if failed else "no row failed"]
    lines += [f"  {row['key']}: {row.get('reason') or row.get('worst')}"[:240] for row in failed]
    return "\n".join(lines)


def _cells(row: Row) -> Iterator[str]:
    if "checks" in row:
        yield f"{row['checks'] - row['failures']} of {row['checks']} right"
    for name, one in row.get("ceilings", {}).items():
        yield f"{name} {one:.3g}/s"
    if "median_ms" in row:
        yield f"{row['median_ms']:9.4f} ms  {row['tflops']:.1f} TFLOP/s"
    if "ratio" in row:
        yield f"ratio {row['ratio']:.3f}, noise {row['noise']:.3f}"
    if "peak_bytes" in row:
        yield f"{row['peak_bytes'] / 2**20:.0f} MiB at most"
