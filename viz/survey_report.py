"""The report of a survey: one self-contained HTML page of figures, made from its tables alone.

Survey, and where they were measured patterns and distances -> header -> document -> HTML

The figures are those of Clark et al. 2019 (figures 2 to 4 and 6) and of Kobayashi et al. 2020;
static/views/survey draws them.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.survey.distances import HeadDistances
from minibert.survey.head_map import layer_closeness, metric_scaling
from minibert.survey.measures import BY_NORM, GRADIENT, measures
from minibert.survey.pattern_table import PATTERNS
from minibert.survey.patterns import MEASURES, HeadPatterns, PatternHead, patterns_of_survey
from minibert.survey.tables import Survey
from minibert.viz.document import document
from minibert.viz.payload import header_json
from minibert.viz.saving import write_page
from minibert.viz.survey_facts import facts, title
from minibert.viz.survey_pages import NO_PAGES, ExamplePages

__all__ = ["Report", "survey_report"]

# The offsets that are drawn, to either side: beyond them little is left to see.
_REACH = 20
# More than a screen or a saved table shows; all of them are in the Parquet files.
_DIGITS = 7


@dataclass(frozen=True, repr=False)
class Report:
    """The report as one HTML file. It needs no network and holds no text but ids and tokens."""

    header: Mapping[str, Any]

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        return document(header_json(dict(self.header)), (), parts=("survey",))

    @property
    def html(self) -> str:
        """The whole file as one text."""
        return "".join(self.pieces())

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<Report of {self.header['title']}; save('report.html') writes it to a file>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path of the file, now written whole or not at all; see `saving.write_page`.

        Raises MinibertError when the folder is missing, may not be written to, or is full.
        """
        return write_page(self.pieces(), path)


def survey_report(
    survey: Survey,
    *,
    patterns: HeadPatterns | None = None,
    distances: HeadDistances | None = None,
    pages: ExamplePages = NO_PAGES,
    command: str = "",
) -> Report:
    """The report of a survey.

    patterns   names the heads, with score, interval and examples: `minibert.survey.patterns`; by
               default those that follow from the survey's own measures
    distances  are drawn as a map of heads: `minibert.survey.distances.head_distances`
    pages      where a head can be seen in a document: `survey_pages.write_example_pages`
    command    what makes the survey again

    Numbers have seven digits. The same survey gives the same bytes.
    """
    ids = _Ids()
    patterns = patterns_of_survey(survey) if patterns is None else patterns
    written = [_measure(survey, name, ids) for name in survey.names]
    of_patterns = [_pattern(survey, patterns, name, ids, pages.cut) for name in PATTERNS]
    of_distances = None if distances is None else _distances(distances)
    links = [
        [ids.number(entry.document), entry.layer, number, list(entry.heads)]
        for number, entry in enumerate(pages.entries)
    ]
    header = {
        "command": command,
        "distances": of_distances,
        "documents": list(ids.numbers),
        "facts": facts(survey.manifest) + _sampled(distances),
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


def _measure(survey: Survey, name: str, ids: _Ids) -> dict[str, Any]:
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
    plain = [name.removesuffix(BY_NORM).removeprefix(GRADIENT) for name in survey.names]
    offsets, tokens = (
        [name.removeprefix(prefix) for name in dict.fromkeys(plain) if name.startswith(prefix)]
        for prefix in prefixes
    )
    known = measures(offsets=[int(n) for n in offsets], tokens=tokens, gradients=True)
    return {one.name: (one.words, one.source) for one in known}


def _unit(name: str) -> str:
    if name.startswith("entropy"):
        return "nats"
    return "share" if name.startswith(("to_", "most_", "sep_to", "rest_to")) else "number"


def _pattern(
    survey: Survey, patterns: HeadPatterns, name: str, ids: _Ids, cut: frozenset[str]
) -> dict[str, Any]:
    known = PATTERNS[name]
    ranked = patterns.best(name, patterns.score[name].size)
    heads = [
        {
            "examples": _examples(survey, one, ids, cut),
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


def _examples(
    survey: Survey, head: PatternHead, ids: _Ids, cut: frozenset[str]
) -> list[dict[str, Any]]:
    """Rows as examples; where there are none, the documents of the survey's measure."""
    if not head.examples and (measure := MEASURES.get(head.pattern)) in survey.names:
        return [
            {
                "document": ids.number(one.document),
                "score": _digits(one.score),
                **dict.fromkeys(("key", "key_token", "query", "query_token")),
            }
            for one in survey.examples(str(measure), head.layer, head.head)
        ]
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


def _distances(distances: HeadDistances) -> dict[str, Any]:
    scaling = metric_scaling(distances.mean)
    closeness = layer_closeness(distances)
    return {
        "points": [[_digits(x), _digits(y)] for x, y in scaling.points.tolist()],
        "stress": _digits(scaling.stress),
        **{name: _digits(value) for name, value in closeness._asdict().items()},
    }


def _profile(survey: Survey) -> dict[str, Any] | None:
    """The mass at the offsets that are drawn; None where it was not measured."""
    reach = survey.profile.shape[-1] // 2
    if not reach:
        return None
    shown = min(reach, _REACH)
    mass = survey.profile[..., reach - shown : reach + shown + 1]
    rows = mass.reshape(-1, mass.shape[-1]).tolist()
    return {"mass": [[_digits(value) for value in row] for row in rows], "reach": shown}


def _numbers(table: npt.NDArray[np.float64]) -> list[float | None]:
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


def _sampled(distances: HeadDistances | None) -> list[list[str]]:
    if distances is None:
        return []
    return [["patterns and distances", f"on the first {distances.documents} documents"]]
