"""`minibert verify` calls good checkpoints right and names the quantity of a mistake.

The mistakes are in our model only, and far below what a look at logits would show.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from data import data_path
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert import verification
from minibert.model import Model, load
from minibert.verification import verify
from tests import families
from tests.command_line import fails, run
from tests.rotary import classes
from tests.rotary.drawn import drawn, plain
from tests.rotary.theirs import model_of


@pytest.mark.parametrize(("family", "name"), [*families.ARCHITECTURES, *classes.ARCHITECTURES])
@settings(max_examples=2)
@given(data=st.data(), seed=st.integers(0, 10**9))
def test_any_architecture_gives_the_numbers_of_transformers_in_float64_and_float32(
    family, name, tmp_path_factory, data, seed
):
    if family in families.CLASSES:
        model = families.hf_model(family, name, data.draw(families.sizes))
    else:
        model = model_of(data.draw(drawn(family)), name, torch.float32)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    certificate = verify(folder, seed=seed)
    assert [one for one in certificate["quantities"] if not one["right"]] == []
    layers = model.config.num_hidden_layers
    found = {one["name"] for one in certificate["quantities"]}
    for kind in ("probs", "resid_post"):
        assert {f"{kind} {layer}" for layer in range(layers)} <= found
    assert {"embed", "logits"} <= found
    assert all(max(row) < model.config.vocab_size for row in certificate["ids"])


def albert() -> Any:
    """ALBERT base with logits up to 38, the size that trained ones have, and sharper attention."""
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    config = transformers.AlbertConfig(**sizes, vocab_size=3000, initializer_range=0.04)
    model = transformers.AlbertForMaskedLM(config)
    with torch.no_grad():
        model.albert.embeddings.word_embeddings.weight.mul_(20)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "albert"])
def test_real_and_full_size_weights_err_at_most_twice_what_they_do_in_transformers(name, tmp_path):
    """A bare limit holds there for nobody: the error grows with depth, width and the weights."""
    folder = tmp_path if name == "albert" else data_path("models", name)
    if name == "albert":
        albert().save_pretrained(folder)
    certificate = verify(folder, longest=12)
    assert [one for one in certificate["quantities"] if not one["right"]] == []


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model_of(plain("llama"), "LlamaForCausalLM", torch.float32).save_pretrained(folder)
    return folder


def epsilon(norm: Any) -> None:
    norm.eps *= 10


def swapped(linear: Any) -> None:
    linear.weight.data = linear.weight.data[[1, 0, *range(2, len(linear.weight))]]


def scaled(module: Any) -> None:
    module.weight.data *= 1 + 1e-6


def rounded(module: Any) -> None:
    module.weight.data = module.weight.half().to(module.weight.dtype)


def broken(
    patch: pytest.MonkeyPatch, mistake: Callable[[Any], None], place: str, dtypes: set[torch.dtype]
) -> None:
    """Put the mistake into what verify loads of ours in these types."""

    def loaded(folder: Path, dtype: torch.dtype, **options: Any) -> Model:
        model = load(folder, dtype=dtype, **options)
        model.unpack()
        if dtype in dtypes:
            mistake(model.get_submodule(place))
        return model

    patch.setattr(verification, "load", loaded)


def first_wrong(folder: Path) -> dict[str, Any]:
    return next(one for one in verify(folder)["quantities"] if not one["right"])


@pytest.mark.parametrize(
    ("mistake", "place", "first"),
    [
        (scaled, "body.word", "embed"),
        (epsilon, "body.groups.0.attention_norm", "probs 0"),
        (swapped, "body.groups.1.attention.query", "probs 1"),
        (swapped, "body.groups.0.attention.value", "resid_post 0"),
        (scaled, "body.groups.1.mlp.down", "resid_post 1"),
        (epsilon, "body.final_norm", "logits"),
        (scaled, "head.decoder", "logits"),
    ],
)
def test_a_mistake_is_caught_and_the_first_quantity_of_it_named(
    mistake, place, first, llama, tmp_path, monkeypatch
):
    broken(monkeypatch, mistake, place, {torch.float64, torch.float32})
    result = run("verify", str(llama), "-o", str(tmp_path / "certificate.json"))
    assert result.exit_code == 1
    assert result.stdout.endswith(f" quantities, from {first} on\n")
    said = json.loads((tmp_path / "certificate.json").read_text())
    assert said["right"] is False
    assert next(one["name"] for one in said["quantities"] if not one["right"]) == first


def test_an_error_of_float32_only_is_caught_by_its_rule(llama, monkeypatch):
    broken(monkeypatch, rounded, "body.groups.1.mlp.down", {torch.float32})
    first = first_wrong(llama)
    assert first["name"] == "resid_post 1"
    assert first["padded"] <= 1e-10 * first["largest"]


def test_an_error_of_packed_texts_only_is_caught(llama, monkeypatch):
    trace = Model.trace

    def wrong(model: Model, tokens: Any, *, packed: bool) -> Any:
        edit = {("resid_post", 1): lambda stream: stream * (1 + 1e-6)} if packed else None
        return trace(model, tokens, packed=packed, edit=edit)

    monkeypatch.setattr(Model, "trace", wrong)
    first = first_wrong(llama)
    assert first["name"] == "resid_post 1"
    assert first["padded"] <= 1e-10 * first["largest"] < first["packed"]


def test_what_it_cannot_compare_is_one_line(llama, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    fails(run("verify", str(tmp_path)), "'t5' is not a family minibert knows")
    other = shutil.copytree(llama, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    assert "  mis-shaped  layers.0.mlp" in run("verify", str(other)).stderr
    monkeypatch.setattr("transformers.__version__", "4.57.6")
    fails(run("verify", str(llama)), "needs transformers 5 or later, not 4.57.6")
    monkeypatch.setitem(sys.modules, "transformers", None)
    fails(run("verify", str(llama)), r"pip install 'minibert-attention\[verify\]'")


def test_memory_is_said_before(llama, monkeypatch):
    held = sum(p.numel() for p in load(llama).parameters())
    # Beside the weights: two layers of four heads, each with one number for each of 16 texts.
    assert verification.memory(llama, longest=1) == 8 * (held + 2 * 2 * 4 * 16)
    monkeypatch.setattr(verification, "memory", lambda *_: 5 * 2**30)
    monkeypatch.setattr(verification, "_theirs", lambda *_: [][1])
    result = run("verify", str(llama))
    assert result.exit_code == 1
    assert result.stderr.startswith("note: this takes about 5 GiB of memory")
