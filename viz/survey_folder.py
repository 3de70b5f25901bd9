"""The report of a survey: one self-contained HTML page, made from its tables alone.

tables, patterns -> `survey_report`, which static/views/survey shows
documents -> `write_example_pages`: one file in which each head can be seen at its work; an entry
holds some heads of one layer in one document, so that all examples fit into a small file
`write_survey_report` puts both into the folder of the survey.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from minibert.analysis.patterns import PATTERNS
from minibert.attached.attach import Attached
from minibert.attached.layout import title_of
from minibert.errors import SurveyError, TokenizationError, TraceError
from minibert.model import Model
from minibert.quantities import Int
from minibert.survey.document_rows import Rows, document_rows, surveyable, text_parts
from minibert.survey.documents import Document, check_list
from minibert.survey.measures import BY_NORM, measures_of
from minibert.survey.patterns import HeadPatterns, PatternHead, patterns
from minibert.survey.reasons import TOLD, Edge, Reasons
from minibert.survey.run import identity_of_surveyed
from minibert.survey.runs import windows
from minibert.survey.tables import Survey
from minibert.untrusted import Json
from minibert.viz.document import Written, document, header_json, write_bytes
from minibert.viz.example import Example, without_folder
from minibert.viz.page import Page
from minibert.viz.payload import Array
from minibert.viz.viewing import view

if TYPE_CHECKING:
    from minibert.survey.live import Given, Surveyable

    Corpus = Iterable[Document | str]

# Of a list, as many entries are shown.
_LISTED = 6
# Sizes stand elsewhere, and how documents are read in portions changes no number.
_LEFT_OUT = ("config", "format", "window")
_IN_ONE_LINE = ("versions",)


def title(manifest: Mapping[str, object]) -> str:
    """The name of the model, and of an attached one that of its stack where it has one."""
    model = manifest.get("model", {})
    if not isinstance(model, Mapping):
        return without_folder(str(model))
    name, stack = without_folder(str(model.get("name", "a model"))), model.get("stack")
    return title_of(name, stack["name"]) if isinstance(stack, Mapping) else name


def facts(manifest: Mapping[str, object]) -> list[list[str]]:
    """Pairs of a name and a text: what people ask for first in front."""
    first = {name: manifest[name] for name in ("model", "corpus") if name in manifest}
    return _facts({**first, **manifest}, "")


def _facts(manifest: Mapping[str, object], before: str) -> list[list[str]]:
    found: list[list[str]] = []
    for name, value in manifest.items():
        label = f"{before}{name}".replace("_", " ")
        if name in _LEFT_OUT or value in (None, [], ()):
            continue
        if isinstance(value, Mapping) and name not in _IN_ONE_LINE:
            found += _facts(value, f"{label}: ")
        elif isinstance(value, Mapping):
            found.append([label, _list([f"{one} {_plain(of)}" for one, of in value.items()])])
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found.append([label, _list([_plain(one) for one in value])])
        else:
            found.append([label, without_folder(str(value)) if name == "name" else _plain(value)])
    return found


def _list(entries: Sequence[str]) -> str:
    more = f", and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return ", ".join(entries[:_LISTED]) + more


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ": ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


#: What opens at once in a browser, in bytes.
LARGEST = 8_000_000
# Heads of a pattern or a measure whose examples get pages before those of all others.
_FIRST = 3


class Entry(NamedTuple):
    """Some heads of a layer in a document."""

    document: str
    layer: int
    heads: tuple[int, ...]


@dataclass(frozen=True)
class ExamplePages:
    """Where examples can be seen.

    file     its name
    entries  what it holds, in order
    cut      documents of which it shows the first part
    note     what is left out and why; empty for nothing
    """

    file: str = ""
    entries: tuple[Entry, ...] = ()
    cut: frozenset[str] = frozenset()
    note: str = ""


NO_PAGES = ExamplePages()


def wanted_examples(survey: Survey, patterns: HeadPatterns | None = None) -> list[list[Entry]]:
    """The examples of a survey in groups, those that are looked at most first.

    First those of the heads that patterns name and of each pattern's highest heads, then those of
    each measure's highest heads, then all others. No head is in two groups with one document.
    """
    ranked = [(name, _order(survey, name)) for name in survey.names]
    of_measures = [
        [
            (example.document, layer, head)
            for name, order in ranked
            for layer, head in order[some]
            for example in survey.examples(name, layer, head)
        ]
        for some in (slice(_FIRST), slice(_FIRST, None))
    ]
    groups = []
    done: set[tuple[str, int, int]] = set()
    for places in (_of_patterns(patterns) if patterns is not None else [], *of_measures):
        heads: dict[tuple[str, int], set[int]] = {}
        for name, layer, head in places:
            if (name, layer, head) not in done:
                heads.setdefault((name, layer), set()).add(head)
        done |= set(places)
        groups.append([Entry(*place, tuple(sorted(found))) for place, found in heads.items()])
    return groups


def _of_patterns(patterns: HeadPatterns) -> list[tuple[str, int, int]]:
    # Of sequences that come twice the tokens are drawn: they stand in no document.
    return [
        (example.document, one.layer, one.head)
        for pattern in PATTERNS.values()
        if pattern.texts == "corpus"
        for rank, one in enumerate(patterns.best(pattern.name, patterns.score[pattern.name].size))
        if one.named or rank < _FIRST
        for example in one.examples
    ]


def _order(survey: Survey, name: str) -> list[tuple[int, int]]:
    """The heads, those with the highest mean first."""
    places = (-survey.table(name)).argsort(axis=None, kind="stable").tolist()
    return [divmod(place, survey.n_heads) for place in places]


def write_example_pages(
    path: str | os.PathLike[str],
    wanted: Sequence[Sequence[Entry]],
    documents: Iterable[Document],
    model: "Given",
    *,
    stack: str | None = None,
    longest: int | None = None,
    largest: int = LARGEST,
) -> ExamplePages:
    """One page with the wanted examples, written to `path`, and what it holds.

    The corpus is read once and only the texts of examples are kept. `model`, `stack` and `longest`
    are those of `minibert.survey.patterns.patterns`. Of a text that is longer than `longest`, by
    default the model's positions, the first part is shown. `largest` is in bytes, without what
    every page has; earlier groups have the room before later ones. Raises SurveyError for an
    attached model or a stack that cannot be surveyed, and MinibertError when the file cannot be
    written.
    """
    subject = surveyable(model, stack, longest)
    names = {entry.document for group in wanted for entry in group}
    texts = {one.id: one for one in documents if one.id in names}
    made: list[tuple[Entry, Example]] = []
    cut: set[str] = set()
    room = largest
    for group in wanted:
        for name in dict.fromkeys(entry.document for entry in group):
            if name not in texts or room <= 0:
                continue
            if not (parts := _parts(subject, texts[name], longest)):
                continue
            cut |= {name} if len(parts) > 1 else set()
            for entry in (entry for entry in group if entry.document == name):
                try:
                    example = _example(parts[0], entry)
                except TraceError as error:
                    return replace(NO_PAGES, note=f"No example has a page. {error}")
                if example.size <= room:
                    room -= example.size
                    made.append((entry, example))
    if not made:
        return NO_PAGES
    page = Page(tuple(example for _, example in made), title="Examples of what heads do")
    target = Path(page.save(path))
    missing, total = sum(map(len, wanted)) - len(made), sum(map(len, wanted))
    note = ""
    if missing:
        note = (
            f"{missing} of {total} examples have no page: the file of pages stays below "
            f"{largest / 1_000_000:.0f} MB, and a pair that is too long is not shown."
        )
    return ExamplePages(target.name, tuple(entry for entry, _ in made), frozenset(cut), note)


def _example(rows: Rows, entry: Entry) -> Example:
    name = f"{entry.document}, layer {entry.layer}"
    heads = list(entry.heads)
    page = view({name: rows.paged()}, layers=[entry.layer], heads=heads, vectors=False, lens=False)
    [example] = page.examples
    return example


def _parts(model: "Surveyable", document: Document, longest: int | None) -> tuple[Rows, ...]:
    """The rows of the parts of the document; none where the model cannot read it."""
    try:
        [found] = document_rows(model, [document], longest=longest)
    except TokenizationError:
        return ()
    return found.parts


# The offsets that are drawn, to either side: beyond them little is left to see.
_REACH = 20
# More than a screen or a saved table shows; all of them are in the Parquet files.
_DIGITS = 7


@dataclass(frozen=True, repr=False)
class Report(Written):
    """The report as one HTML file. It needs no network and holds no text but ids and tokens."""

    header: Json

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        return document(header_json(self.header), (), parts=("survey",))

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<Report of {self.header['title']}; save('report.html') writes it to a file>"


def survey_report(
    survey: Survey,
    *,
    patterns: HeadPatterns | None = None,
    pages: ExamplePages = NO_PAGES,
    command: str = "",
    edges: Sequence[Edge] = (),
) -> Report:
    """The report of a survey.

    patterns   names the heads, with score, interval and examples: `minibert.survey.patterns`
    pages      where a head can be seen in a document: `write_example_pages`
    command    what makes the survey again
    edges      who feeds whom: `Reasons.edges`

    Numbers have seven digits. The same survey gives the same bytes.
    """
    ids = _Ids()
    written = [_measure(survey, name, ids) for name in survey.names]
    of_patterns = [
        _pattern(patterns, name, ids, pages.cut) for name in PATTERNS if patterns is not None
    ]
    links = [
        [ids.number(entry.document), entry.layer, number, list(entry.heads)]
        for number, entry in enumerate(pages.entries)
    ]
    header = {
        "command": command,
        "documents": list(ids.numbers),
        "edges": [
            [one.side, one.source, one.layer * survey.n_heads + one.head, *map(_digits, one[-2:])]
            for one in edges
        ],
        "facts": facts(survey.manifest),
        "links": links,
        "measures": written,
        "n_heads": survey.n_heads,
        "n_layers": survey.n_layers,
        "notes": [pages.note] if pages.note else [],
        "pages": pages.file,
        "patterns": of_patterns,
        "profile": _profile(survey),
        "size": _size(survey),
        "title": title(survey.manifest),
    }
    return Report(header)


class _Ids:
    """The ids of documents, each with a number of its own."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, document: str) -> int:
        return self.numbers.setdefault(document, len(self.numbers))


