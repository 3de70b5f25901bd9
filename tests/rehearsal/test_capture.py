"""What `make gpu` records as a graph copies nothing to or from the host and waits for nothing.

Each part runs in a process of its own: this one may have Triton's interpreter switched on.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.session import REPOSITORY


def rehearsed(*options: str, expect: int | None = 0) -> list[dict[str, Any]]:
    """The rows of a rehearsal, its counts last."""
    pytest.importorskip("triton")
    environment = {n: one for n, one in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu.rehearsal", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows, done.stderr[-2000:]
    assert expect is None or done.returncode == expect, failures(rows)
    return rows


def failures(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['key']}, {row['call']}: {row['reason']}" for row in rows[:-1] if not row["ok"]]


def test_every_call_of_the_first_nine_minutes_can_be_recorded() -> None:
    """The faults: `columns.py` made host tensors at each call; lengths and bias were looked at."""
    rows = rehearsed("--minutes", "9", "--no-compile")
    assert rows[-1]["calls"] > 100
    assert failures(rows) == []
