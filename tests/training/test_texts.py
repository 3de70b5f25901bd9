"""Files to documents, documents to sentences and token ids, and the tokenizer that is trained."""

import os
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from minibert.errors import TrainingError
from minibert.training.texts import (
    END_OF_TEXT,
    Corpus,
    Document,
    clean,
    hold_out,
    read_texts,
    sentence_starts,
    train_tokenizer,
)
from tests.training.small_runs import story

LETTERS = "abcdeéßçİñ'Aÿ"
word = st.text(st.sampled_from(LETTERS), min_size=1, max_size=5).filter(lambda w: w.strip("'"))


@st.composite
def sentences(draw):
    text = " ".join(draw(st.lists(word, min_size=1, max_size=6)))
    end = draw(st.sampled_from(".!?"))
    return f'"{text}{end}"' if draw(st.booleans()) else f"{text}{end}"


texts = st.lists(st.tuples(sentences(), st.sampled_from([" ", "\n"])), min_size=1, max_size=8)


def joined(parts):
    return "".join(s + (gap if n < len(parts) - 1 else "") for n, (s, gap) in enumerate(parts))


@pytest.fixture(scope="module")
def byte_level():
    return train_tokenizer(["a bc. Abc 'de"], size=300, byte_level=True)


@pytest.fixture(scope="module")
def word_piece():
    return train_tokenizer([" ".join(LETTERS) + LETTERS * 2 + ' .!?"'], size=100, byte_level=False)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "\ufeff\r\n  One line\nand  another.\t\n \n\n\nThe next\r\nparagraph.\n\n",
            "One line and another.\nThe next paragraph.",
        ),
        ("“It’s _so_ ‘odd’,” he said—twice.", "\"It's so 'odd',\" he said--twice."),
        (" \n\t\n\n_ \ufeff\n", ""),
    ],
)
def test_a_paragraph_becomes_a_line_with_straight_quotes(raw, expected):
    assert clean(raw) == expected


@given(st.text(st.sampled_from("ab _\n\t’—.\ufeff"), max_size=40))
def test_no_word_is_lost_and_no_space_is_double(text):
    once = clean(text)
    words = text.replace("_", "").replace("\ufeff", "").replace("’", "'").replace("—", "--")
    assert once.split() == words.split()
    assert not re.search(r"\s\s|^\s|\s$", once)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no\.txt: cannot be read \(No such file"),
        ("folder", r"no\.txt: cannot be read: it is not a regular file \(a folder"),
        (b"caf\xe9", r"no\.txt: byte 3 is not UTF-8; convert"),
        (b" \n\n\xef\xbb\xbf ", r"no\.txt: the file has no text"),
    ],
)
def test_what_cannot_be_read_is_an_error_naming_the_file(content, message, tmp_path):
    path = tmp_path / "no.txt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(TrainingError, match=message):
        read_texts([path])


@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.floats(0, 0.9))
def test_every_line_is_held_out_or_kept(sizes, share):
    whole = [
        Document(f"d{n}", "\n".join(f"line {i}" for i in range(size)))
        for n, size in enumerate(sizes)
    ]
    kept, held = hold_out(whole, share=share)
    assert [document.name for document in kept] == [document.name for document in whole]
    ends = {document.name: document.text for document in held}
    for document, first in zip(whole, kept, strict=True):
        end = ends.pop(f"the end of {document.name}", "")
        assert "".join((first.text + end).split()) == "".join(document.text.split())
        assert len(end) <= share * len(document.text) + 1
    assert not ends


