"""Trained tokenizers are complete, repeatable, and the same in transformers."""

import json
import os
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from minibert.errors import TrainingError
from minibert.text.tokenizer import Tokenizer
from minibert.training.vocabulary import END_OF_TEXT, tokenizer_settings, train_tokenizer
from tests.training.small_runs import story

FAMILIES = ("bert", "distilbert", "electra", "albert", "roberta", "gpt2", "llama")
SIZE = 331
LINES = ("The old king saw a queen.", "“Don’t”, said ‘she’—twice!", "Ünknöwn 日本 🙂 zq 42")


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, train_tokenizer([story(1), story(2)], family=request.param, size=SIZE)


@pytest.fixture
def folder(trained: tuple[str, Tokenizer], tmp_path: Path) -> Path:
    """What a run writes of a tokenizer."""
    family, tokenizer = trained
    settings = tokenizer_settings(tokenizer, family=family, n_positions=64)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    model_type = {"model_type": family}
    (tmp_path / "config.json").write_text(json.dumps(model_type), encoding="utf-8")
    return tmp_path


def test_transformers_gives_the_same_ids_for_texts_and_pairs(
    trained: tuple[str, Tokenizer], folder: Path
) -> None:
    family, tokenizer = trained
    theirs: tuple[Any, ...] = (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")),
    )
    for other in theirs:
        for arguments in [(line,) for line in LINES] + [(LINES[0], LINES[1])]:
            tokens = tokenizer(*arguments)
            assert other(*arguments)["input_ids"] == tokens.ids[0].tolist()
    auto = theirs[0](LINES[0], LINES[2])
    if family in ("bert", "electra", "albert"):
        assert auto["token_type_ids"] == tokenizer(LINES[0], LINES[2]).segments[0].tolist()
    else:
        assert "token_type_ids" not in auto
    for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos"):
        assert getattr(theirs[0], f"{role}_token_id") == getattr(tokenizer, f"{role}_id")
    assert theirs[0].model_max_length == 64


def test_minibert_reads_its_own_folder(trained: tuple[str, Tokenizer], folder: Path) -> None:
    again = Tokenizer.from_folder(folder)
    for line in LINES:
        assert again(line).ids.tolist() == trained[1](line).ids.tolist()
    assert again.special_ids == trained[1].special_ids


def test_the_special_tokens_are_those_of_the_family(trained: tuple[str, Tokenizer]) -> None:
    family, tokenizer = trained
    special = {tokenizer.raw(i) for i in tokenizer.special_ids}
    if family in ("gpt2", "llama"):
        assert special == {END_OF_TEXT}
        assert tokenizer(LINES[0]).ids[0].tolist() == tokenizer.encode(LINES[0])
    elif family == "roberta":
        assert special == {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
        assert tokenizer.raw(1) == "<pad>"
    else:
        assert special == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
        assert tokenizer.pad_id == 0
    assert tokenizer.vocab_size <= SIZE


def test_bytes_decode_to_the_text_whatever_it_is() -> None:
    tokenizer = train_tokenizer([story()], family="gpt2", size=300)
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_words_become_whole_tokens_with_the_space_in_front_of_them() -> None:
    words = [" spaghetti", " astronomers", "leaves"]
    texts = [story(1), story(2)]
    tokenizer = train_tokenizer(texts, family="llama", size=SIZE, whole=words)
    found = tokenizer.encode("leaves spaghetti astronomers")
    assert [tokenizer.decode([i]) for i in found] == ["leaves", *words[:2]]
    without = train_tokenizer(texts, family="llama", size=SIZE)
    assert all(len(without.encode(word)) > 1 for word in words)


def test_words_become_whole_word_pieces() -> None:
    words = [" spaghetti", "Astronomers"]
    tokenizer = train_tokenizer([story(1), story(2)], family="bert", size=SIZE, whole=words)
    found = tokenizer.encode("Astronomers spaghetti spaghettis")
    assert [tokenizer.raw(i) for i in found[:3]] == ["astronomers", "spaghetti", "spaghetti"]


@pytest.mark.parametrize(
    ("family", "words", "message"),
    [
        ("llama", [" two words"], r" two words: 1 of 1 words are no single token"),
        ("llama", ["".join(p) for p in permutations("abcdef")], "of 720 words are no single token"),
        ("bert", ["two words"], "two words: 1 of 1 words are no single token"),
    ],
)
def test_words_that_cannot_be_whole_are_an_error(
    family: str, words: list[str], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        train_tokenizer([story(1)], family=family, size=SIZE, whole=words)


def test_curly_quotes_are_the_straight_ones_of_cleaned_texts() -> None:
    tokenizer = train_tokenizer(["\"Don't\", said 'she'--twice!"], family="bert", size=100)
    straight = tokenizer.encode("\"Don't\", said 'she'--twice!")
    assert tokenizer.encode("“Don’t”, said ‘she’—twice!") == straight
    assert tokenizer.unk_id not in straight


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_same_texts_give_the_same_vocabulary(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Words of three letters tie in their counts everywhere.
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=3)) for _ in range(3000)]
    found = set()
    for parallel in ("false", "true", "true"):
        monkeypatch.setitem(os.environ, "TOKENIZERS_PARALLELISM", parallel)
        found.add(train_tokenizer([" ".join(words)] * 3, family=family, size=400).to_json())
    assert len(found) == 1


def test_word_pieces_are_those_that_the_library_learns() -> None:
    # All counts differ, so nothing depends on how a tie is broken.
    counts = {"abab": 31, "abc": 17, "cab": 7, "bcaé": 5, "x": 3, "-": 2}
    text = " ".join(" ".join([word] * count) for word, count in counts.items())
    library = Backend(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=100, special_tokens=special, show_progress=False)
    library.train_from_iterator([text.replace("é", "e")], trainer)
    ours = train_tokenizer([text], family="bert", size=100)
    assert {ours.raw(i) for i in range(ours.vocab_size)} == set(library.get_vocab())


@pytest.mark.parametrize(
    ("family", "size", "smallest"), [("bert", 99, 100), ("gpt2", 299, 300), ("roberta", 1, 300)]
)
def test_too_small_a_vocabulary_is_an_error(family: str, size: int, smallest: int) -> None:
    with pytest.raises(
        TrainingError, match=rf"vocabulary of {size} .*expected at least {smallest}"
    ):
        train_tokenizer([story()], family=family, size=size)
    enough = train_tokenizer([story()], family=family, size=smallest)
    assert enough.vocab_size <= smallest


def test_more_characters_than_entries_are_an_error() -> None:
    many = " ".join(chr(0x4E00 + n) for n in range(200))
    with pytest.raises(TrainingError, match=r"different characters.*of 100 .*at least 20"):
        train_tokenizer([many], family="bert", size=100)
