"""Files to documents, documents to sentences and token ids."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import TrainingError
from minibert.text.tokenizer import Tokenizer
from minibert.training.texts import (
    Corpus,
    Document,
    clean,
    hold_out,
    read_texts,
    sentence_starts,
)
from minibert.training.vocabulary import END_OF_TEXT, train_tokenizer

LETTERS = "abcdeéßçİñ'Aÿ"
word = st.text(st.sampled_from(LETTERS), min_size=1, max_size=5).filter(lambda w: w.strip("'"))


@st.composite
def sentences(draw: st.DrawFn) -> str:
    text = " ".join(draw(st.lists(word, min_size=1, max_size=6)))
    end = draw(st.sampled_from(".!?"))
    return f'"{text}{end}"' if draw(st.booleans()) else f"{text}{end}"


separators = st.sampled_from([" ", "\n"])
texts = st.lists(st.tuples(sentences(), separators), min_size=1, max_size=8)


def joined(parts: list[tuple[str, str]]) -> str:
    return "".join(s + (gap if n < len(parts) - 1 else "") for n, (s, gap) in enumerate(parts))


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return train_tokenizer(["a bc. Abc 'de"], family="gpt2", size=300)


@pytest.fixture(scope="module")
def word_piece() -> Tokenizer:
    return train_tokenizer([" ".join(LETTERS) + LETTERS * 2 + ' .!?"'], family="bert", size=100)


def pieces(corpus: Corpus, document: int = 0) -> list[list[int]]:
    """The ids of each sentence of a document."""
    begin, end = corpus.start(document), corpus.end(document)
    starts = [s for s in corpus.sentence_starts.tolist() if begin <= s < end]
    return [corpus.ids[a:b].tolist() for a, b in zip(starts, [*starts[1:], end], strict=True)]


class TestClean:
    def test_a_paragraph_becomes_a_line(self) -> None:
        raw = "\ufeff\r\n  One line\nand  another.\t\n \n\n\nThe next\r\nparagraph.\n\n"
        assert clean(raw) == "One line and another.\nThe next paragraph."

    def test_quotes_become_straight_and_italics_plain(self) -> None:
        assert clean("“It’s _so_ ‘odd’,” he said—twice.") == "\"It's so 'odd',\" he said--twice."

    def test_only_space_is_no_text(self) -> None:
        assert clean(" \n\t\n\n_ \ufeff\n") == ""

    @given(st.text(st.sampled_from("ab _\n\t’—.\ufeff"), max_size=40))
    def test_no_word_is_lost_and_no_space_is_double(self, text: str) -> None:
        once = clean(text)
        words = text.replace("_", "").replace("\ufeff", "").replace("’", "'").replace("—", "--")
        assert once.split() == words.split()
        assert not re.search(r"\s\s|^\s|\s$", once)


class TestReadTexts:
    def test_documents_come_in_the_order_given(self, tmp_path: Path) -> None:
        for name in ("b.txt", "a.txt"):
            (tmp_path / name).write_text(f"This is {name}.\n\nEnd.", encoding="utf-8")
        found = read_texts([tmp_path / "b.txt", str(tmp_path / "a.txt")])
        assert found == (
            Document("b.txt", "This is b.txt.\nEnd."),
            Document("a.txt", "This is a.txt.\nEnd."),
        )
        assert found[0].digest != found[1].digest
        assert found[0].digest == Document("other", found[0].text).digest

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, r"no\.txt: cannot be read \(No such file"),
            ("folder", r"no\.txt: cannot be read: it is no regular file \(a folder"),
            (b"caf\xe9", r"no\.txt: byte 3 is not UTF-8; convert"),
            (b" \n\n\xef\xbb\xbf ", r"no\.txt: the file has no text"),
        ],
    )
    def test_what_cannot_be_read_is_an_error_naming_the_file(
        self, content: bytes | str | None, message: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "no.txt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content:
            path.mkdir()
        with pytest.raises(TrainingError, match=message):
            read_texts([path])


class TestHoldOut:
    @given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.floats(0, 0.9))
    def test_every_line_is_in_exactly_one_part(self, sizes: list[int], share: float) -> None:
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

    def test_by_default_it_is_a_twentieth_from_the_start_of_a_sentence_on(self) -> None:
        text = "\n".join(f"Line {n}." for n in range(200))
        (kept,), (held,) = hold_out([Document("numbers", text)])
        assert held.text.startswith("Line ")
        assert 0.04 < len(held.text) / len(text) <= 0.05
        assert f"{kept.text}\n{held.text}" == text

    @pytest.mark.parametrize("text", ["word " * 400, "言葉" * 400, "One sentence. " * 40])
    def test_a_text_of_one_paragraph_has_an_end_as_well(self, text: str) -> None:
        (kept,), (held,) = hold_out([Document("one line", clean(text))])
        assert 0 < len(held.text) < 0.06 * len(text)
        assert len(kept.text) > 0.9 * len(clean(text))


class TestSentences:
    @given(texts)
    def test_each_start_is_that_of_a_sentence_and_none_is_missing(
        self, parts: list[tuple[str, str]]
    ) -> None:
        text = joined(parts)
        starts = sentence_starts(text)
        found = [text[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        assert found == [sentence for sentence, _ in parts]

    def test_a_decimal_point_ends_nothing(self) -> None:
        assert sentence_starts("It cost 3.50 in all. No more") == [0, 21]


class TestCorpus:
    @given(texts)
    def test_bytes_between_two_starts_decode_to_a_sentence(
        self, byte_level: Tokenizer, parts: list[tuple[str, str]]
    ) -> None:
        document = Document("a", joined(parts))
        corpus = Corpus.of([document, document], byte_level)
        assert byte_level.decode(corpus.ids) == document.text * 2
        for n in range(2):
            found = [byte_level.decode(ids).strip() for ids in pieces(corpus, n)]
            assert found == [sentence for sentence, _ in parts]

    @given(texts)
    def test_word_pieces_between_two_starts_are_a_sentence(
        self, word_piece: Tokenizer, parts: list[tuple[str, str]]
    ) -> None:
        corpus = Corpus.of([Document("a", joined(parts))], word_piece)
        assert pieces(corpus) == [word_piece.encode(sentence) for sentence, _ in parts]

    def test_documents_know_where_they_begin_and_end(self, byte_level: Tokenizer) -> None:
        end = byte_level.encode(END_OF_TEXT)
        three = [
            Document(n, text) for n, text in zip("abc", ("De. De", "B", "Ç. Abc"), strict=True)
        ]
        corpus = Corpus.of(three, byte_level, between=end)
        assert len(corpus) == int(corpus.sizes.sum()) == len(corpus.ids)
        for n, document in enumerate(three):
            ids = corpus.ids[corpus.start(n) : corpus.end(n)].tolist()
            assert ids == [*byte_level.encode(document.text), *end]
            assert len(ids) == corpus.sizes[n]

    def test_texts_without_a_token_have_none(self, word_piece: Tokenizer) -> None:
        none = Corpus.of([], word_piece)
        assert (len(none), none.sizes.tolist(), none.ids.dtype) == (0, [], torch.int64)
        silent = Corpus.of([Document("a", "\x01"), Document("b", "a.")], word_piece)
        assert silent.sizes.tolist() == [0, 2]
        assert silent.ids.tolist() == word_piece.encode("a.")
