"""tokenizer.py: the ids and tokens that others published for the real vocabularies."""

import json

import numpy as np
import pytest
from data import data_path
from vocabularies import real

from minibert.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def real_gpt2():
    return Tokenizer.from_folder(data_path("models", "gpt2-tokenizer"))


@pytest.fixture(scope="session")
def real_bert():
    return Tokenizer.from_folder(data_path("models", "all-MiniLM-L6-v2"))


@pytest.mark.parametrize(
    ("checkpoint", "vectors", "files"),
    [
        ("all-MiniLM-L6-v2", "bert_uncased", ["tokenizer.json"]),
        ("all-MiniLM-L6-v2", "bert_uncased", ["vocab.txt"]),
        ("gpt2-tokenizer", "gpt2", ["tokenizer.json"]),
        ("gpt2-tokenizer", "gpt2", ["vocab.json", "merges.txt"]),
    ],
)
def test_the_published_vectors_are_reproduced(tmp_path, checkpoint, vectors, files):
    path = data_path("refs", "tokenizer_vectors", f"{vectors}.json")
    ours = Tokenizer.from_folder(real(tmp_path, checkpoint, *files))
    for vector in json.loads(path.read_text("utf-8")):
        assert ours.encode(vector["text"]) == vector["ids"], vector["text"]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("bert-base-uncased__rabbit", "the rabbit quickly hopped", "the turtle slowly crawled"),
        (
            "bert-base-uncased__store",
            "I went to the store.",
            "At the store, I bought fresh strawberries.",
        ),
    ],
)
def test_the_tokens_of_published_attention_are_reproduced(real_bert, name, first, second):
    expected = np.load(data_path("refs", f"{name}.npz"), allow_pickle=False)["tokens"].tolist()
    tokens = real_bert(first, second)
    assert list(tokens.raw[0]) == expected or list(tokens.strings[0]) == expected
    assert tokens.segments.sum().item() == len(expected) - expected.index("[SEP]") - 1


def test_the_ids_of_published_gpt2_attention_are_reproduced(real_gpt2):
    reference = np.load(data_path("refs", "gpt2__te0.npz"), allow_pickle=False)
    tokens = real_gpt2("".join(reference["tokens"]))
    assert list(tokens.strings[0]) == reference["tokens"].tolist()
    assert tokens.ids[0].tolist() == reference["token_ids"].ravel().tolist()


def test_half_characters_are_shown_as_bytes(real_gpt2):
    tokens = real_gpt2("a 🦙")
    assert tokens.raw == (("a", "ĠðŁ", "¦", "Ļ"),)
    assert tokens.strings == (("a", r" \xf0\x9f", r"\xa6", r"\x99"),)
    assert tokens.spans == (((0, 1), (1, 3), (2, 3), (2, 3)),)
