"""The documents of a corpus, one after the other, from files that need not fit into memory.

>>> documents = read_documents(["wiki.valid.tokens"], unit="line")  # doctest: +SKIP
>>> next(documents).id  # doctest: +SKIP
'wiki.valid.tokens:2'

The kind of a file is known by its name: .txt and .tokens are plain text, .jsonl and .ndjson JSON
lines, and .parquet; .gz after any but .parquet is unpacked. Nothing is left out silently:
`Documents` counts what was read, what was skipped, and why.
"""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from minibert.errors import SurveyError, TokenizationError, how_to_install
from minibert.text.words import Words
from minibert.untrusted import guarded, lines_of, open_regular

_BOM = b"\xef\xbb\xbf"


def worth_reading(text: str) -> bool:
    """True for a text fit as an example: half letters or digits, eight different ones."""
    known = [one for one in text.lower() if one.isalnum()]
    return len(set(known)) >= 8 and 2 * len(known) >= len("".join(text.split()))


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
        """The input of a tokenizer: the text, and the second one where there is one.

        Raises TokenizationError for anything but a list of words.
        """
        first = self.written if self.words is None else Words(self.words)
        if self.pair is None:
            return (first,)
        return first, self.pair if isinstance(self.pair, str) else Words(self.pair)

    @property
    def written(self) -> str:
        """The text; words are joined by spaces."""
        return " ".join(self.words or ()) if self.text is None else self.text


def check_list(texts: object, name: str) -> None:
    """Raise SurveyError for one text in place of several: its letters would become documents."""
    if isinstance(texts, str | Words | Document):
        raise SurveyError(f"{name} is one {type(texts).__name__}; give a list of them, as [text].")


def document_of(item: object, number: int) -> Document:
    """A text or a pair of texts of a list as a document, named by its place.

    Raises SurveyError for anything else.
    """
    name = str(number)
    match item:
        case Document():
            return item
        case str():
            return Document(name, item)
        case Words():
            return Document(name, None, tuple(item))
        case tuple((str(first), str(second))):
            return Document(name, first, None, second)
        case tuple((Words() as words, Words() as others)):
            return Document(name, None, tuple(words), tuple(others))
    raise SurveyError(
        f"text {number} is a {type(item).__name__}; expected a str, Words, a pair of either or a "
        "Document."
    )


class Kind(NamedTuple):
    """A kind of file: how names end, and the units it can be cut into, the usual one first."""

    endings: tuple[str, ...]
    units: tuple[str, ...]
    has_fields: bool = False


KINDS = {
    "text": Kind((".txt", ".tokens"), ("paragraph", "line", "file")),
    "jsonl": Kind((".jsonl", ".ndjson"), ("line",), has_fields=True),
    "parquet": Kind((".parquet",), ("row",), has_fields=True),
}
# A line as long as this is rather a damaged file than a text; whole books are files.
_LONGEST, _LONGEST_FILE = 2**19, 2**26
#: What could not be read is named up to here, and counted beyond.
MOST_NAMED = 100


#: The number of the line or row where a document begins, and what it is made of.
Record = tuple[int, Any]