@given(texts)
def test_sentences_are_found_in_texts_and_in_their_tokens(byte_level, word_piece, parts):
    text, expected = joined(parts), [sentence for sentence, _ in parts]
    starts = sentence_starts(text)
    found = [text[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert found == expected
    document = Document("a", text)
    corpus = Corpus.of([document, document], byte_level)
    assert byte_level.decode(corpus.ids) == text * 2
    for n in range(2):
        assert [byte_level.decode(ids).strip() for ids in pieces(corpus, n)] == expected
    found = pieces(Corpus.of([document], word_piece), 0)
    assert found == [word_piece.encode(sentence) for sentence in expected]


def pieces(corpus, document):
    """The ids of each sentence of a document."""
    begin, end = corpus.start(document), corpus.end(document)
    starts = [s for s in corpus.sentence_starts.tolist() if begin <= s < end]
    return [corpus.ids[a:b].tolist() for a, b in zip(starts, [*starts[1:], end], strict=True)]


def test_a_decimal_point_ends_nothing_and_documents_know_where_they_end(byte_level, word_piece):
    assert sentence_starts("It cost 3.50 in all. No more") == [0, 21]
    end = byte_level.encode(END_OF_TEXT)
    three = [Document(n, text) for n, text in zip("abc", ("De. De", "B", "Ç. Abc"), strict=True)]
    corpus = Corpus.of(three, byte_level, between=end)
    assert len(corpus) == int(corpus.sizes.sum()) == len(corpus.ids)
    for n, document in enumerate(three):
        ids = corpus.ids[corpus.start(n) : corpus.end(n)].tolist()
        assert ids == [*byte_level.encode(document.text), *end]
        assert len(ids) == corpus.sizes[n]
    none = Corpus.of([], word_piece)
    assert (len(none), none.sizes.tolist(), none.ids.dtype) == (0, [], torch.int64)
    silent = Corpus.of([Document("a", "\x01"), Document("b", "a.")], word_piece)
    assert silent.sizes.tolist() == [0, 2]
    assert silent.ids.tolist() == word_piece.encode("a.")


STORIES = [story(1), story(2)]
LINES = ("The old king saw a queen.", "“Don’t”, said ‘she’—twice!", "Ünknöwn 日本 🙂 zq 42")
CHARACTERS = " ".join(chr(0x4E00 + n) for n in range(200))


@pytest.mark.parametrize("byte_level", [True, False])
def test_special_tokens_have_their_roles_and_bytes_decode_to_the_text(byte_level):
    tokenizer = train_tokenizer(STORIES, size=331, byte_level=byte_level)
    special = {END_OF_TEXT} if byte_level else {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert {tokenizer.raw(i) for i in tokenizer.special_ids} == special
    assert tokenizer.pad_id == (None if byte_level else 0)
    assert tokenizer.vocab_size <= 331
    for line in LINES if byte_level else ():
        assert tokenizer.decode(tokenizer(line).ids[0]) == line


@pytest.mark.parametrize(
    ("byte_level", "size", "texts", "message"),
    [
        (False, 99, STORIES, "vocabulary of 99 .*expected at least 100"),
        (True, 299, STORIES, "vocabulary of 299 .*expected at least 300"),
        (False, 100, [CHARACTERS], r"different characters.*100 .*at least 20"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_an_error(byte_level, size, texts, message):
    with pytest.raises(TrainingError, match=message):
        train_tokenizer(texts, size=size, byte_level=byte_level)


@pytest.mark.parametrize("byte_level", [True, False])
def test_the_same_texts_give_the_same_vocabulary(byte_level, monkeypatch):
    # Words of three letters tie in their counts everywhere.
    draw = random.Random(0)
    text = " ".join("".join(draw.choices("abcdefghij", k=3)) for _ in range(3000))
    found = set()
    for parallel in ("false", "true", "true"):
        monkeypatch.setitem(os.environ, "TOKENIZERS_PARALLELISM", parallel)
        found.add(train_tokenizer([text] * 3, size=400, byte_level=byte_level).to_json())
    assert len(found) == 1


def test_word_pieces_are_those_that_the_library_learns():
    # All counts differ, so nothing depends on how a tie is broken.
    counts = {"abab": 31, "abc": 17, "cab": 7, "bcaé": 5, "x": 3, "-": 2}
    text = " ".join(" ".join([word] * count) for word, count in counts.items())
    library = Backend(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=100, special_tokens=special, show_progress=False)
    library.train_from_iterator([text.replace("é", "e")], trainer)
    ours = train_tokenizer([text], size=100, byte_level=False)
    assert {ours.raw(i) for i in range(ours.vocab_size)} == set(library.get_vocab())
