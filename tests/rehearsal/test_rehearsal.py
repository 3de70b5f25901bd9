"""The kernels that `make gpu` compiles ahead are those that it launches, under the same names.

Each part runs in processes of its own: this one may have Triton's interpreter switched on.

What it records as a graph copies nothing to or from the host and waits for nothing.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import ahead
from benchmarks.gpu.plan import Shape, Task
from benchmarks.session import REPOSITORY

pytest.importorskip("triton")

# Each kernel at its quickest to compile: no product of matrices of 16 bits, and no candidates.
TASKS = [
    Task("short", ("plain",), Shape(1, 2, 64, 16, False, "float32")),
    Task("short", ("plain", "T3"), Shape(1, 2, 64, 16, True, "float32")),
]
# The worker's side: each task's calls in its own order, on a driver that loads what it is given.
LAUNCHES = """
import json, pickle, sys
from benchmarks.gpu.fake_device import FakeDevice
from benchmarks.gpu.rehearsal import rehearse
fake = FakeDevice()
rows = list(rehearse(pickle.load(sys.stdin.buffer), fake))
print(json.dumps({"failed": [one for one in rows if not one["ok"]],
                  "loaded": len(fake.driver.loaded), "compiled": len(fake.driver.seconds)}))
"""


def launched() -> dict[str, Any]:
    """What a fresh process loads and compiles for the tasks."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES],
        input=pickle.dumps(TASKS),
        capture_output=True,
        cwd=REPOSITORY,
        env=ahead._environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:].decode()
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_what_two_processes_compile_side_by_side_is_all_that_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: 348 of the first 540 seconds of a run would be one process that compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    # Long enough for a machine that does much else.
    found = ahead.compile_ahead(TASKS, (9, 0), 2, 3600)
    assert found["failed"] == 0
    after = launched()
    assert after["failed"] == []
    assert after["loaded"] == found["compiled"] > 2
    # Each was compiled once, whichever process came to it first, and none by who launches it.
    assert after["compiled"] == 0


def test_past_its_time_it_ends_and_says_how_far_it_came(tmp_path: Path) -> None:
    found = ahead.compile_ahead(TASKS, (9, 0), 1, 0.2)
    assert found["failed"] == 1
    assert found["compiled"] == 0
    assert found["seconds"] < 10


def test_every_call_is_asked_for_by_each_process_beginning_with_its_own() -> None:
    everything: ahead.Calls = [(name, print) for name in "abcde"]
    turns = ["".join(name for name, _ in ahead.in_turn(everything, i, 3)) for i in range(3)]
    assert turns == ["adbec", "becad", "cadbe"]


def test_a_fake_tensor_is_specialised_as_a_real_one() -> None:
    """Alignment and type decide about a kernel's name in the cache."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    program = """
import sys, torch
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from benchmarks.gpu.fake_device import FakeDevice
with FakeDevice().entered():
    whole = torch.empty(4, 33, 16, dtype=torch.bfloat16, device="cuda")
    for one in (whole, whole[1:], whole[:, 1:, 3:], whole.float()):
        print(native_specialize_impl(BaseBackend, one, False, True, True))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=ahead._environment(),
        check=True,
    )
    whole = torch.empty(4, 33, 16, dtype=torch.bfloat16)
    real = [
        str(native_specialize_impl(BaseBackend, one, False, True, True))
        for one in (whole, whole[1:], whole[:, 1:, 3:], whole.float())
    ]
    assert done.stdout.splitlines() == real
    assert len(set(real)) == 3


def test_every_call_of_the_first_nine_minutes_can_be_recorded() -> None:
    """The faults: `columns.py` made host tensors at each call; lengths and bias were looked at."""
    command = [sys.executable, "-m", "benchmarks.gpu.rehearsal", "--minutes", "9", "--no-compile"]
    done = subprocess.run(
        [*command, "--capability", "9.0"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={n: one for n, one in os.environ.items() if n != "TRITON_INTERPRET"},
        check=False,
    )
    *rows, counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in rows if not row["ok"]] == [], done.stderr[-2000:]
    assert done.returncode == 0
    assert counts["calls"] > 100
