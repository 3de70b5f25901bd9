"""The siege with fixed seeds: every case found so far, and the first random ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_hostile_checkpoints_are_refused_in_good_form_or_read_as_their_own_readers_do() -> None:
    command = [sys.executable, "-m", "tests.siege", "--seed", "0", "--cases", "100"]
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [*command, "--minutes", "5"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert re.search(r"\d\d random refused", done.stdout), done.stdout
