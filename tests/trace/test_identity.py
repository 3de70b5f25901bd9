"""A trace belongs to one model: the file of it is refused to any other, saying what differs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

import minibert
from minibert.layers import linear_backends as backends
from minibert.model import Model
from minibert.trace.file import weights_digest
from minibert.trace.read import Trace
from tests.families import Sizes, hf_model


def random_model(family: str = "bert", name: str = "BertForMaskedLM", **changes: Any) -> Model:
    dtype = changes.pop("dtype", torch.float32)
    return Model.from_transformers(hf_model(family, name, Sizes(**changes), dtype))


def changed_weight(model: Model) -> None:
    model.body.layers[1].attention.output.weight[3, 2] += 1e-6


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "other seed": (lambda: random_model(seed=1), "weights differ"),
    "deeper": (lambda: random_model(layers=5), "n_layers 3 and 5"),
    "other task": (lambda: random_model(name="BertModel"), "task 'masked-lm' and 'none'"),
    "double": (lambda: random_model(dtype=torch.float64), r"float32, the model in float64.*dtype="),
    "other family": (lambda: random_model("gpt2", "GPT2LMHeadModel"), "family 'bert' and 'gpt2'"),
    "not ours": (lambda: hf_model("bert", "BertForMaskedLM"), "expected the minibert model"),
    "a name": (lambda: "bert-base-uncased", "expected the minibert model"),
}


def test_another_model_is_an_error_that_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As people run it: without the checks of annotations that only tests have.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    random_model().trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    for make, said in OTHERS.values():
        with pytest.raises(minibert.TraceError, match=said):
            Trace.load(tmp_path / "a.trace", make())
    assert Trace.load(tmp_path / "a.trace", random_model())[0].mlp_out.shape == (1, 5, 15)


def test_one_changed_weight_makes_another_model(tmp_path: Path) -> None:
    model = random_model()
    model.trace(torch.arange(5)[None]).save(tmp_path / "a.trace")
    changed_weight(model)
    with pytest.raises(minibert.TraceError, match="weights differ"):
        Trace.load(tmp_path / "a.trace", model)


def test_the_digest_is_of_values_and_not_of_how_they_lie_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More rows than are turned at a time.
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(d_mlp=131))
    theirs.save_pretrained(tmp_path)
    shared, mapped = Model.from_transformers(theirs), minibert.load(tmp_path)
    assert not shared.body.layers[0].attention.query.weight.is_contiguous()
    copied = Model(shared.config)
    copied.load_state_dict(shared.state_dict())
    assert weights_digest(shared) == weights_digest(mapped) == weights_digest(copied)
    backends.use("onednn-packed")
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    mapped.pack()
    packed = mapped.is_packed
    assert weights_digest(mapped) == weights_digest(shared)
    assert mapped.is_packed == packed, "packed copies of weights would have to be made again"
    backends.use(None)