def _measure(survey: Survey, name: str, ids: _Ids) -> Json:
    words, source = _described(survey).get(name, (name, ""))
    interval = survey.interval(name)
    examples = [
        [
            [ids.number(example.document), _digits(example.score)]
            for example in survey.examples(name, layer, head)
        ]
        for layer in range(survey.n_layers)
        for head in range(survey.n_heads)
    ]
    return {
        "documents": survey.count(name),
        "examples": examples,
        "high": _numbers(interval[..., 1]),
        "low": _numbers(interval[..., 0]),
        "mean": _numbers(survey.table(name)),
        "name": name,
        "source": source,
        "unit": _unit(name),
        "words": words,
    }


def _described(survey: Survey) -> dict[str, tuple[str, str]]:
    """The words and the source of each measure, by its name."""
    prefixes = ("to_offset_", "to_token:")
    plain = [name.removesuffix(BY_NORM) for name in survey.names]
    offsets, tokens = (
        [name.removeprefix(prefix) for name in dict.fromkeys(plain) if name.startswith(prefix)]
        for prefix in prefixes
    )
    known = measures_of(offsets=[int(n) for n in offsets], tokens=tokens)
    return {one.name: (one.words, one.source) for one in known}


def _unit(name: str) -> str:
    if name.startswith("entropy"):
        return "nats"
    return "share" if name.startswith(("to_", "most_", "sep_to", "rest_to")) else "number"


