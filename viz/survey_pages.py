"""Pages of the best examples of a survey: one file in which each head can be seen at its work.

An entry holds some heads of one layer in one document, so that all examples fit into a small file.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minibert.errors import TokenizationError, TraceError
from minibert.survey.document_rows import Rows, document_rows, surveyable
from minibert.survey.documents import Document
from minibert.survey.pattern_table import PATTERNS
from minibert.survey.patterns import HeadPatterns
from minibert.survey.tables import Survey
from minibert.viz.example import Example
from minibert.viz.page import Page
from minibert.viz.viewing import view

if TYPE_CHECKING:
    from minibert.survey.live import Given, Surveyable

__all__ = ["NO_PAGES", "Entry", "ExamplePages", "wanted_examples", "write_example_pages"]

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
        for document, layer, head in places:
            if (document, layer, head) not in done:
                heads.setdefault((document, layer), set()).add(head)
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
