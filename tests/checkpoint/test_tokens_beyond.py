"""A tokenizer may have special tokens that the embeddings have no row for, and nothing else."""

import json
from pathlib import Path

import pytest

import minibert


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
