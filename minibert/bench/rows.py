"""Rows of measurements: one JSON object a line, each with all it takes to be understood later.

Place: written by measure.py, read by compare.py and the plot.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from minibert.errors import MinibertError

__all__ = ["Row", "facts", "read_rows", "write_rows"]

Row = dict[str, Any]
_TIMES = ("median_ms", "p20_ms", "p80_ms")
_PACKAGES = ("minibert", "torch", "triton", "numpy")


def facts(device: torch.device, file: Path) -> Row:
    """Where rows come from: device, versions, the file's digest, time; nobody's name or folder."""
    return {
        "device": _device(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "file_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Put the rows in `path`: all of them, or the file stays as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) for row in rows)
    try:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that `write_rows` wrote.

    Raises MinibertError, with the number of the line, when it is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MinibertError(f"{path} cannot be read: {error}.") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise MinibertError(f"{path}, line {number}: {error}; expected JSON.") from error
        if not isinstance(row, dict) or not {"role", "implementation", "tokens"} <= set(row):
            raise MinibertError(
                f"{path}, line {number} is no row of minibert bench; expected what --output wrote."
            )
        if "error" not in row and not all(_is_time(row.get(name)) for name in _TIMES):
            raise MinibertError(
                f"{path}, line {number}: expected {', '.join(_TIMES)} in milliseconds above 0."
            )
        rows.append(row)
    if not rows:
        raise MinibertError(f"{path} has no rows; expected what minibert bench --output wrote.")
    return rows


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
