"""A program: what torch.compile makes of small models, as JSON, for test_compile.py.

In a process of its own, because torch cannot compile the checks of shapes that tests put on
every function of minibert.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minibert.errors import TokenizationError
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import VOCABULARY, Sizes, batch, hf_model

MODELS = {
    "bert": "BertForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
}


def random_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def error(family: str) -> float:
    """The largest difference between a model and what is compiled of it, at several sizes."""
    torch.compiler.reset()
    model = from_transformers(hf_model(family, MODELS[family], Sizes(layers=2)))
    compiled: Any = torch.compile(model, backend="aot_eager")
    whole: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    made = batch(family, segments=1)
    padded = Tokens.from_ids(made["input_ids"], mask=made["attention_mask"].bool())
    inputs = [random_ids(2, 7), random_ids(3, 11), random_ids(1, 13)]
    found = [(whole(each) - model(each)).abs().max() for each in inputs]
    # The lengths of the sentences are read from the mask, which breaks the graph.
    found.append((compiled(padded) - model(padded)).abs().max())
    return float(max(found))


def export_error(family: str) -> float:
    """The largest difference between a model and its export, at sizes it was not exported with."""
    model = from_transformers(hf_model(family, MODELS[family], Sizes(layers=2)))
    free = torch.export.Dim.DYNAMIC
    exported = torch.export.export(model, (random_ids(2, 7),), dynamic_shapes=({0: free, 1: free},))
    program: Any = exported.module()
    inputs = [random_ids(2, 7), random_ids(3, 11), random_ids(5, 13)]
    return max(float((program(each) - model(each)).abs().max()) for each in inputs)


def export_refusal() -> str:
    """What an exported model says to an id outside its vocabulary."""
    model = from_transformers(hf_model("bert", MODELS["bert"]))
    program: Any = torch.export.export(model, (torch.tensor([[2, 3]]),)).module()
    try:
        program(torch.tensor([[2, VOCABULARY]]))
    except RuntimeError as refused:
        return str(refused)
    return ""


def refusal() -> str:
    """What a compiled model says to an id outside its vocabulary."""
    torch.compiler.reset()
    model = from_transformers(hf_model("bert", MODELS["bert"]))
    try:
        torch.compile(model, backend="aot_eager")(torch.tensor([[2, VOCABULARY]]))
    except TokenizationError as refused:
        return str(refused)
    return ""


def afterwards() -> float:
    """How far the logits of a trace are from those of the compiled model it is traced after."""
    torch.compiler.reset()
    model = from_transformers(hf_model("gpt2", MODELS["gpt2"]))
    logits = torch.compile(model, backend="aot_eager")(random_ids(1, 7))
    return float((model.trace(random_ids(1, 7)).logits - logits).abs().max())


def main() -> None:
    found: dict[str, Any] = {}
    with torch.no_grad():
        found["same graph"] = {family: error(family) for family in ("bert", "gpt2")}
        found["export"] = {family: export_error(family) for family in ("albert", "gpt2")}
        found["refusal"], found["export refusal"] = refusal(), export_refusal()
        found["afterwards"] = afterwards()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
