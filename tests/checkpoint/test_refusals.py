"""Refused are names that lead nowhere, folders that are no checkpoint, weights that do not fit."""

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file, save_file
from vocabularies import word_piece

import minibert
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
    text = str(raised.value)
    assert not (isinstance(name, Path) and name.is_dir()) or str(name) in text, "it says no place"
    return text


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


def test_a_tokenizer_with_more_entries_than_embeddings_is_an_error(folder: Path) -> None:
    word_piece(folder)
    entries = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    text = message(folder)
    assert str(folder) in text
    assert f"the tokenizer has {entries} entries and the embeddings have 41 rows" in text
    assert "another model" in text


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


Tensors = dict[str, torch.Tensor]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def rewrite(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_everything_missing_unexpected_and_misshaped_is_listed_at_once_and_sorted(
    folder: Path,
) -> None:
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
    assert 'task="none"' in lines[-1]
    assert "allow_unexpected=True" in lines[-1]
    # Leaving out what is unexpected does not make up for what is missing.
    assert "missing" in message(folder, allow_unexpected=True)


def test_a_head_that_is_not_in_the_file_is_missing_and_the_body_is_still_there(
    tmp_path: Path,
) -> None:
    hf_model("bert", "BertModel").save_pretrained(tmp_path)
    text = message(tmp_path, task="masked-lm")
    assert "missing     cls.predictions.transform.dense.weight  (shape (15, 15))" in text
    assert 'load(..., task="none")' in text
    assert minibert.load(tmp_path, task="none").head is None


def test_a_tensor_of_three_parameters_is_listed_once(tmp_path: Path) -> None:
    hf_model("gpt2", "GPT2LMHeadModel").save_pretrained(tmp_path)

    def damage(tensors: Tensors) -> None:
        del tensors["transformer.h.0.attn.c_attn.weight"]
        tensors["transformer.h.1.attn.c_attn.weight"] = torch.ones(45, 15)

    rewrite(tmp_path, damage)
    text = message(tmp_path)
    assert text.count("h.0.attn.c_attn.weight") == 1
    assert "shape (45, 15), expected (15, 45)" in text
    assert text.count("h.1.attn.c_attn.weight") == 1


def test_infinities_that_cancel_out_are_found(folder: Path) -> None:
    def damage(tensors: Tensors) -> None:
        tensors[QUERY][0, :2] = torch.tensor([torch.inf, -torch.inf])

    rewrite(folder, damage)
    assert "2 values" in message(folder)


def test_large_numbers_are_numbers_until_the_answers_are_none(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors[QUERY].fill_(1e7))
    model = minibert.load(folder)
    assert model.get_parameter("body.groups.1.attention.query.weight").max() == 1e7
    assert model(torch.arange(7)[None]).isfinite().all()
    rewrite(folder, lambda tensors: tensors[QUERY].fill_(3e38))
    assert "body.groups.1.attention.query.weight hold values so large" in message(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_weights_of_whole_numbers_are_an_error_that_says_quantised(
    folder: Path, dtype: torch.dtype
) -> None:
    rewrite(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY].to(dtype)}))
    text = message(folder)
    assert str(dtype) in text
    assert "self.query.weight" in text
    assert "Quantised" in text


def test_a_number_type_torch_alone_knows_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.float8_e4m3fn)}))
    text = message(folder)
    assert "F8_E4M3" in text
    assert "self.query.weight" in text
    assert "download" not in text, "the file is whole"


def test_a_config_of_another_size_is_an_error_and_nothing_is_loaded(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(re.sub(r'"hidden_size": 15', '"hidden_size": 18', path.read_text()))
    text = message(folder)
    assert "embeddings.word_embeddings.weight: shape (41, 15), expected (41, 18)" in text
    assert "54 mis-shaped" in text


@pytest.mark.parametrize(
    ("family", "name", "changes", "unexpected"),
    [
        ("bert", "BertModel", {"type_vocab_size": 0}, "embeddings.token_type_embeddings"),
        ("electra", "ElectraModel", {"embedding_size": 15}, "embeddings_project"),
    ],
)
def test_a_part_of_the_body_that_the_config_leaves_out_is_unexpected(
    family: str, name: str, changes: Any, unexpected: str, tmp_path: Path
) -> None:
    hf_model(family, name).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert f"unexpected  {unexpected}.weight" in message(tmp_path)


def test_two_names_of_one_tensor_are_an_error_that_names_both(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({QUERY[5:]: tensors[QUERY] + 1}))
    text = message(folder)
    assert "two names of one tensor" in text
    assert re.search(rf"{QUERY} and {QUERY[5:]} |{QUERY[5:]} and {QUERY} ", text)


@pytest.mark.parametrize("layers", [4, 500])
def test_layers_that_are_not_in_the_file_are_counted_before_any_is_built(
    folder: Path, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": layers}))
    monkeypatch.setattr(minibert.loading, "Model", None)
    assert f"config.json says {layers} layers, and the weights hold 3" in message(folder)


def test_only_what_may_help_is_hinted_at(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({QUERY: torch.ones(15, 17)}))
    text = message(folder)
    assert "task head missing" not in text
    assert "allow_unexpected" not in text


def test_numbers_too_large_for_the_type_asked_for_are_an_error(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors[QUERY][0, :2].fill_(70_000.0))
    text = message(folder, dtype=torch.float16)
    assert f"2 values of {QUERY[5:]} are too large for torch.float16" in text
    assert "torch.float32, torch.bfloat16" in text
    minibert.load(folder, dtype=torch.bfloat16)
    minibert.load(folder)


def test_a_file_of_several_types_gives_a_model_of_one(folder: Path) -> None:
    def mix(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(torch.float64 if "embeddings" in name else torch.float16)

    rewrite(folder, mix)
    model = minibert.load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(torch.arange(7)[None]).isfinite().all()