@dataclass(frozen=True)
class Reading:
    """One file and how its bytes become documents; see `read_documents` for the options.

    name   the file, as errors and the ids of documents have it
    """

    path: Path
    name: str
    kind: str
    unit: str
    field: str
    pair_field: str | None

    @property
    def longest(self) -> int:
        """The bytes that a document may have."""
        return _LONGEST_FILE if self.unit == "file" else _LONGEST

    def place(self, number: int) -> str:
        """The record of that number, for messages."""
        if self.unit == "file":
            return self.name
        return f"{self.name}, {'row' if self.kind == 'parquet' else 'line'} {number}"

    def id(self, number: int) -> str:
        """The id of the document that begins there."""
        return self.name if self.unit == "file" else f"{self.name}:{number}"

    def records(self, file: BufferedIOBase) -> Iterator[Record]:
        """The raw pieces that the documents of the file are made from."""
        if self.kind == "parquet":
            yield from self._rows(file)
        elif self.unit == "file":
            if content := file.read(self.longest + 1):
                yield 1, content
        else:
            yield from self._lines(file)

    def _lines(self, file: BufferedIOBase) -> Iterator[Record]:
        """The lines that are not blank, those of a paragraph together."""
        held: list[bytes] = []
        start, size, together = 0, 0, self.unit == "paragraph"
        for number, line in enumerate(lines_of(file, self.longest), start=1):
            if line.strip():
                start = start or number
                # What is too long is an error in any case and need not be kept whole.
                if size <= self.longest:
                    held.append(line)
                size += len(line) + 1
            if held and not (line.strip() and together):
                yield start, b"\n".join(held)
                held, start, size = [], 0, 0
        if held:
            yield start, b"\n".join(held)

    def _rows(self, file: BufferedIOBase) -> Iterator[Record]:
        table = _parquet_reader(self.name)(file)
        columns = [self.field, *([self.pair_field] if self.pair_field else [])]
        known = table.schema_arrow.names
        for column in columns:
            if column not in known:
                names = ", ".join(map(repr, known))
                raise SurveyError(
                    f"{self.name}: there is no column {column!r} among {names}; name the column "
                    "with field= or pair_field=."
                )
        number = 0
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for values in batch.to_pylist():
                number += 1
                yield number, values

    def document(self, record: Record) -> Document:
        """The document of a record. Raises SurveyError for what is not a text."""
        number, content = record
        if self.kind == "parquet":
            return self._of_fields(number, content)
        text = self._decoded(number, content)
        if self.kind == "text":
            return Document(self.id(number), self._checked(text.strip(), number))
        with guarded(self.place(number), SurveyError, "is not JSON"):
            values = json.loads(text)
        if not isinstance(values, dict):
            found = type(values).__name__
            raise SurveyError(f"{self.place(number)}: expected a JSON object, found {found}.")
        return self._of_fields(number, values)

    def _of_fields(self, number: int, values: Mapping[str, object]) -> Document:
        content, pair = self._text_or_words(values, self.field, number), None
        if self.pair_field is not None:
            pair = self._text_or_words(values, self.pair_field, number)
            if isinstance(pair, str) != isinstance(content, str):
                raise SurveyError(
                    f"{self.place(number)}: one of {self.field!r} and {self.pair_field!r} holds a "
                    "text and the other a list of words; expected two texts, or two lists of words."
                )
        if isinstance(content, str):
            return Document(self.id(number), content, None, pair)
        return Document(self.id(number), None, content, pair)

    def _text_or_words(
        self, values: Mapping[str, object], field: str, number: int
    ) -> str | tuple[str, ...]:
        """What a field holds, checked. Raises SurveyError for what is neither."""
        place = self.place(number)
        if field not in values:
            names = ", ".join(map(repr, list(values)[:20])) or "no field at all"
            raise SurveyError(f"{place}: there is no field {field!r}; found {names}.")
        content = values[field]
        if isinstance(content, str):
            return self._checked(content, number)
        if not isinstance(content, list) or not all(isinstance(word, str) for word in content):
            kinds = {type(word).__name__ for word in content} if isinstance(content, list) else ()
            held = "a list with " + ", ".join(sorted(kinds)) if kinds else type(content).__name__
            raise SurveyError(f"{place}: {field!r} is {held}; expected a text or a list of words.")
        words = tuple(self._checked(word, number) for word in content)
        try:
            # A first text without a word is too short, which is counted elsewhere.
            return tuple(Words(words)) if words or field == self.pair_field else words
        except TokenizationError as error:
            raise SurveyError(f"{place}: {field!r}: {error}.") from None

    def _decoded(self, number: int, content: bytes) -> str:
        """The text of the bytes, with `\\n` at the ends of lines and without a byte order mark."""
        if len(content) > self.longest:
            raise SurveyError(
                f"{self.place(number)}: more than {self.longest} bytes without "
                f"{'an end' if self.unit == 'file' else 'a line break'}, the limit for one "
                f"{self.unit}; cut it into shorter ones."
            )
        if number == 1:
            content = content.removeprefix(_BOM)
        content = content.replace(b"\r\n", b"\n")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            line = number + content.count(b"\n", 0, error.start)
            raise SurveyError(
                f"{self.name}, line {line}: byte {error.object[error.start]:#04x} is not UTF-8; "
                "convert the file (iconv -f latin1 -t utf-8, for instance)."
            ) from None

    def _checked(self, text: str, number: int) -> str:
        place = self.place(number)
        if "\0" in text:
            raise SurveyError(f"{place}: a NUL byte; the file is damaged, or not in UTF-8.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SurveyError(f"{place}: an unpaired surrogate, not a character.") from None
        return text


def _parquet_reader(name: str) -> Any:
    """pyarrow's ParquetFile; SurveyError, which names the file, where pyarrow is missing."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise SurveyError(f"{name}: Parquet needs pyarrow: {how_to_install('survey')}.") from None
    return ParquetFile


def read_documents(
    paths: str | Path | Iterable[str | Path],
    *,
    kind: str | None = None,
    unit: str | None = None,
    field: str | None = None,
    pair_field: str | None = None,
    on_error: str = "raise",
    shortest: int = 1,
) -> "Documents":
    """The documents of files and folders, in the order given; in a folder by name.

    Plain text and JSON lines are UTF-8; a byte order mark is removed. A line or paragraph may have
    512 KiB and a file that is one document 64 MiB; what is longer cannot be read.

    kind        text, jsonl or parquet, where the names of the files do not say it
    unit        what counts as a document of plain text: paragraph (text between blank lines), line
                (each line that is not blank; wikitext has a paragraph a line), or file
    field       the field or column with the text, "text" where none is given; a list of strings
                there is taken as words
    pair_field  the field or column with a second text, a list of strings where the first is one
    on_error    "raise" stops at the first document that cannot be read; "skip" continues and counts
                it in `skipped`
    shortest    in characters; shorter texts are left out and counted, empty ones always

    Raises SurveyError before anything is read for a path that is not a regular file, a folder
    without texts or with several kinds of them, and options that do not fit; during reading, for a
    document that cannot be read; and at the end, for a corpus without a document.
    """
    _check(on_error, ("raise", "skip"), "on_error")
    if not isinstance(shortest, int) or shortest < 1:
        raise SurveyError(f"shortest={shortest!r}: expected a whole number of at least 1.")
    if kind is not None:
        _check(kind, KINDS, "kind")
    listed = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    documents = Documents(skip=on_error == "skip", shortest=shortest)
    found = [file for path in listed for file in documents.look(path, kind)]
    # Short names where they tell the files apart, so that ids do not depend on the folder.
    times = Counter(name for _, name, _ in found)
    for path, name, its_kind in found:
        name = path.as_posix() if times[name] > 1 else name
        documents.add(_reading(path, name, its_kind, unit, field, pair_field))
    documents.check_not_empty(documents.files)
    return documents


class Skipped(NamedTuple):
    """A document, file or rest of a file that was not read, and why."""

    place: str
    reason: str


class Documents(Iterator[Document]):
    """The documents of a corpus, in order, each read when it is asked for.

    files         the files that are read, in order
    n_bytes       their size; with `bytes_read`, how far the reading has come
    n_documents   documents given so far
    n_short       documents left out because they are shorter than `shortest`
    n_skipped     documents, files and rests of files that could not be read, or are not texts
    skipped       where and why, the first 100 of them
    """

    def __init__(self, *, skip: bool, shortest: int) -> None:
        self.n_bytes = self.n_documents = self.n_short = self.n_skipped = 0
        self.skipped: list[Skipped] = []
        self._skip, self._shortest = skip, shortest
        self._readings: list[Reading] = []
        self._stream = self._all()
        self._closed_bytes = 0
        self._open_file: BufferedIOBase | None = None

    def __next__(self) -> Document:
        return next(self._stream)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read, in order."""
        return tuple(reading.path for reading in self._readings)

    @property
    def bytes_read(self) -> int:
        """Bytes of the files read so far, as they lie on the disk."""
        return self._closed_bytes + (0 if self._open_file is None else self._open_file.tell())

    def look(self, path: Path, kind: str | None) -> list[tuple[Path, str, str]]:
        """Path, name and kind of the file, or of each file in the folder and below it."""
        if not path.is_dir():
            known = kind or _kind(path)
            if known is None:
                if not path.exists():
                    raise SurveyError(f"{path}: there is no such file or folder.")
                endings = ", ".join(end for of_kind in KINDS.values() for end in of_kind.endings)
                raise SurveyError(
                    f"{path}: its name ends in none of {endings}; say what it is with kind=. "
                    "See docs/corpus.md#kinds-of-files"
                )
            return [(path, path.name, known)]
        files = sorted(p for p in path.rglob("*") if not p.is_dir() or p.is_symlink())
        found = [(p, p.relative_to(path).as_posix(), kind or _kind(p)) for p in files]
        kinds = sorted({its for _, _, its in found if its})
        if len(kinds) > 1:
            raise SurveyError(
                f"{path}: has files of several kinds ({', '.join(kinds)}); name the files, or "
                "copy those that belong to the corpus into a folder."
            )
        if not kinds:
            self._leave_out(str(path), SurveyError(f"{path}: there is no file with texts in it."))
        for other, _, its in found:
            if kinds and its is None:
                self._count(str(other), "its name does not end as those of texts do")
        return [(file, name, its) for file, name, its in found if its]

    def add(self, reading: Reading) -> None:
        """Add a file to be read after the others. It is opened once to see that it can be."""
        try:
            with open_regular(reading.path, SurveyError) as file:
                self.n_bytes += os.fstat(file.fileno()).st_size
        except SurveyError as error:
            self._leave_out(reading.name, error)
        else:
            self._readings.append(reading)

    def check_not_empty(self, found: object) -> None:
        """Raise SurveyError, with the first reasons, where nothing was found."""
        if found:
            return
        reasons = "".join(f" {reason}" for _, reason in self.skipped[:3])
        short = f" {self.n_short} were shorter than {self._shortest} characters."
        raise SurveyError(
            f"The corpus has no document that can be read.{short if self.n_short else ''}{reasons}"
        )

    def _all(self) -> Iterator[Document]:
        for reading in self._readings:
            seen = self.n_documents + self.n_short + self.n_skipped
            try:
                with guarded(reading.name, SurveyError), self._opened(reading.path) as file:
                    for record in reading.records(file):
                        document = self._document(record, reading)
                        if document is not None:
                            self.n_documents += 1
                            yield document
            except SurveyError as error:
                self._leave_out(reading.name, error)
            if seen == self.n_documents + self.n_short + self.n_skipped:
                self._leave_out(reading.name, SurveyError(f"{reading.name}: the file has no text."))
        self.check_not_empty(self.n_documents)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[BufferedIOBase]:
        with open_regular(path, SurveyError) as file:
            size, self._open_file = os.fstat(file.fileno()).st_size, file
            try:
                yield gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            finally:
                self._open_file = None
                self._closed_bytes += size

    def _document(self, record: Record, reading: Reading) -> Document | None:
        try:
            document = reading.document(record)
        except SurveyError as error:
            self._leave_out(reading.id(record[0]), error)
            return None
        content = document.text if document.words is None else "".join(document.words)
        if len(content or "") < self._shortest:
            self.n_short += 1
            return None
        return document

    def _leave_out(self, place: str, error: SurveyError) -> None:
        if not self._skip:
            raise error
        self._count(place, str(error))

    def _count(self, place: str, reason: str) -> None:
        self.n_skipped += 1
        if len(self.skipped) < MOST_NAMED:
            self.skipped.append(Skipped(place, reason))


def _kind(path: Path) -> str | None:
    name = path.name.removesuffix(".gz")
    kind = next((kind for kind, of in KINDS.items() if name.endswith(of.endings)), None)
    return None if kind == "parquet" and name != path.name else kind


def _reading(
    path: Path, name: str, kind: str, unit: str | None, field: str | None, pair_field: str | None
) -> Reading:
    """How this file is read; SurveyError for options that do not fit its kind."""
    of_kind = KINDS[kind]
    chosen = of_kind.units[0] if unit is None else _check(unit, of_kind.units, f"{name}: unit")
    if not of_kind.has_fields and field is not None:
        raise SurveyError(f"{name}: plain text has no field {field!r}; leave field= out.")
    if not of_kind.has_fields and pair_field is not None:
        raise SurveyError(f"{name}: only JSON lines and Parquet have a field for pairs.")
    if kind == "parquet":
        _parquet_reader(name)
    return Reading(path, name, kind, chosen, field or "text", pair_field)


def _check(value: object, known: Iterable[str], what: str) -> str:
    if value not in (names := list(known)):
        raise SurveyError(f"{what} is {value!r}; expected {' or '.join(names)}.")
    return str(value)
