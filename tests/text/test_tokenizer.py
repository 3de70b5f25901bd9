"""Texts become what transformers makes of them, and what cannot be read is an error."""

import copy
import json
import pickle
from itertools import accumulate

import pytest
import torch
from data import data_path
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import (
    AddedToken,
    BertTokenizerFast,
    GPT2TokenizerFast,
    PreTrainedTokenizerFast,
    RobertaTokenizerFast,
)
from vocabularies import ROBERTA_MARKS, byte_level, real, sentence_piece, word_piece

from minibert.errors import TokenizationError
from minibert.text.tokenizer import Tokenizer

# Any text but surrogates, which are not characters.
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
LETTERS = st.text("The quick brown café über Año 我想 한국 🙂🚀 1½ .,!?'\t\nשלום مرحبا", min_size=1)


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    folder = word_piece(tmp_path_factory.mktemp("bert"))
    return Tokenizer.from_folder(folder), BertTokenizerFast(str(folder / "vocab.txt"))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    folder = byte_level(tmp_path_factory.mktemp("gpt2"), ["<|endoftext|>"])
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    return Tokenizer.from_folder(folder), GPT2TokenizerFast(*files)


@pytest.fixture(scope="session")
def roberta(tmp_path_factory):
    folder = byte_level(tmp_path_factory.mktemp("roberta"), ROBERTA_MARKS)
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    mask = AddedToken("<mask>", lstrip=True)
    return Tokenizer.from_folder(folder), RobertaTokenizerFast(*files, mask_token=mask)


@pytest.fixture(scope="session")
def unigram(tmp_path_factory):
    folder = sentence_piece(tmp_path_factory.mktemp("unigram"))
    file = str(folder / "tokenizer.json")
    return Tokenizer.from_folder(folder), PreTrainedTokenizerFast(tokenizer_file=file)


@pytest.fixture(scope="session", params=["bert", "gpt2", "roberta", "unigram"])
def both(request):
    """Ours and transformers', of each kind, from the same files."""
    return request.getfixturevalue(request.param)


def assert_same(tokens, theirs, **options):
    """Every quantity of ours is transformers', padding included."""
    expected = theirs(
        *zip(*tokens.texts, strict=True),
        return_offsets_mapping=True,
        return_token_type_ids=True,
        return_special_tokens_mask=True,
        **options,
    )
    for i in range(len(tokens)):
        of_text = [owner is not None for owner in expected.sequence_ids(i)]
        offsets = zip(expected["offset_mapping"][i], of_text, strict=True)
        length = tokens.lengths[i]
        assert tokens.ids[i, :length].tolist() == expected["input_ids"][i]
        assert tokens.segments[i, :length].tolist() == expected["token_type_ids"][i]
        assert list(tokens.raw[i]) == theirs.convert_ids_to_tokens(expected["input_ids"][i])
        assert list(tokens.words[i]) == expected.word_ids(i)
        assert list(tokens.spans[i]) == [span if own else None for span, own in offsets]


@given(first=TEXTS, second=TEXTS)
@example("café e\u0301te\u0301 Führer Straße", "a 🦙 and 😶\u200d🌫️✅, again 🦙")
@example("我想在apple工作1314151天～ 한국어", "שלום עולם, مرحبا")
@example("a [MASK] <mask> [SEP] </s> <|endoftext|> b", "[UNK] <unk> [CLS]a[PAD]")
@example("a\x00b \x07c", "  leading, trailing and   many spaces \n\n\t ")
@example("supercalifragilistic" * 20, "plain words, nothing else!")
def test_any_text_and_pair_become_what_transformers_makes_of_them(both, first, second):
    ours, theirs = both
    try:
        tokens = ours([first, second])
    except TokenizationError:
        one, two = (theirs(text, add_special_tokens=False)["input_ids"] for text in (first, second))
        assert not one or not two
    else:
        assert_same(tokens, theirs)
        assert_same(ours([first], [second]), theirs)


@given(texts=st.lists(LETTERS.filter(str.strip), min_size=1, max_size=5))
def test_padding_changes_no_id(both, texts):
    ours, _ = both
    tokens = ours(texts)
    for i, text in enumerate(texts):
        alone = ours(text)
        assert alone.mask.all()
        assert tokens[i].ids.tolist() == alone.ids.tolist()
        assert tokens[i].spans == alone.spans
        assert (tokens.ids[i][~tokens.mask[i]] == (ours.pad_id or 0)).all()
        assert not tokens.segments[i][~tokens.mask[i]].any()


@given(text=TEXTS)
@example("我想 é 🙂")
def test_byte_level_spans_are_the_characters_whose_bytes_the_token_holds(gpt2, text):
    ours, _ = gpt2
    if "<|endoftext|>" in text:
        return
    owner = [i for i, character in enumerate(text) for _ in character.encode()]
    tokens = ours(text)
    ends = list(accumulate(len(raw) for raw in tokens.raw[0]))
    expected = [
        (owner[start], owner[end - 1] + 1) for start, end in zip([0, *ends], ends, strict=False)
    ]
    assert list(tokens.spans[0]) == expected


@pytest.mark.parametrize("limit", [5, 6, 7, 8, 11, 12, 13, 24])
@pytest.mark.parametrize(
    ("first", "second"), [("one two three " * 7, "four five"), ("a b", "c d e f g h i j k")]
)
def test_truncation_cuts_what_transformers_cuts(both, limit, first, second):
    ours, theirs = both
    options = {"truncation": True, "max_length": limit}
    assert_same(ours([first], truncate=True, max_positions=limit), theirs, **options)
    if limit > 5:
        pair = ours([first], [second], truncate=True, max_positions=limit)
        assert_same(pair, theirs, **options)


