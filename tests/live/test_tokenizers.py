"""The tokenizers of a live page give Python's tokens, for any text."""

import unicodedata
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live.engines import EngineError, EngineProcess, opened
from transformers import AlbertTokenizer, XLMRobertaTokenizer

import minibert
from minibert.errors import TokenizationError
from minibert.layers.bodies import Body
from minibert.layers.config import Config
from minibert.text.tokenizer import Tokenizer
from tests.vocabularies import ALBERT_MARKS, ROBERTA_MARKS, byte_fallback, unigram

# More tokens than any text here has.
POSITIONS = 4096


class Splitter:
    """A model that is almost nothing but its tokenizer, so that any text is split at once."""

    name = "splitter"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.config = Config(
            family="gpt2",
            task="none",
            vocab_size=tokenizer.vocab_size,
            n_positions=POSITIONS,
            n_layers=1,
            n_heads=1,
            d_model=1,
            d_mlp=1,
        )
        self.body = Body(self.config)

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        for name, values in self.weights():
            place, _, leaf = name.rpartition(".")
            module = torch.nn.Module()
            module.register_parameter(leaf, torch.nn.Parameter(values))
            yield place, module

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        config = self.config
        names = ("query", "key", "value", "output")
        shapes = {f"attention.{name}.weight": (1, 1) for name in names}
        shapes |= {"mlp.up.weight": (1, 1), "mlp.down.weight": (1, 1)}
        for norm in ("attention_norm", "mlp_norm"):
            shapes |= {f"{norm}.weight": (1,), f"{norm}.bias": (1,)}
        yield "body.word.weight", torch.zeros(config.vocab_size, 1)
        yield "body.position.weight", torch.zeros(config.n_positions, 1)
        yield "body.final_norm.weight", torch.ones(1)
        yield "body.final_norm.bias", torch.ones(1)
        for name, shape in shapes.items():
            yield f"body.groups.0.{name}", torch.ones(shape)


BACKENDS = {
    "prepended": lambda: byte_fallback(prepended=True),
    "bytes": lambda: byte_fallback(prepended=False),
    "albert": lambda: unigram(AlbertTokenizer, ALBERT_MARKS),
    "xlm-roberta": lambda: unigram(XLMRobertaTokenizer, ROBERTA_MARKS),
}


@pytest.fixture(scope="module", params=["tiny-bert", "tiny-gpt2", *BACKENDS])
def embedded(request):
    if request.param.startswith("tiny"):
        tokenizer = minibert.load(request.param).tokenizer
    else:
        tokenizer = Tokenizer.from_json(BACKENDS[request.param]().to_str())
    assert tokenizer is not None
    with opened(Splitter(tokenizer)) as engine:
        yield tokenizer, engine


def compare(tokenizer: Tokenizer, engine: EngineProcess, texts: list[str]) -> None:
    """The same tokens in all that a page says about them, or refused by both."""
    try:
        tokens = tokenizer(*texts)
    except TokenizationError:
        with pytest.raises(EngineError):
            engine.trace({"texts": texts, "edits": []})
        return
    if tokens.lengths[0] > POSITIONS:
        return
    found = engine.trace({"texts": texts, "edits": []})[0]["header"]["tokens"]
    raw = [raw or text for raw, text in zip(found["raw"], found["text"], strict=True)]
    # Strings of a vocabulary are all different, so equal strings are equal ids.
    assert raw == list(tokens.raw[0])
    assert found["text"] == list(tokens.strings[0])
    assert found["segment"] == tokens.segments[0].tolist()
    assert [bool(mark) for mark in found["special"]] == list(tokens.special[0])


def is_read_alike(character: str) -> bool:
    """Browsers know marks and decompositions that are newer than the library's table."""
    old = unicodedata.ucd_3_2_0.category(character) != "Cn"
    new = unicodedata.category(character)[0] == "M" or unicodedata.decomposition(character)
    return old or not new


def characters() -> st.SearchStrategy[str]:
    some = (
        "aenén\u0303\u0301ñßÅİıſǅﬁ中文日本か한\u0e33\u0939\u093fΣ𠀀😀👩‍👩‍👧\U0001f1e9\U0001f1ea\u200d\u200b\u00ad"
        "\ufeff\ufffd\0\x1b\x7f\x85\xa0\u2028\u3000\t\n\r '’“—.,!?-_#@[]<>|0123½²١①"
    )
    return st.one_of(st.sampled_from(some), st.characters(codec="utf-8").filter(is_read_alike))


def texts() -> st.SearchStrategy[str]:
    words = ["the", "The", " horse", "unaffable", "don't", "[MASK]", "[CLS]", "##s", " ", "  "]
    return st.lists(
        st.one_of(characters(), st.sampled_from([*words, "<|endoftext|>"])), max_size=30
    ).map("".join)


def test_every_mark_of_punctuation_splits_as_in_python(embedded):
    marks = [c for c in map(chr, range(0x110000)) if unicodedata.category(c)[0] == "P"]
    assert len(marks) > 800
    for first in range(0, len(marks), 16):
        compare(*embedded, [" ".join(f"a{mark}b" for mark in marks[first : first + 16])])


@settings(max_examples=400)
@given(one=st.lists(texts(), min_size=1, max_size=2))
def test_any_text_and_any_pair_is_split_as_in_python(embedded, one):
    compare(*embedded, one)
