"""The kernels that `make gpu` compiles ahead are those that it launches, under the same names.

Each part runs in processes of its own: this one may have Triton's interpreter switched on.

What it would record as a graph copies nothing to or from the host and waits for nothing.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.plan import Task
from benchmarks.gpu.rehearsal import BUDGETS, above_budget, compile_ahead
from benchmarks.session import REPOSITORY
from minibert.kernels.check.workload import Workload

pytest.importorskip("triton")

COMPILES = {name: one for name, one in os.environ.items() if name != "TRITON_INTERPRET"}
#: Kernels at their quickest to compile: no product of matrices of 16 bits.
TASKS = [Task("short", ("plain", "T3"), Workload(1, 2, 64, 16, "float32", True))]


def program(text: str, given: bytes = b"") -> list[str]:
    """What a fresh process prints that compiles."""
    command = [sys.executable, "-c", text]
    done = subprocess.run(
        command, input=given, capture_output=True, cwd=REPOSITORY, env=COMPILES, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:].decode()
    return done.stdout.decode().splitlines()


#: What of a tensor decides about a kernel's name in the cache: its type, and how it is aligned.
SPECIALISED = """
import torch
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend

def specialised(device):
    whole = torch.empty(4, 33, 16, dtype=torch.bfloat16, device=device)
    every = (whole, whole[1:], whole[:, 1:, 3:], whole.float())
    return [str(native_specialize_impl(BaseBackend, one, False, True, True)) for one in every]
"""
#: The worker's side: the calls of the tasks on a driver that loads what it is given.
LAUNCHES = f"""
import json, pickle, sys
from benchmarks.gpu.fake_device import FakeDevice
from benchmarks.gpu.rehearsal import calls, rehearse
{SPECIALISED}
fake = FakeDevice()
rows = list(rehearse([one for task in pickle.load(sys.stdin.buffer) for one in calls(task)], fake))
with FakeDevice().entered():
    found = specialised("cuda")
print(json.dumps({{"failed": [one for one in rows if not one["ok"]], "specialised": found,
                   "loaded": len(fake.driver.loaded), "compiled": len(fake.driver.seconds)}}))
"""


def test_what_two_processes_compile_side_by_side_is_all_that_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake tensors are specialised as real ones."""
    monkeypatch.setitem(COMPILES, "TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert compile_ahead(TASKS, (9, 0), 1, 0.2).endswith("1 did not end in time")
    # Long enough for a machine that does much else.
    assert compile_ahead(TASKS, (9, 0), 2, 3600).endswith("0 did not end in time")
    launched = json.loads(program(LAUNCHES, pickle.dumps(TASKS))[-1])
    real: dict[str, Any] = {}
    exec(SPECIALISED, real)
    specialised = real["specialised"]("cpu")
    assert len(set(specialised)) == 3
    assert launched == {"failed": [], "specialised": specialised, "loaded": 3, "compiled": 0}


def test_every_call_of_the_first_nine_minutes_can_be_recorded() -> None:
    """The faults: `columns.py` made host tensors at each call; lengths and bias were looked at."""
    asked = "from benchmarks.gpu.rehearsal import main; main(['--minutes', '9', '--no-compile'])"
    *rows, counts = [json.loads(line) for line in program(asked)]
    assert [row for row in rows if not row["ok"]] == []
    assert counts["calls"] > 100


def test_more_registers_than_are_written_down_a_spill_and_a_lost_kernel_are_told() -> None:
    known = json.loads(BUDGETS.read_text(encoding="utf-8"))
    assert {"3.6", "3.7", "3.9"} <= known.keys()
    for version, budget in known.items():
        number = tuple(map(int, version.split(".")))
        rows = [
            {"key": name.rpartition(" | ")[0], "ok": True, "spilled": []}
            | {"kernels": [{"name": name.rpartition(" | ")[2], "registers": most}]}
            for name, most in budget.items()
        ]
        assert above_budget(rows, number) == []
        rows[0]["kernels"][0]["registers"] += 1
        assert "registers, at most" in above_budget(rows, number)[0]
        rows[0] |= {"kernels": [], "spilled": ["forward_kernel"]}
        said = above_budget(rows, number)
        assert len(said) == 2
        assert "spills in forward_kernel" in said[0]
        assert "was not compiled" in said[1]
    # A later version without a line of its own is held to the last one's.
    newest = max(tuple(map(int, one.split("."))) for one in known)
    later = (newest[0], newest[1] + 7)
    assert above_budget([], later) == above_budget([], newest)