def test_marks_are_special_and_pieces_of_text_are_not(bert, gpt2):
    tokens = bert[0]("a [MASK] 🦙 [SEP]", "b")
    assert tokens.raw == (("[CLS]", "a", "[MASK]", "[UNK]", "[SEP]", "[SEP]", "b", "[SEP]"),)
    assert tokens.special == ((True, False, False, False, True, True, False, True),)
    assert tokens.spans[0][2:5] == ((2, 8), (9, 10), (11, 16))
    assert gpt2[0]("<|endoftext|>a").special == ((True, False),)


@given(text=LETTERS)
def test_ids_decode_as_in_transformers(both, text):
    ours, theirs = both
    ids = theirs(text)["input_ids"]
    for skip in (True, False):
        expected = theirs._tokenizer.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special=skip) == expected


@given(text=TEXTS)
def test_byte_level_ids_decode_to_the_text_itself(gpt2, text):
    ours, _ = gpt2
    assert ours.decode(ours.encode(text), skip_special=False) == text


def test_ids_outside_the_vocabulary_are_written_out(bert):
    ours, _ = bert
    assert ours.raw(ours.vocab_size) == ours.string(ours.vocab_size) == str(ours.vocab_size)
    with pytest.raises(TokenizationError, match="-1"):
        ours.decode([1, -1])


@pytest.mark.parametrize("kind", ["word pieces", "bytes", "declared"])
@pytest.mark.parametrize("again", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_a_tokenizer_can_be_pickled_and_copied(kind, again, tmp_path):
    if kind == "bytes":
        byte_level(tmp_path, ROBERTA_MARKS)
    else:
        word_piece(tmp_path)
    if kind == "declared":
        declared = {"mask_token": "fox", "bos_token": "dog", "pad_token": "no such token"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
    first = Tokenizer.from_folder(tmp_path)
    second = again(first)
    for name in ("mask", "pad", "cls", "sep", "unk", "bos", "eos"):
        assert getattr(second, f"{name}_id") == getattr(first, f"{name}_id"), name
    assert (second.special_ids, second.structural_ids) == (first.special_ids, first.structural_ids)
    assert second.vocab_size == first.vocab_size
    text = "The quick brown fox, café 🙂"
    one, two = first(text, "lazy dog"), second(text, "lazy dog")
    assert torch.equal(one.ids, two.ids)
    assert (one.strings, one.spans, one.special) == (two.strings, two.spans, two.special)


@pytest.fixture
def ours(bert):
    return bert[0]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("",), {}, "the text is empty"),
        ((["a", ""],), {}, "text 1 of the batch is empty"),
        (([],), {}, "batch is empty"),
        ((["a", "b", " "],), {}, "text 2 of the batch gives no token"),
        (("\x00",), {}, "the text gives no token"),
        (("a", " "), {}, "the second text gives no token"),
        ((["a", "b"], ["c", "\t"]), {}, "the second text of pair 1 of the batch gives no token"),
        ((["a", "b"], ["c"]), {}, "2 texts and 1 in pair"),
        ((["a"], "b"), {}, "both one str or both lists"),
        (("a", ["b"]), {}, "both one str or both lists"),
        ((b"a",), {}, "not bytes"),
        ((None,), {}, "not NoneType"),
        ((["a", None],), {}, "text 1 of the batch must be a str, not NoneType"),
        ((["a", ("b", "c")],), {}, "text 1 of the batch must be a str, not tuple"),
        (("ab\ud800c",), {}, r"U\+D800, at character 2"),
        ((["a", "🦙\udfff"],), {}, r"text 1 of the batch.*U\+DFFF, at character 1"),
        (("a b c .",), {"max_positions": 5}, r"6 tokens.*limit is 5.*truncate=True"),
        ((["a", "a b c ."],), {"max_positions": 5}, "sentence 1 of the batch has 6"),
        (("a b c",), {"truncate": True, "max_positions": 2}, "at least 3"),
        (("a b c", "d"), {"truncate": True, "max_positions": 4}, "at least 5"),
        (("a",), {"truncate": True}, "max_positions"),
    ],
)
def test_what_gives_no_tokens_or_too_many_is_an_error_that_says_where(
    ours, arguments, options, message
):
    assert ours("a b c", max_positions=5).lengths == (5,)
    assert ours.encode("") == []
    with pytest.raises(TokenizationError, match=message):
        ours(*arguments, **options)


@pytest.fixture(scope="session")
def real_gpt2():
    return Tokenizer.from_folder(data_path("models", "gpt2-tokenizer"))


@pytest.mark.parametrize(
    ("checkpoint", "vectors", "files"),
    [
        ("all-MiniLM-L6-v2", "bert_uncased", ["tokenizer.json"]),
        ("all-MiniLM-L6-v2", "bert_uncased", ["vocab.txt"]),
        ("gpt2-tokenizer", "gpt2", ["tokenizer.json"]),
    ],
)
def test_the_published_vectors_are_reproduced(tmp_path, checkpoint, vectors, files):
    path = data_path("refs", "tokenizer_vectors", f"{vectors}.json")
    ours = Tokenizer.from_folder(real(tmp_path, checkpoint, *files))
    for vector in json.loads(path.read_text("utf-8")):
        assert ours.encode(vector["text"]) == vector["ids"], vector["text"]


def test_half_characters_are_shown_as_bytes(real_gpt2):
    tokens = real_gpt2("a 🦙")
    assert tokens.raw == (("a", "ĠðŁ", "¦", "Ļ"),)
    assert tokens.strings == (("a", r" \xf0\x9f", r"\xa6", r"\x99"),)
    assert tokens.spans == (((0, 1), (1, 3), (2, 3), (2, 3)),)
