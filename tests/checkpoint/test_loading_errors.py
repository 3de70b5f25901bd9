"""A name that leads nowhere, a folder that is no checkpoint: what the error says."""

import gc
import json
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import nn
from vocabularies import word_piece

import minibert
from minibert.loading import from_transformers
from minibert.model import Model
from tests.families import hf_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of 41 embeddings."""
    hf_model("bert", "BertForMaskedLM").save_pretrained(tmp_path)
    return tmp_path


def message(name: Any, **options: Any) -> str:
    with pytest.raises(minibert.CheckpointError) as raised:
        minibert.load(name, **options)
    return str(raised.value)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for name in (missing, str(missing), Path("missing"), "./missing", "../missing", "~/missing/x"):
        text = message(name)
        assert f"{str(name)!r} is neither a folder nor a Hub id (owner/name)" in text
        assert "tiny-bert" in text, "what could be named instead is not said"


@pytest.mark.parametrize(
    "name", ["a/b/c", "two words", "ünï/ç?", "\x00", "a" * 5000 + "/", "", "  "]
)
def test_what_no_model_could_be_called_is_an_error(name: str) -> None:
    text = message(name)
    assert "neither a folder nor a Hub id" in text
    assert len(text) < 1000


@pytest.mark.parametrize("name", [5, 1.5, b"bert", ["bert"], {"a": 1}])
def test_what_is_no_name_at_all_is_an_error(name: Any) -> None:
    assert "neither a folder nor a Hub id" in message(name)


def test_a_file_is_an_error_that_asks_for_its_folder(folder: Path) -> None:
    text = message(folder / "model.safetensors")
    assert "model.safetensors is a file" in text
    assert "folder" in text


def test_a_folder_without_config_or_weights_says_which_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.bin")
    text = message(folder)
    assert "has no weights" in text
    assert "model.safetensors" in text
    assert "pytorch_model.bin" in text
    (folder / "config.json").unlink()
    assert f"{folder} has no config.json" in message(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"5", b"\xff\xfe", b"<html>", b"null"])
def test_a_config_that_is_no_json_object_is_an_error_that_names_the_file(
    folder: Path, content: bytes
) -> None:
    (folder / "config.json").write_bytes(content)
    text = message(folder)
    assert str(folder / "config.json") in text
    assert "JSON" in text or "expected an object" in text


def test_a_config_that_is_a_folder_is_an_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json: cannot be read" in message(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "t5"}, ["'t5'", "albert", "xlm-roberta"]),
        ({"architectures": ["BertForMultipleChoice"]}, ["BertForMultipleChoice", 'task="none"']),
        ({"num_attention_heads": 7}, ["7 heads do not divide a width of 15"]),
        ({"hidden_size": -15}, ["hidden_size is -15", "positive whole number"]),
        ({"hidden_size": "15"}, ["hidden_size is '15'"]),
        ({"position_embedding_type": "relative_key_query"}, ["relative_key_query", "'absolute'"]),
        ({"quantization_config": {"bits": 4}}, ["quantised"]),
        ({"vocab_size": 40}, ["shape (41, 15), expected (40, 15)", "mis-shaped"]),
    ],
)
def test_a_config_minibert_cannot_follow_is_an_error_that_says_why(
    folder: Path, changes: dict[str, Any], words: list[str]
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    text = message(folder)
    assert all(word in text for word in words), text


def test_a_task_the_family_lacks_is_an_error(folder: Path) -> None:
    text = message(folder, task="poetry")
    assert "'poetry'" in text
    assert "masked-lm, next-sentence" in text


def test_a_tokenizer_with_more_entries_than_embeddings_is_an_error(folder: Path) -> None:
    word_piece(folder)
    entries = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    text = message(folder)
    assert str(folder) in text
    assert f"the tokenizer has {entries} entries and the embeddings have 41 rows" in text
    assert "another model" in text


def test_a_broken_tokenizer_is_an_error_of_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(minibert.TokenizationError, match=r"tokenizer\.json"):
        minibert.load(folder)


def test_what_is_no_transformers_model_is_an_error() -> None:
    text = message(nn.Linear(3, 5))
    assert "Linear has no Hugging Face config" in text
    with pytest.raises(minibert.CheckpointError, match="BertForMultipleChoice"):
        from_transformers(hf_model("bert", "BertForMultipleChoice"))


def models_alive() -> int:
    gc.collect()
    return sum(issubclass(type(found), Model) for found in gc.get_objects())


def test_no_model_is_left_behind_by_a_load_that_failed(folder: Path) -> None:
    """Not even one whose last tensor alone is bad."""
    theirs = hf_model("bert", "BertForMaskedLM")
    with torch.no_grad():
        theirs.cls.predictions.bias[7] = torch.nan
    theirs.save_pretrained(folder)
    before = models_alive()
    assert "predictions" in message(folder)
    assert models_alive() <= before


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: without the checks of annotations that only tests have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn, "float16", 5]
)
def test_a_type_weights_cannot_have_is_an_error_that_lists_those_they_can(dtype: Any) -> None:
    for name in ("no/such/model", hf_model("bert", "BertModel")):
        text = message(name, dtype=dtype)
        assert repr(dtype) in text
        assert "torch.float64, torch.float32, torch.bfloat16, torch.float16" in text


@pytest.mark.parametrize(
    "device", ["bogus", "cpu:x", 1.5, *([] if torch.cuda.is_available() else ["cuda"])]
)
def test_a_device_that_is_not_there_is_an_error_before_any_work(device: Any) -> None:
    text = message("no/such/model", device=device)
    assert f"device={device!r} cannot be used" in text
    assert '"cpu"' in text


def test_a_live_model_stays_where_it_is_unless_a_device_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = hf_model("bert", "BertModel").to("meta")
    moved: list[Any] = []
    monkeypatch.setattr(Model, "to", lambda self, device: moved.append(device) or self)
    assert minibert.load(theirs).body.word.weight.is_meta
    assert minibert.load(theirs, device="meta").body.word.weight.is_meta
    assert moved == []
    minibert.load(theirs, device="cpu")
    assert moved == [torch.device("cpu")]


def test_files_nested_too_deeply_are_errors(folder: Path) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(deep)
    assert "index.json: cannot be read as JSON" in message(folder)
    (folder / "config.json").write_text(deep)
    assert "config.json: cannot be read as JSON" in message(folder)
