"""torch.compile and torch.export of a model give the numbers of the model, and its errors.

Run as a program it prints them as JSON: torch cannot compile the checks of shapes that tests put on
every function of minibert.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import minibert
from minibert.layers import linear
from minibert.model import from_transformers
from minibert.text.tokens import Tokens
from tests.families import VOCABULARY, Sizes, batch, hf_model

ROOT = Path(__file__).resolve().parents[2]

MODELS = {"bert": "BertForMaskedLM", "albert": "AlbertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
OUTSIDE = torch.tensor([[2, VOCABULARY]])


def random_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def refusal(run: Callable[[torch.Tensor], object]) -> str:
    """What is said to an id outside the vocabulary."""
    try:
        run(OUTSIDE)
    except (minibert.MinibertError, RuntimeError) as refused:
        return str(refused)
    return ""


def compiled(family: str) -> tuple[float, str]:
    """The largest difference between a model and what is compiled of it, and what it refuses."""
    torch.compiler.reset()
    model = from_transformers(hf_model(family, MODELS[family], Sizes(layers=1)))
    broken: Any = torch.compile(model, backend="aot_eager")
    whole: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    made = batch(family, segments=1)
    padded = Tokens.from_ids(made["input_ids"], mask=made["attention_mask"].bool())
    inputs = [random_ids(2, 7), random_ids(3, 11), random_ids(1, 13)]
    found = [(whole(each) - model(each)).abs().max() for each in inputs]
    # The lengths of the sentences are read from the mask, which breaks the graph.
    found.append((broken(padded) - model(padded)).abs().max())
    # A trace after it is the same.
    found.append((model.trace(inputs[0]).logits - whole(inputs[0])).abs().max())
    return float(max(found)), refusal(broken)


def exported(family: str) -> tuple[float, str]:
    """The same of its export, at sizes it was not exported with."""
    model = from_transformers(hf_model(family, MODELS[family], Sizes(layers=1)))
    free = torch.export.Dim.DYNAMIC
    made = torch.export.export(model, (random_ids(2, 7),), dynamic_shapes=({0: free, 1: free},))
    program: Any = made.module()
    inputs = [random_ids(2, 7), random_ids(3, 11), random_ids(5, 13)]
    found = [(program(each) - model(each)).abs().max() for each in inputs]
    return float(max(found)), refusal(program)


def packed() -> tuple[float, bool]:
    """The same of a part of a packed model, and whether the model is packed after it."""
    linear.PACK_FROM = 1
    os.environ["MINIBERT_LINEAR"] = "onednn-packed"
    with TemporaryDirectory() as folder:
        hf_model("bert", MODELS["bert"], Sizes(layers=1)).save_pretrained(folder)
        model = minibert.load(folder)
        mlp = model.body.groups[0].mlp
        x = torch.randn(2, 3, model.config.d_model)
        found = torch.compile(mlp, backend="eager", fullgraph=True)(x)
        return float((found - mlp(x)).abs().max()), model.is_packed


def test_what_torch_compiles_and_exports_gives_the_numbers_and_the_errors_of_the_model() -> None:
    program = [sys.executable, "-m", "tests.layers.test_compile"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
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
    assert is_packed == (torch.float32 in linear.processor().onednn_dtypes)


if __name__ == "__main__":
    with torch.no_grad():
        every = {
            "compiled": [compiled(family) for family in ("bert", "gpt2")],
            "exported": [exported(family) for family in ("albert", "gpt2")],
            "packed": packed(),
        }
    print(json.dumps(every))