def _pattern(patterns: HeadPatterns, name: str, ids: _Ids, cut: frozenset[str]) -> Json:
    known = PATTERNS[name]
    ranked = patterns.best(name, patterns.score[name].size)
    heads = [
        {
            "examples": _examples(one, ids, cut),
            "named": one.named,
            "place": one.layer * patterns.shape[1] + one.head,
        }
        for rank, one in enumerate(ranked)
        if one.named or rank < 3
    ]
    return {
        "baseline": _numbers(patterns.baseline[name]),
        "documents": patterns.documents[name],
        "heads": heads,
        "high": _numbers(patterns.high[name]),
        "low": _numbers(patterns.low[name]),
        "name": name,
        "score": _numbers(patterns.score[name]),
        "source": known.source,
        "words": known.words,
    }


def _examples(head: PatternHead, ids: _Ids, cut: frozenset[str]) -> list[Json]:
    """Rows as examples."""
    # Sequences that come twice are drawn, and numbered as a corpus may number its documents.
    drawn = "drawn sequence " if PATTERNS[head.pattern].texts == "repeated" else ""
    return [
        {
            "document": ids.number(drawn + one.document),
            # In which part of a cut document the tokens stand is not known.
            "key": None if one.document in cut else one.key_position,
            "key_token": one.key,
            "query": one.query_position,
            "query_token": one.query,
            "score": _digits(one.score),
        }
        for one in head.examples
    ]


