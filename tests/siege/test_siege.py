"""The siege with fixed seeds: every case found so far, and the first drawn ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LINE = r"(\d+) (\w[\w ]*: \w+)"
HOSTILE = ("damaged checkpoint", "trace", "vocabulary", "hub")
CLASSES = (*HOSTILE, "legal checkpoint", "text", "kill", "attention")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_input_from_outside_is_refused_in_good_form_or_read_as_the_oracles_do() -> None:
    command = [sys.executable, "-m", "tests.siege", "--seed", "0", "--cases", "250"]
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
    counts = {name: int(number) for number, name in re.findall(LINE, done.stdout)}
    assert counts["known: refused"] > 150
    # So that neither half of the promise is tested by the other half alone.
    assert all(counts[f"{kind}: equal"] for kind in CLASSES), done.stdout
    assert all(counts[f"{kind}: refused"] for kind in HOSTILE), done.stdout
