"""torch.compile and torch.export of a model give the numbers of the model, and its errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.families import VOCABULARY

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    program = [sys.executable, str(HERE / "compiled_models.py")]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_what_torch_compiles_and_exports_gives_the_numbers_of_the_model(
    found: dict[str, Any],
) -> None:
    errors = [*found["same graph"].values(), *found["export"].values(), found["afterwards"]]
    assert len(errors) == 5
    assert max(errors) <= 1e-5


def test_a_compiled_or_exported_model_refuses_what_the_model_refuses(found: dict[str, Any]) -> None:
    assert f"Token id {VOCABULARY} is outside the vocabulary" in found["refusal"]
    assert "Token id outside the vocabulary" in found["export refusal"]