def _profile(survey: Survey) -> Json | None:
    """The mass at the offsets that are drawn; None where it was not measured."""
    reach = survey.profile.shape[-1] // 2
    if not reach:
        return None
    shown = min(reach, _REACH)
    mass = survey.profile[..., reach - shown : reach + shown + 1]
    rows = mass.reshape(-1, mass.shape[-1]).tolist()
    return {"mass": [[_digits(value) for value in row] for row in rows], "reach": shown}


def _numbers(table: Array) -> list[float | None]:
    return [_digits(value) for value in table.ravel().tolist()]


def _digits(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _size(survey: Survey) -> str:
    """How much was surveyed: the largest numbers that any measure counts."""
    documents, rows = (int(of.max(initial=0)) for of in (survey.sums.documents, survey.sums.rows))
    return (
        f"{survey.n_layers} layers of {survey.n_heads} heads · {documents:,} documents · "
        f"{rows:,} tokens"
    )


def write_survey_report(
    folder: str | Path,
    model: "Given",
    documents: "Corpus | Callable[[], Corpus]",
    *,
    sample: int = 200,
    repeated: Int[Tensor, "draws position"] | None = None,
    command: str = "",
) -> Path:
    """The path of report.html, now in the folder of a finished survey, and examples.html beside it.

    `model` is the one that was surveyed, loaded or attached; of an attached one the folder knows
    the stack. `documents` are those that were surveyed, a list or a function that opens them; they
    are read once more for the texts of examples, as far as the survey did and cut as it cut them.
    On the first `sample` of them that can become tokens heads are named, which goes into the folder
    as patterns.json; 0 leaves it out. `repeated` is that of
    `minibert.survey.patterns.patterns`. `command` is what makes the survey again.

    Raises SurveyError before anything is measured for a folder without a finished survey and for
    another model, and MinibertError for files that cannot be written.
    """
    path = Path(folder)
    survey = Survey.read(path)
    check_list(documents, "documents")
    if isinstance(documents, Iterator):
        raise SurveyError(
            "documents can be read once, and the report reads them twice: give a list, or a "
            "function that opens them, as lambda: read_documents(path)."
        )
    subject = _surveyed(survey, model)
    longest = survey.manifest.get("options", {}).get("longest")

    def again() -> Iterator[Document]:
        given = documents() if callable(documents) else documents
        limit = survey.manifest.get("options", {}).get("limit")
        return (one for window in windows(given, limit=limit) for one in window.documents)

    found = None
    if sample:
        first = (one for one in islice(again(), sample) if _is_readable(subject, one, longest))
        found = patterns(subject, first, repeated=repeated, longest=longest)
        text = json.dumps(found.to_dict(), indent=1)
        write_bytes(f"{text}\n".encode(), path / "patterns.json")
    pages = write_example_pages(
        path / "examples.html", wanted_examples(survey, found), again(), subject, longest=longest
    )
    edges = []
    if isinstance(model, Model) and (path / TOLD).exists():
        edges = Reasons.read(path).edges(model)
    report = survey_report(survey, patterns=found, pages=pages, command=command, edges=edges)
    return report.save(path / "report.html")


def _is_readable(model: "Surveyable", document: Document, longest: int | None) -> bool:
    """Whether it has tokens; the survey has named those without."""
    try:
        return any(text_parts(model, [document], longest=longest))
    except TokenizationError:
        return False


def _surveyed(survey: Survey, model: "Given") -> "Surveyable":
    """The model as it was surveyed. Raises SurveyError unless it is the one of the survey."""
    theirs = survey.manifest["model"]
    live = "attached" in theirs
    if live != isinstance(model, Attached):
        how = "minibert.attach(hf_model, tokenizer=...)" if live else "minibert.load(...)"
        kind = f"a live {theirs['attached']}" if live else "a model that minibert loaded"
        raise SurveyError(f"The survey is of {kind}, {theirs['name']!r}: give it, as {how} does.")
    stack = theirs["stack"]["name"] if live else None
    subject = surveyable(model, stack, survey.manifest.get("options", {}).get("longest"))
    ours = json.loads(json.dumps(identity_of_surveyed(subject)))
    # A model has as many names as there are ways to it.
    if differing := [name for name in ours if name != "name" and ours[name] != theirs.get(name)]:
        raise SurveyError(
            f"The survey is of the model {theirs['name']!r}, and {subject.name!r} is another: "
            f"{' and '.join(differing)} differ. Give the model that was surveyed (--model)."
        )
    return subject
