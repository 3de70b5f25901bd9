"""Tokens that end a text, by generation_config.json, else config.json; and those without a row."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import minibert
from tests.families import Sizes, hf_model

PROMPT = torch.tensor([[25, 19, 14]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random GPT-2 that never meets its end token by itself."""
    hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1)).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    say(tmp_path / "config.json", None)
    return tmp_path


def say(path: Path, ends: Any) -> None:
    about = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(about | {"eos_token_id": ends}))


def written(folder: Path) -> tuple[list[int], str]:
    generated = minibert.load(folder).generate(PROMPT[0], max_new_tokens=9, temperature=0)
    return list(generated.new_ids), generated.stopped_by


def by_transformers(folder: Path) -> list[int]:
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder)
    mask = torch.ones_like(PROMPT)
    with torch.no_grad():
        ids = theirs.generate(PROMPT, attention_mask=mask, max_new_tokens=9, do_sample=False)
    return ids[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_the_end_token_of_each_file_ends_the_text_as_in_transformers(
    folder: Path, file: str, as_list: bool
) -> None:
    whole, why = written(folder)
    assert (len(whole), why) == (9, "max_new_tokens")
    end = whole[4]
    if file != "config.json":
        say(folder / "config.json", whole[0])
    say(folder / file, [40, end] if as_list else end)
    found, why = written(folder)
    assert why == "end of text"
    assert found == whole[: whole.index(end) + 1] == by_transformers(folder)


@pytest.mark.parametrize("wrong", ["end", -1, 1.5, True, [1, None], {"a": 1}])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_what_is_no_token_id_is_an_error_that_names_the_file(
    folder: Path, file: str, wrong: Any
) -> None:
    say(folder / file, wrong)
    with pytest.raises(minibert.CheckpointError, match=rf"{file}: eos_token_id is"):
        minibert.load(folder)


def test_end_tokens_are_saved_with_the_model(folder: Path, tmp_path: Path) -> None:
    from minibert.checkpoint.save import save

    say(folder / "generation_config.json", [3, 7])
    again = minibert.load(save(minibert.load(folder), tmp_path / "again"))
    assert again.config.end_ids == (3, 7)


def with_token(source: Path, folder: Path, *, special: bool) -> Path:
    """The checkpoint with one more token in its tokenizer, behind the last row."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    rows = json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"]
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    token = {"id": rows, "content": "<image_soft_token>", "special": special, **shape}
    content["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_a_special_token_without_a_row_is_refused_where_it_is_used(tmp_path: Path) -> None:
    source = Path(minibert.__file__).parent / "embedded" / "tiny-gpt2"
    model = minibert.load(with_token(source, tmp_path / "special", special=True))
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == model.config.vocab_size + 1
    assert model("Once upon a time").shape[-1] == model.config.vocab_size
    with pytest.raises(minibert.TokenizationError, match=str(model.config.vocab_size)):
        model("Once upon <image_soft_token>")
    with pytest.raises(minibert.CheckpointError, match="belongs to another model"):
        minibert.load(with_token(source, tmp_path / "plain", special=False))
