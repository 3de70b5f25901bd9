"""Texts that are split into words already, beside `is_split_into_words` in transformers."""

import json
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import (
    AddedToken,
    BertTokenizerFast,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
)
from vocabularies import ROBERTA_MARKS, byte_level, sentence_piece, word_piece

import minibert
from minibert.errors import TokenizationError
from minibert.text.tokenizer import Tokenizer
from minibert.text.words import Words
from minibert.viz import view

# Characters but surrogates, and no spaces at the ends, which are not part of a word.
WORD = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=9).map(str.strip)
LISTS = st.lists(WORD.filter(bool), min_size=1, max_size=9)
HARD = [
    ["café", "été", "straw-berries", "don't", "(2.5%)", "🦙🚀"],
    ["New York", "2 000", "a  b"],
    ["a", "[MASK]", "<mask>", "[SEP]", "x</s>y", "<|endoftext|>", "[UNK]"],
    ["我想在apple工作", "東京の天気", "שלום", "Ġx", "##ing", "▁the"],
    ["supercalifragilistic" * 20],
]


def assert_same(tokens, given, theirs):
    """Ours is what transformers gives; spans lie in the words with spaces between them."""
    columns = [[list(text) for text in texts] for texts in zip(*given, strict=True)]
    expected = theirs(
        *columns, is_split_into_words=True, return_offsets_mapping=True, return_token_type_ids=True
    )
    for i, texts in enumerate(given):
        length = tokens.lengths[i]
        assert tokens.ids[i, :length].tolist() == expected["input_ids"][i]
        assert tokens.segments[i, :length].tolist() == expected["token_type_ids"][i]
        assert list(tokens.words[i]) == expected.word_ids(i)
        spans = []
        owners = zip(expected.sequence_ids(i), expected.word_ids(i), strict=True)
        for (owner, word), (start, end) in zip(owners, expected["offset_mapping"][i], strict=True):
            if owner is None:
                spans.append(None)
                continue
            before = len(" ".join([*list(texts[owner])[:word], ""]))
            spans.append((before + start, before + end))
        assert list(tokens.spans[i]) == spans
        assert tokens.texts[i] == tuple(" ".join(text) for text in texts)


KINDS = {
    "bert": (word_piece, BertTokenizerFast, ["vocab.txt"], {}),
    "roberta": (
        partial(byte_level, marks=ROBERTA_MARKS),
        RobertaTokenizerFast,
        ["vocab.json", "merges.txt"],
        {"add_prefix_space": True, "mask_token": AddedToken("<mask>", lstrip=True)},
    ),
    "unigram": (sentence_piece, PreTrainedTokenizerFast, [], {}),
}


@pytest.fixture(scope="session", params=KINDS)
def both(request, tmp_path_factory):
    """Ours and transformers', of each kind, from the same files."""
    make, theirs, names, options = KINDS[request.param]
    folder = make(tmp_path_factory.mktemp(request.param))
    if request.param == "unigram":
        options = {"tokenizer_file": str(folder / "tokenizer.json")}
    return Tokenizer.from_folder(folder), theirs(*(str(folder / n) for n in names), **options)


@example(HARD[0], HARD[1])
@example(HARD[2], HARD[3])
@example(HARD[4], HARD[0])
@given(first=LISTS, second=LISTS)
def test_any_words_become_what_transformers_makes_of_them(both, first, second):
    ours, theirs = both
    given = (Words(first), Words(second))
    try:
        tokens = ours(*given)
    except TokenizationError:
        texts = [theirs(list(w), is_split_into_words=True, add_special_tokens=False) for w in given]
        assert not all(text["input_ids"] for text in texts)
    else:
        assert_same(tokens, [given], theirs)


def test_a_byte_level_vocabulary_within_a_sequence_has_a_space_before_each_word(tmp_path):
    # As Llama 3 and Qwen have it: words are split first and become bytes then.
    folder = byte_level(tmp_path, ["<|endoftext|>"])
    plain = Tokenizer.from_folder(folder)
    parts = json.loads(plain.to_json())
    split = {"type": "Split", "pattern": {"Regex": r" ?\\w+|[^\\w\\s]+"}}
    split |= {"behavior": "Isolated", "invert": False}
    level = parts["pre_tokenizer"] | {"use_regex": False}
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    tokens = Tokenizer.from_json(json.dumps(parts))(Words(["don't", "go"]))
    assert "".join(tokens.strings[0]) == " don't go"
    assert set(tokens.words[0]) == {0, 1}


def test_words_stand_wherever_a_text_does():
    words, other = Words(["The", "horse", "don't", "run"]), Words(["boys", "walk"])
    bert, gpt2 = minibert.load("tiny-bert"), minibert.load("tiny-gpt2")
    trace = bert.trace(words, other)
    assert torch.equal(trace.logits, bert(words, other))
    assert bert.predict(words, other) == bert.predict(trace.tokens)
    # Here the tokens are those of the text itself, so the page has nothing to differ in.
    assert view(trace).html == view(bert.trace(words.text, other.text)).html
    assert trace.tokens.words[0][1:7] == (0, 1, 2, 2, 2, 3)
    mixed = bert.trace(["a text", words], packed=True)
    assert mixed.tokens.texts == (("a text",), (words.text,))
    alone = bert.trace(words)
    torch.testing.assert_close(mixed.text(1)[1].probs, alone[1].probs)
    written = gpt2.generate(words, max_new_tokens=3, seed=5)
    assert written.text.startswith(words.text)
    assert written.ids == gpt2.generate(" " + words.text, max_new_tokens=3, seed=5).ids
    assert gpt2.tokenize(Words(["horse"] * 300), truncate=True).words[0][-1] < 299


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("The horse", "expected a list of words, not one str"),
        (5, "Words of a int"),
        ([], "no word"),
        (["a", ""], "word 1 is ''; expected at least one character"),
        (["a", "b "], "word 1 is 'b '; .* no space at its beginning or end"),
        (["a", None], "word 1 must be a str, not None"),
    ],
)
def test_what_is_no_list_of_words_is_an_error(words, message):
    with pytest.raises(TokenizationError, match=message):
        Words(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Words(["a"]), "b"), "must be both str or both Words"),
        ((Words(["a"]), [Words(["b"])]), "both one str or both lists"),
        ((["a", Words(["\x00"])],), "text 1 of the batch gives no token"),
        ((Words(["a", "\ud800"]),), "surrogate, U\\+D800, at character 2"),
        ((Words(["horse"] * 300),), "300|302"),
    ],
)
def test_words_that_give_no_tokens_or_too_many_are_an_error(arguments, message):
    with pytest.raises(TokenizationError, match=message):
        minibert.load("tiny-bert").tokenize(*arguments)
