"""The documents of one file: plain text, JSON lines, Parquet or CoNLL-U.

Each format is two functions: one cuts an open file into records as they are asked for, the other
makes a document of one record, or raises SurveyError with the place and the reason. So what
cannot be read costs one record and not the rest of the file.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any, NamedTuple

from minibert.errors import SurveyError, TokenizationError, how_to_install
from minibert.survey.conllu import LONGEST_LINE, TreebankReader, blocks
from minibert.text.words import Words
from minibert.untrusted import guarded, lines_of

__all__ = [
    "FORMATS",
    "Document",
    "Format",
    "Reading",
    "Record",
    "check_list",
    "document_of",
    "parquet_reader",
]

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    id      the file and the line where the document begins, "wiki.txt:12"; for Parquet the row;
            for a document that is a whole file the file alone
    text    the text; None where words are given
    words   the words, where the corpus has split the text already; else None
    pair    a second text that goes with the first, where there is one; words beside words
    """

    id: str
    text: str | None
    words: tuple[str, ...] | None = None
    pair: str | tuple[str, ...] | None = None

    @property
    def contents(self) -> tuple[str | Words, ...]:
        """What a tokenizer reads: the text, and the second one where there is one.

        Raises TokenizationError for words that are none.
        """
        first = self.written if self.words is None else Words(self.words)
        if self.pair is None:
            return (first,)
        return first, self.pair if isinstance(self.pair, str) else Words(self.pair)

    @property
    def written(self) -> str:
        """The text; of words, these with spaces between them."""
        return " ".join(self.words or ()) if self.text is None else self.text


def check_list(texts: object, name: str) -> None:
    """Raise SurveyError for one text in the place of several: its letters would be documents."""
    if isinstance(texts, str | Words | Document):
        raise SurveyError(f"{name} is one {type(texts).__name__}; give a list of them, as [text].")


def document_of(item: object, number: int) -> Document:
    """A text of a list as a document, named by its place; SurveyError for what is no text."""
    if isinstance(item, Document):
        return item
    if isinstance(item, Words):
        return Document(str(number), None, tuple(item))
    if isinstance(item, str):
        return Document(str(number), item)
    raise SurveyError(
        f"text {number} is a {type(item).__name__}; expected a str, Words or a Document."
    )


@dataclass(frozen=True)
class Reading:
    """How the bytes of a file become documents; see `read_documents` for the options.

    name   the file, as errors and the ids of documents have it
    """

    name: str
    kind: str
    unit: str
    field: str
    pair_field: str | None
    encoding: str
    longest: int

    def place(self, number: int) -> str:
        """The record of that number, for messages."""
        if self.unit == "file":
            return self.name
        return f"{self.name}, {'row' if self.kind == 'parquet' else 'line'} {number}"

    def id(self, number: int) -> str:
        """The id of the document that begins there."""
        return self.name if self.unit == "file" else f"{self.name}:{number}"


class Record(NamedTuple):
    """What a document is made of, and the number of the line or row where it begins."""

    number: int
    content: Any


class Format(NamedTuple):
    """The two functions that read a file."""

    records: Callable[[BufferedIOBase, Reading], Iterator[Record]]
    document: Callable[[Record, Reading], Document]


def _lines(file: BufferedIOBase, reading: Reading) -> Iterator[Record]:
    for number, line in enumerate(lines_of(file, reading.longest), start=1):
        if line.strip():
            yield Record(number, line)


def _paragraphs(file: BufferedIOBase, reading: Reading) -> Iterator[Record]:
    kept: list[bytes] = []
    start, size = 0, 0
    for number, line in enumerate(lines_of(file, reading.longest), start=1):
        if line.strip():
            start = start or number
            # What is too long is an error in any case and need not be kept whole.
            if size <= reading.longest:
                kept.append(line)
            size += len(line) + 1
        elif kept:
            yield Record(start, b"\n".join(kept))
            kept, start, size = [], 0, 0
    if kept:
        yield Record(start, b"\n".join(kept))


def _whole(file: BufferedIOBase, reading: Reading) -> Iterator[Record]:
    if content := file.read(reading.longest + 1):
        yield Record(1, content)


def _rows(file: BufferedIOBase, reading: Reading) -> Iterator[Record]:
    table = parquet_reader(reading.name)(file)
    columns = [reading.field, *([reading.pair_field] if reading.pair_field else [])]
    known = table.schema_arrow.names
    for column in columns:
        if column not in known:
            names = ", ".join(map(repr, known))
            raise SurveyError(
                f"{reading.name}: there is no column {column!r} among {names}; name the column "
                "with field= or pair_field=."
            )
    number = 0
    for batch in table.iter_batches(batch_size=256, columns=columns):
        for values in batch.to_pylist():
            number += 1
            yield Record(number, values)


