"""`attend` inside torch.compile: one graph, the numbers and gradients of the call outside it."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import cases
from benchmarks.session import REPOSITORY


@cache
def found() -> dict[str, Any]:
    program = Path(__file__).with_name("compiled_calls.py")
    relative = ".".join(program.relative_to(REPOSITORY).with_suffix("").parts)
    done = subprocess.run(
        [sys.executable, "-m", relative],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("impl", ["auto", "chunked", "sdpa"])
def test_there_is_one_graph_around_a_call(impl: str) -> None:
    """The fault: eight graphs."""
    assert found()[impl] == {"values": 0.0}


@pytest.mark.parametrize("option", cases.OPTIONS)
def test_every_field_of_a_call_goes_through_the_graph(option: str) -> None:
    assert found()[option] == {"values": 0.0, "gradients": 0.0}


def test_lengths_that_cannot_be_are_refused_when_the_graph_runs() -> None:
    assert "lengths holds" in found()["refusal"]
