"""torch.compile and torch.export of a model give the numbers of the model, and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from minibert.layers.linear import processor
from tests.families import VOCABULARY

HERE = Path(__file__).resolve().parent


def test_what_torch_compiles_and_exports_gives_the_numbers_and_the_errors_of_the_model() -> None:
    program = [sys.executable, str(HERE / "compiled_models.py")]
    done = subprocess.run(program, cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    said = {
        "compiled": f"Token id {VOCABULARY} is outside the vocabulary",
        "exported": "Token id outside the vocabulary",
    }
    for kind, words in said.items():
        assert len(found[kind]) == 2
        for error, refusal in found[kind]:
            assert error <= 1e-5
            assert words in refusal, (kind, refusal)
    error, is_packed = found["packed"]
    assert error <= 1e-5
    assert is_packed == (torch.float32 in processor().onednn_dtypes)
