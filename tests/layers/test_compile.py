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


def test_a_model_compiles_as_one_graph_with_the_same_numbers_at_every_size(
    found: dict[str, Any],
) -> None:
    assert len(found["same graph"]) == 3
    assert max(found["same graph"].values()) <= 1e-5


def test_code_that_torch_generates_gives_the_same_numbers(found: dict[str, Any]) -> None:
    if "no compiler" in found:
        pytest.skip(f"torch finds no compiler here: {found['no compiler']}")
    assert max(found["generated code"].values()) <= 1e-5


def test_a_layer_compiles_as_one_graph(found: dict[str, Any]) -> None:
    assert max(found["layer"].values()) <= 1e-5


def test_an_exported_model_gives_the_same_numbers_at_every_size(found: dict[str, Any]) -> None:
    assert len(found["export"]) == 6
    assert max(found["export"].values()) <= 1e-5


def test_a_compiled_or_exported_model_refuses_what_the_model_refuses(found: dict[str, Any]) -> None:
    assert f"Token id {VOCABULARY} is outside the vocabulary" in found["refusal"]
    assert "Token id outside the vocabulary" in found["export refusal"]


def test_a_model_is_traced_as_before_once_it_is_compiled(found: dict[str, Any]) -> None:
    assert found["afterwards"] <= 1e-5


def test_attention_in_blocks_can_be_compiled(found: dict[str, Any]) -> None:
    assert found["attention"] <= 1e-12
