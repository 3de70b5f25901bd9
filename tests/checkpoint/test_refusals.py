"""Refused are names that lead nowhere, folders that are not checkpoints, weights that do not
fit."""

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import minibert
from minibert.model import Model
from tests.families import hf_model

Tensors = dict[str, torch.Tensor]
WHOLE = "model.safetensors"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of 41 embeddings."""
    hf_model("bert", "BertForMaskedLM").save_pretrained(tmp_path)
    return tmp_path


pytestmark = pytest.mark.usefixtures("unchecked")


def message(name: Any, **options: Any) -> str:
    with pytest.raises(minibert.CheckpointError) as raised:
        minibert.load(name, **options)
    text = str(raised.value)
    assert not (isinstance(name, Path) and name.is_dir()) or str(name) in text, "it says no place"
    return text


def rewrite(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / WHOLE)
    change(tensors)
    save_file(tensors, folder / WHOLE)


def reconfigure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


NAMES = ["./missing", "../missing", "~/missing/x", Path("missing"), "a/b/c", "two words"]
NAMES += ["ünï/ç?", "\x00", "a" * 5000 + "/", "", "  ", 5, 1.5, b"bert", ["bert"], {"a": 1}]


@pytest.mark.parametrize("name", NAMES)
def test_what_leads_nowhere_is_an_error_that_says_what_could_be_named(name):
    text = message(name)
    assert re.search(r"is neither a folder nor a Hub id \(owner/name\).*tiny-bert", text)
    assert len(text) < 1000
    assert len(str(name)) > 200 or repr(str(name)) in text


def test_a_file_and_a_folder_without_config_or_weights_are_errors(folder):
    text = message(folder / WHOLE)
    assert f"{WHOLE} is a file; give the folder" in text
    (folder / WHOLE).rename(folder / "weights.bin")
    assert re.search(r"has no weights.*model\.safetensors.*pytorch_model\.bin", message(folder))
    for content in (b"", b"{", b"[1, 2]", b"5", b"\xff\xfe", b"<html>", b"null"):
        (folder / "config.json").write_bytes(content)
        text = message(folder)
        assert str(folder / "config.json") in text
        assert "JSON" in text or "expected an object" in text
    (folder / "config.json").unlink()
    assert f"{folder} has no config.json" in message(folder)


def models_alive() -> int:
    gc.collect()
    return sum(issubclass(type(found), Model) for found in gc.get_objects())


def test_no_model_is_left_behind_by_a_load_that_failed(folder):
    """Not even one whose last tensor alone is bad."""
    rewrite(folder, lambda tensors: tensors["cls.predictions.bias"][7:8].fill_(torch.nan))
    before = models_alive()
    assert "predictions" in message(folder)
    assert models_alive() <= before


DTYPES = [torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn, "float16", 5]
DEVICES = ["bogus", "cpu:x", 1.5, *([] if torch.cuda.is_available() else ["cuda"])]


def test_a_type_or_device_that_cannot_be_is_an_error_before_any_work():
    for dtype in DTYPES:
        for name in ("no/such/model", hf_model("bert", "BertModel")):
            text = message(name, dtype=dtype)
            assert repr(dtype) in text
            assert "torch.float64, torch.float32, torch.bfloat16, torch.float16" in text
    for device in DEVICES:
        text = message("no/such/model", device=device)
        assert f"device={device!r} cannot be used" in text
        assert '"cpu"' in text


def test_a_live_model_stays_where_it_is_unless_a_device_is_named(monkeypatch):
    theirs = hf_model("bert", "BertModel").to("meta")
    moved: list[Any] = []
    monkeypatch.setattr(Model, "to", lambda self, device: moved.append(device) or self)
    assert minibert.load(theirs).body.word.weight.is_meta
    assert minibert.load(theirs, device="meta").body.word.weight.is_meta
    assert moved == []
    minibert.load(theirs, device="cpu")
    assert moved == [torch.device("cpu")]


def test_everything_missing_unexpected_and_misshaped_is_listed_at_once_and_sorted(folder):
    def damage(tensors: Tensors) -> None:
        del tensors["bert.encoder.layer.2.output.dense.weight"]
        del tensors["bert.embeddings.LayerNorm.bias"]
        tensors["bert.encoder.layer.9.output.dense.weight"] = torch.ones(2, 3)
        tensors["a_surprise"] = torch.ones(1)
        tensors[QUERY] = torch.ones(15, 17)

    rewrite(folder, damage)
    lines = [line.strip() for line in message(folder).splitlines()]
    assert lines[1:-1] == [
        "mis-shaped  encoder.layer.1.attention.self.query.weight: "
        "shape (15, 17), expected (15, 15)",
        "missing     embeddings.LayerNorm.bias  (shape (15,))",
        "missing     encoder.layer.2.output.dense.weight  (shape (15, 23))",
        "unexpected  a_surprise",
        "unexpected  encoder.layer.9.output.dense.weight",
    ]
    assert "bert model with task 'masked-lm'" in lines[0]
    assert re.search('task="none".*allow_unexpected=True', lines[-1])
    # Leaving out what is unexpected does not make up for what is missing.
    assert "missing" in message(folder, allow_unexpected=True)


def test_a_head_that_is_not_in_the_file_is_missing_and_the_body_is_still_there(tmp_path):
    hf_model("bert", "BertModel").save_pretrained(tmp_path)
    text = message(tmp_path, task="masked-lm")
    assert "missing     cls.predictions.transform.dense.weight  (shape (15, 15))" in text
    assert 'load(..., task="none")' in text
    assert minibert.load(tmp_path, task="none").head is None


def test_a_tensor_of_three_parameters_is_listed_once(tmp_path):
    hf_model("gpt2", "GPT2LMHeadModel").save_pretrained(tmp_path)

    def damage(tensors: Tensors) -> None:
        del tensors["transformer.h.0.attn.c_attn.weight"]
        tensors["transformer.h.1.attn.c_attn.weight"] = torch.ones(45, 15)

    rewrite(tmp_path, damage)
    text = message(tmp_path)
    assert text.count("h.0.attn.c_attn.weight") == text.count("h.1.attn.c_attn.weight") == 1
    assert "shape (45, 15), expected (15, 45)" in text


def query(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({QUERY: change(tensors[QUERY])})


def cancelling(weight: torch.Tensor) -> torch.Tensor:
    weight[0, :2] = torch.tensor([torch.inf, -torch.inf])
    return weight


TWICE = rf"({QUERY} and {QUERY[5:]}|{QUERY[5:]} and {QUERY}) are two names of one tensor"
TENSORS: list[tuple[Callable[[Tensors], Any], str, str]] = [
    *(
        (query(lambda one, kind=kind: one.to(kind)), rf"self\.query\.weight.*{kind}.*Quantised", "")
        for kind in (torch.int8, torch.uint8, torch.int64, torch.bool)
    ),
    # The file is whole.
    (query(lambda w: w.to(torch.float8_e4m3fn)), r"self\.query\.weight.*F8_E4M3", "download"),
    (query(cancelling), "2 values", ""),
    (lambda tensors: tensors.update({QUERY[5:]: tensors[QUERY] + 1}), TWICE, ""),
    (query(lambda w: torch.ones(15, 17)), "mis-shaped", "task head missing|allow_unexpected"),
]


@pytest.mark.parametrize(("change", "said", "unsaid"), TENSORS)
def test_a_tensor_that_is_no_weight_is_named_with_what_may_help(folder, change, said, unsaid):
    rewrite(folder, change)
    text = message(folder)
    assert re.search(f"(?s){said}", text)
    assert not unsaid or not re.search(unsaid, text)


def test_large_numbers_are_numbers_and_one_type_is_the_models(folder):
    rewrite(folder, query(lambda weight: torch.full_like(weight, 1e7)))
    model = minibert.load(folder)
    assert model.get_parameter("body.groups.1.attention.query.weight").max() == 1e7
    assert model(torch.arange(7)[None]).isfinite().all()
    rewrite(folder, lambda tensors: tensors[QUERY].fill_(0.1)[0, :2].fill_(70_000.0))
    text = message(folder, dtype=torch.float16)
    assert f"2 values of {QUERY[5:]} of {folder} are too large for torch.float16" in text
    assert "torch.float32, torch.bfloat16" in text
    minibert.load(folder, dtype=torch.bfloat16)

    def mix(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            small = tensor.clamp(-1, 1)
            tensors[name] = small.to(torch.float64 if "embeddings" in name else torch.float16)

    rewrite(folder, mix)
    model = minibert.load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(torch.arange(7)[None]).isfinite().all()


ELSEWHERE: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert", "BertForMaskedLM", {"hidden_size": 18},
     r"word_embeddings\.weight: shape \(41, 15\), expected \(41, 18\).*54 mis-shaped"),
    ("bert", "BertModel", {"type_vocab_size": 0},
     r"unexpected  embeddings\.token_type_embeddings\.weight"),
    ("electra", "ElectraModel", {"embedding_size": 15}, r"unexpected  embeddings_project\.weight"),
    ("bert", "BertModel", {"num_hidden_layers": 4}, "says 4 layers, and the weights hold 3"),
    ("bert", "BertModel", {"num_hidden_layers": 500}, "says 500 layers, and the weights hold 3"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "changes", "said"), ELSEWHERE)
def test_a_config_of_another_model_is_an_error(family, name, changes, said, tmp_path, monkeypatch):
    hf_model(family, name).save_pretrained(tmp_path)
    reconfigure(tmp_path, **changes)
    if "num_hidden_layers" in changes:
        # They are counted before any is built.
        monkeypatch.setattr(minibert.loading, "Model", None)
    assert re.search(f"(?s){said}", message(tmp_path))