def parquet_reader(name: str) -> Any:
    """pyarrow's ParquetFile; SurveyError, which names the file, where pyarrow is missing."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise SurveyError(f"{name}: Parquet needs pyarrow: {how_to_install('survey')}.") from None
    return ParquetFile


def _sentence_groups(file: BufferedIOBase, reading: Reading) -> Iterator[Record]:
    group: list[Any] = []
    for block in blocks(enumerate(lines_of(file, LONGEST_LINE), start=1), reading.name):
        new = any(line.startswith(b"# newdoc") for _, line in block)
        if group and (new or reading.unit == "sentence"):
            yield Record(group[0][0][0], group)
            group = []
        group.append(block)
    if group:
        yield Record(group[0][0][0], group)


def _of_text(record: Record, reading: Reading) -> Document:
    text = _decoded(record, reading).strip()
    return Document(reading.id(record.number), _checked(text, record.number, reading))


def _of_json(record: Record, reading: Reading) -> Document:
    text, place = _decoded(record, reading), reading.place(record.number)
    with guarded(place, SurveyError, "is not JSON"):
        values = json.loads(text)
    if not isinstance(values, dict):
        raise SurveyError(f"{place}: expected a JSON object, found {type(values).__name__}.")
    return _of_fields(record._replace(content=values), reading)


def _of_fields(record: Record, reading: Reading) -> Document:
    values, number = record.content, record.number
    name, place = reading.id(number), reading.place(number)
    content = _text_or_words(values, reading.field, number, reading)
    pair = None
    if reading.pair_field is not None:
        pair = _text_or_words(values, reading.pair_field, number, reading)
        if isinstance(pair, str) != isinstance(content, str):
            raise SurveyError(
                f"{place}: one of {reading.field!r} and {reading.pair_field!r} holds a text and "
                "the other a list of words; expected two texts, or two lists of words."
            )
    if isinstance(content, str):
        return Document(name, content, None, pair)
    return Document(name, None, content, pair)


def _text_or_words(
    values: Mapping[str, Any], field: str, number: int, reading: Reading
) -> str | tuple[str, ...]:
    """What a field holds, checked. Raises SurveyError for what is neither."""
    place = reading.place(number)
    content = _field(values, field, place)
    if isinstance(content, str):
        return _checked(content, number, reading)
    if not isinstance(content, list) or not all(isinstance(word, str) for word in content):
        kinds = {type(word).__name__ for word in content} if isinstance(content, list) else ()
        held = "a list with " + ", ".join(sorted(kinds)) if kinds else type(content).__name__
        raise SurveyError(f"{place}: {field!r} holds {held}; expected a text, or a list of words.")
    words = tuple(_checked(word, number, reading) for word in content)
    try:
        # A first text without a word is too short, which is counted elsewhere.
        return tuple(Words(words)) if words or field == reading.pair_field else words
    except TokenizationError as error:
        raise SurveyError(f"{place}: {field!r}: {error}.") from None


def _of_sentences(record: Record, reading: Reading) -> Document:
    reader = TreebankReader(reading.name)
    sentences = [reader.sentence(block) for block in record.content]
    name = reading.id(record.number)
    if reading.field == "words":
        return Document(name, None, tuple(word for s in sentences for word in s.words))
    text = " ".join(sentence.text for sentence in sentences)
    return Document(name, _checked(text, record.number, reading))


def _field(values: Mapping[str, Any], field: str, place: str) -> Any:
    if field not in values:
        names = ", ".join(map(repr, list(values)[:20])) or "no field at all"
        raise SurveyError(f"{place}: there is no field {field!r}; found {names}.")
    return values[field]


def _decoded(record: Record, reading: Reading) -> str:
    """The text of the bytes, with `\\n` at the ends of its lines and without a byte order mark."""
    content: bytes = record.content
    if len(content) > reading.longest:
        raise SurveyError(
            f"{reading.place(record.number)}: more than {reading.longest} bytes without "
            f"{'an end' if reading.unit == 'file' else 'a line break'}, the limit for one "
            f"{reading.unit}; raise the limit with longest= if it is right."
        )
    if record.number == 1:
        content = content.removeprefix(_BOM)
    content = content.replace(b"\r\n", b"\n")
    try:
        return content.decode(reading.encoding)
    except UnicodeDecodeError as error:
        line = record.number + content.count(b"\n", 0, error.start)
        raise SurveyError(
            f"{reading.name}, line {line}: byte {error.object[error.start]:#04x} is not "
            f"{reading.encoding}; name the encoding of the file with encoding=, or convert it."
        ) from None


def _checked(text: str, number: int, reading: Reading) -> str:
    if "\0" in text:
        raise SurveyError(
            f"{reading.place(number)}: a NUL byte; the file is damaged, or no text in "
            f"{reading.encoding}."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SurveyError(
            f"{reading.place(number)}: an unpaired surrogate, which is no character."
        ) from None
    return text


#: How a file is read, by its unit for plain text and else by its kind.
FORMATS = {
    "line": Format(_lines, _of_text),
    "paragraph": Format(_paragraphs, _of_text),
    "file": Format(_whole, _of_text),
    "jsonl": Format(_lines, _of_json),
    "parquet": Format(_rows, _of_fields),
    "conllu": Format(_sentence_groups, _of_sentences),
}
