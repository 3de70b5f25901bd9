"""Reading a corpus: what becomes a document, and what cannot be read."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from minibert.errors import SurveyError
from minibert.survey.documents import Document, Documents, read_documents
from minibert.text.words import Words

TEXT = "\ufeffA first\r\nparagraph.\n\n \n  Zwölf  \nlast"
JSON = (
    {"text": "one", "other": "two"},
    {"text": ["The", "horse"], "other": "x"},
    {"text": "", "other": "x"},
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def json_lines(*values: Any) -> str:
    return "\n".join(map(json.dumps, values)) + "\n\n"


def texts(documents: Documents) -> dict[str, Any]:
    return {d.id: d.words if d.text is None else d.text for d in documents}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a.txt:1": "A first\nparagraph.", "a.txt:5": "Zwölf  \nlast"}),
        ({"shortest": 13}, {"a.txt:1": "A first\nparagraph."}),
        (
            {"unit": "line"},
            {"a.txt:1": "A first", "a.txt:2": "paragraph.", "a.txt:5": "Zwölf", "a.txt:6": "last"},
        ),
        ({"unit": "file"}, {"a.txt": "A first\nparagraph.\n\n \n  Zwölf  \nlast"}),
    ],
)
def test_plain_text_is_cut_into_units(tmp_path, options, expected):
    documents = read_documents(write(tmp_path / "a.txt", TEXT), **options)
    assert texts(documents) == expected
    assert documents.n_documents + documents.n_short == 2 or "unit" in options
    assert documents.bytes_read == documents.n_bytes == len(TEXT.encode())
    write(tmp_path / "b.txt.gz", gzip.compress(TEXT.encode()))
    unpacked = read_documents(tmp_path / "b.txt.gz", **options)
    assert list(texts(unpacked).values()) == list(expected.values())


def test_fields_of_json_lines_and_columns_of_parquet_are_texts_words_and_pairs(tmp_path):
    path = write(tmp_path / "a.jsonl", json_lines(*JSON))
    documents = read_documents(path)
    first = Document("a.jsonl:1", "one")
    assert list(documents) == [first, Document("a.jsonl:2", None, ("The", "horse"))]
    assert (documents.n_short, documents.n_skipped) == (1, 0)
    pairs = read_documents(path, pair_field="other", on_error="skip")
    assert list(pairs) == [Document("a.jsonl:1", "one", None, "two")]
    assert [place for place, _ in pairs.skipped] == ["a.jsonl:2"]
    assert "line 2: one of 'text' and 'other' holds a text" in pairs.skipped[0].reason

    split = write(tmp_path / "b.jsonl", json_lines({"a": ["The", "horse"], "b": ["ran", "."]}))
    pair = Document("b.jsonl:1", None, ("The", "horse"), ("ran", "."))
    assert list(read_documents(split, field="a", pair_field="b")) == [pair]
    assert pair.contents == (Words(["The", "horse"]), Words(["ran", "."]))

    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"text": [f"t{i}" for i in range(1000)], "words": [["a", "b"]] * 999 + [None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", row_group_size=99)
    table = read_documents(tmp_path / "a.parquet")
    assert next(table) == Document("a.parquet:1", "t0")
    assert [d.text for d in table] == columns["text"][1:]
    assert table.bytes_read == table.n_bytes == (tmp_path / "a.parquet").stat().st_size
    words = read_documents(tmp_path / "a.parquet", field="words")
    with pytest.raises(SurveyError, match=r"a.parquet, row 1000: 'words' is NoneType"):
        assert [d.words for d in words] == [("a", "b")] * 999
    given = {"field": "words", "pair_field": "words"}
    assert next(read_documents(tmp_path / "a.parquet", **given)).pair == ("a", "b")
    with pytest.raises(SurveyError, match="there is no column 'x' among 'text', 'words'"):
        next(read_documents(tmp_path / "a.parquet", field="x"))


def test_files_of_folders_are_read_by_name_and_what_is_no_text_is_counted(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "b/a.txt", "picture.png"):
        write(tmp_path / name, name)
    documents = read_documents(tmp_path)
    assert texts(documents) == {"b/a.txt:1": "b/a.txt", "c.txt:1": "c.txt"}
    assert [Path(place).name for place, _ in documents.skipped] == ["picture.png"]
    twice = read_documents([tmp_path / "c.txt", tmp_path / "c.txt", tmp_path / "b" / "a.txt"])
    path = (tmp_path / "c.txt").as_posix()
    assert [d.id for d in twice] == [f"{path}:1", f"{path}:1", "a.txt:1"]


# What is in a file, the line to be named with the reason, and what is read where it is skipped.
# Of a file that a library unpacks the rest is lost, of others only what is broken.
BOTH = ["good", "fine"]


def between(line: str) -> bytes:
    """JSON lines of which the one in the middle cannot be read."""
    return f'{{"text": "good"}}\n{line}\n{{"text": "fine"}}'.encode()


BROKEN: dict[str, tuple[bytes, str, list[str]]] = {
    "long.txt": (b"good\n\n" + b"x" * 10**6 + b"\n\nfine", "line 3: more than 524288", BOTH),
    "latin.txt": (b"good\n\nab\nZw\xf6lf\n\nfine", "line 4: byte 0xf6 is not UTF-8", BOTH),
    "nul.txt": (b"good\n\na\0b\n\nfine", "line 3: a NUL byte", BOTH),
    "wide.txt": ("good".encode("utf-16"), "line 1: byte 0xff is not UTF-8", []),
    "cut.jsonl": (between('{"text": '), "line 2: is not JSON", BOTH),
    "list.jsonl": (between('["x"]'), "line 2: expected a JSON", BOTH),
    "deep.jsonl": (between("[" * 10**5), "line 2", BOTH),
    "field.jsonl": (between('{"txt": "x"}'), "found 'txt'", BOTH),
    "number.jsonl": (between('{"text": 5}'), "is int", BOTH),
    "words.jsonl": (between('{"text": ["a", 5]}'), "list with int", BOTH),
    "space.jsonl": (between('{"text": ["a", "b "]}'), "line 2: 'text': word 1 is 'b '", BOTH),
    "half.jsonl": (between('{"text": "\\ud800"}'), "unpaired", BOTH),
    "nul.jsonl": (between('{"text": "\\u0000"}'), "a NUL", BOTH),
    "empty.txt": (b"", "the file has no text", []),
    "blank.txt": (b" \n \n", "the file has no text", []),
    "damaged.parquet": (b"PAR1" * 50, "cannot be read", []),
    "cut.txt.gz": (gzip.compress(b"good\n\n" + b"fine" * 2**16)[:-9], "EOFError", ["good"]),
    "bomb.txt.gz": (gzip.compress(b"good\n\n" + bytes(2**26)), "line 3: more than 524", ["good"]),
    "plain.txt.gz": (b"good\n\nfine", "BadGzipFile", []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_named_and_skipped_or_refused(tmp_path, name):
    content, reason, left = BROKEN[name]
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = write(tmp_path / name, content)
    with pytest.raises(SurveyError, match=f"^{name}.*{reason}"):
        list(read_documents(path))
    other = write(tmp_path / "other.txt", "other")
    documents = read_documents([path, other], on_error="skip")
    assert list(texts(documents).values()) == [*left, "other"]
    assert documents.n_skipped == 1
    assert reason in documents.skipped[0].reason


def test_paths_that_are_no_texts_are_refused_before_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "a.txt", "x")
    write(tmp_path / "a.xyz", "x")
    (tmp_path / "mixed").mkdir()
    write(tmp_path / "mixed" / "LICENSE.txt", "x")
    write(tmp_path / "mixed" / "a.jsonl", "{}")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (tmp_path / "pipe.txt", {}, "not a regular file"),
        (Path("/dev/zero"), {"kind": "text"}, "not a regular file"),
        (tmp_path / "absent.txt", {}, "No such file"),
        (tmp_path / "absent", {}, "there is no such file or folder"),
        (tmp_path / "empty", {}, "no file with texts"),
        (tmp_path / "a.xyz", {}, "ends in none of .txt"),
        (tmp_path / "mixed", {}, r"several kinds \(jsonl, text\)"),
        ([], {}, "no document"),
        (tmp_path / "a.txt", {"kind": "csv"}, "kind is 'csv'; expected text or jsonl"),
        (tmp_path / "a.txt", {"unit": "row"}, "a.txt: unit is 'row'; expected paragraph or line"),
        (tmp_path / "a.txt", {"field": "text"}, "no field"),
        (tmp_path / "a.txt", {"pair_field": "text"}, "only JSON lines and Parquet"),
        (tmp_path / "a.txt", {"on_error": "ignore"}, "expected raise or skip"),
        (tmp_path / "a.txt", {"shortest": 0}, "shortest=0: expected a whole number of at least 1"),
    ]
    for path, options, reason in cases:
        with pytest.raises(SurveyError, match=reason):
            read_documents(path, **options)
    for path in ("pipe.txt", "empty"):
        with pytest.raises(SurveyError, match=f"no document that can be read.*{path}"):
            read_documents(tmp_path / path, on_error="skip")
    found = read_documents([tmp_path / "pipe.txt", tmp_path / "a.txt"], on_error="skip")
    assert (texts(found), found.n_skipped) == ({"a.txt:1": "x"}, 1)
    with pytest.raises(SurveyError, match=r"no document.*1 were shorter than 5"):
        list(read_documents(tmp_path / "a.txt", shortest=5))


def test_only_the_first_of_many_reasons_are_kept_and_all_are_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", "{\n" * 5000 + '{"text": "x"}')
    documents = read_documents(path, on_error="skip")
    assert len(list(documents)) == 1
    assert (documents.n_skipped, len(documents.skipped)) == (5000, 100)


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    peaks = []
    for name, times in (("small.txt", 2), ("large.txt", 12)):
        path = tmp_path / name
        with path.open("wb") as file:
            for _ in range(times):
                file.write(b"x" * 10**5 + b"\n\n" + b"a line\n" * 10**4 + b"\n")
        tracemalloc.start()
        documents = read_documents(path, on_error="skip")
        assert sum(1 for _ in documents) == 2 * times
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
