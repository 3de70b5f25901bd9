"""A checkpoint that does not fit its configuration is refused, with everything wrong listed."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import minibert
from minibert.checkpoint.config import config_from_hf
from minibert.checkpoint.weights import sources, to_checkpoint
from minibert.loading import from_transformers
from tests.families import ARCHITECTURES, Sizes, hf_model

Tensors = dict[str, torch.Tensor]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf_model("bert", "BertForMaskedLM").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def message(folder: Path, **options: Any) -> str:
    with pytest.raises(minibert.CheckpointError) as raised:
        minibert.load(folder, **options)
    text = str(raised.value)
    assert str(folder) in text, "the message does not say where"
    return text


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [QUERY, "bert.embeddings.LayerNorm.weight"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.float64])
def test_weights_that_are_no_numbers_are_named_and_counted(
    folder: Path, name: str, value: float, stored: torch.dtype
) -> None:
    def damage(tensors: Tensors) -> None:
        tensors[name] = tensors[name].to(stored)
        tensors[name].view(-1)[[3, 7]] = value

    rewrite(folder, damage)
    text = message(folder)
    assert name.removeprefix("bert.") in text
    assert "2 values that are NaN or infinite" in text


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


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_a_file_cut_short_is_an_error(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:size])
    text = message(folder)
    assert "model.safetensors" in text
    assert "cut short" in text


class Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_that_wants_to_run_code_does_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    trace = tmp_path / "it-ran"
    torch.save({"x": Evil(trace)}, folder / "pytorch_model.bin")
    text = message(folder)
    assert "pytorch_model.bin" in text
    assert "mkdir" in text
    assert "safetensors" in text
    assert not trace.exists()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_our_parameters_under_their_names_are_those_of_transformers(
    family: str, name: str, tied: bool
) -> None:
    theirs = hf_model(family, name, Sizes(tied=tied))
    model = from_transformers(theirs)
    ours = to_checkpoint(model.config, dict(model.named_parameters()))
    state = theirs.state_dict()
    assert set(ours) <= set(state)
    # With a decoder of its own, transformers keeps this one and does not read it.
    unread = set() if tied else {"cls.predictions.bias", "lm_head.bias", "predictions.bias"}
    for key, tensor in ours.items():
        assert key in unread or torch.equal(tensor, state[key]), key
    # What is not written is a buffer, or another name of something that is.
    memory = {state[key].data_ptr() for key in ours}
    left = {key for key in set(state) - set(ours) if state[key].data_ptr() not in memory}
    assert not {key for key in left if "position_ids" not in key and "token_type_ids" not in key}


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_every_parameter_has_one_place_in_a_checkpoint(family: str, name: str) -> None:
    model = from_transformers(hf_model(family, name))
    table = sources(model.config)
    assert {ours for ours, _ in model.named_parameters()} <= set(table)
    places = [(source.names[0], source.part) for source in table.values()]
    assert len(set(places)) == len(places)


def test_a_config_of_another_size_is_an_error_and_nothing_is_loaded(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(re.sub(r'"hidden_size": 15', '"hidden_size": 18', path.read_text()))
    text = message(folder)
    assert "embeddings.word_embeddings.weight: shape (41, 15), expected (41, 18)" in text
    assert "54 mis-shaped" in text


def test_a_config_is_hashable_so_that_its_table_is_made_once() -> None:
    config = config_from_hf(hf_model("bert", "BertModel").config.to_dict())
    assert sources(config) is sources(config)


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
