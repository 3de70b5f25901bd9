"""The measures of a survey, each declared once: its name, what it says, where it comes from.

A measure of a document is the mean of a number over the rows (queries) that count for it, as in the
formulas of Clark et al. 2019: a sum over rows divided by their number. One more line here adds a
measure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError, did_you_mean
from minibert.survey.rows import OFFSETS, RowMasses
from minibert.survey.segments import SegmentTokens

Floats = npt.NDArray[np.floating]
Flags = npt.NDArray[np.bool_]
#: Behind the name of a measure: the same with rows weighted by norms.
BY_NORM = "_by_norm"
_CLARK, _VIG, _OURS = "Clark et al. 2019", "Vig 2019, part 1", "this project"
_KOBAYASHI = "Kobayashi et al. 2020"
OfRows = Callable[[RowMasses], Floats]
Counting = Callable[[SegmentTokens], Flags]


@dataclass(frozen=True)
class Measure:
    """A number for each row of attention, and which rows count.

    name     as in tables and on the command line
    words    the description in words
    source   who defined it
    of_rows  (head, query) of the rows of a layer
    rows     True (query) where a row counts
    """

    name: str
    words: str
    source: str
    of_rows: OfRows
    rows: Counting


Named = Callable[[str], Measure]


def _every(tokens: SegmentTokens) -> Flags:
    return np.ones(len(tokens), dtype=bool)


def _of_class(name: str) -> Callable[[SegmentTokens], Flags]:
    return lambda tokens: tokens.of_class(name)


def _not_sep(tokens: SegmentTokens) -> Flags:
    return ~tokens.of_class("sep")


def _of_pairs(tokens: SegmentTokens) -> Flags:
    return tokens.has_two_texts & (tokens.text >= 0)


def _with(relation: int) -> Callable[[SegmentTokens], Flags]:
    """The rows that have a key of this relation."""

    def rows(tokens: SegmentTokens) -> Flags:
        found = np.zeros(len(tokens), dtype=bool)
        found[tokens.queries[relation][0]] = True
        return found

    return rows


def _most_received(masses: RowMasses) -> Floats:
    assert masses.received is not None
    tokens = masses.tokens
    lengths = np.array(tokens.lengths)
    most = np.maximum.reduceat(masses.received, tokens.starts, axis=1) / lengths
    return np.repeat(most, lengths, axis=1)


def _entropy(masses: RowMasses) -> Floats:
    assert masses.entropy is not None
    return masses.entropy


def _on(name: str) -> Callable[[RowMasses], Floats]:
    return lambda masses: masses.on(name)


def _at(offset: int) -> Callable[[RowMasses], Floats]:
    return lambda masses: masses.at(offset)


def _related(name: str) -> Callable[[RowMasses], Floats]:
    return lambda masses: masses.related(name)


def _to(words: str, source: str, of_rows: OfRows, rows: Counting = _every) -> Named:
    return lambda name: Measure(name, words, source, of_rows, rows)


def _table(lines: Mapping[str, Named]) -> tuple[Measure, ...]:
    return tuple(named(name) for name, named in lines.items())


_ONLY_PROBS = _table({
    "entropy": _to("entropy of the rows, in nats", f"{_CLARK}, §3.4", _entropy),
    "entropy_cls": _to(
        "entropy of the rows of [CLS], in nats", f"{_CLARK}, §3.4", _entropy, _of_class("cls")),
    "most_received": _to(
        "the share of all attention that the most attended token gets", _OURS, _most_received),
})  # fmt: skip
_MASSES = _table({
    "to_self": _to("mass on the token itself", f"{_CLARK}, §3.1", _at(0)),
    "to_previous": _to("mass on the token before", f"{_CLARK}, §3.1", _at(-1)),
    "to_next": _to("mass on the token after", f"{_CLARK}, §3.1", _at(1)),
    "to_first": _to("mass on the first position", "Vig and Belinkov 2019", _on("first")),
    "to_cls": _to("mass on [CLS]", f"{_CLARK}, §3.2", _on("cls")),
    "to_sep": _to("mass on [SEP]", f"{_CLARK}, §3.2", _on("sep")),
    "sep_to_sep": _to(
        "mass of the rows of [SEP] on [SEP]", f"{_CLARK}, §3.2", _on("sep"), _of_class("sep")),
    "rest_to_sep": _to(
        "mass of all other rows on [SEP]", f"{_CLARK}, §3.2", _on("sep"), _not_sep),
    "to_period_comma": _to('mass on "." and ","', f"{_CLARK}, §3.2", _on("period_comma")),
    "to_punctuation": _to("mass on all punctuation", _OURS, _on("punctuation")),
    "to_other_text": _to(
        "mass on the tokens of the other text, where there are two",
        _VIG, lambda masses: masses.on_other_text, _of_pairs),
    "to_same_word": _to(
        "mass on the same word at other places, of the rows that have one",
        _VIG, _related("same_word"), _with(0)),
    "to_same_word_other_text": _to(
        "mass on the same word in the other text, of the rows that have one",
        _VIG, _related("same_word_other_text"), _with(1)),
    "to_duplicate": _to(
        "mass on the same token earlier, of the rows that have one",
        "Wang et al. 2022, §3.2", _related("duplicate"), _with(2)),
    "to_induction": _to(
        "mass on what followed the same token earlier, of the rows that have one",
        "Olsson et al. 2022", _related("induction"), _with(3)),
})  # fmt: skip


def measures_of(
    *,
    offsets: Sequence[int] = OFFSETS,
    tokens: Sequence[str] = (),
    by_norm: bool = True,
    names: Sequence[str] | None = None,
) -> tuple[Measure, ...]:
    """The measures of a survey in the order of its tables.

    Every survey has the measures above. Each further offset (`to_offset_-2`) and each chosen token
    (`to_token:the`) adds one, and `by_norm` adds each mass with rows weighted by norms
    (`to_previous_by_norm`). `names` chooses some of them. Raises SurveyError for an unknown name.
    """
    further = {
        f"to_offset_{n}": _to(f"mass on the token at offset {n}", f"{_CLARK}, §3.1", _at(n))
        for n in offsets
        if n not in OFFSETS
    }
    chosen = {
        f"to_token:{one}": _to(f"mass on the token {one!r}", f"{_CLARK}, §3.2", _on(f"token:{one}"))
        for one in tokens
    }
    masses = (*_MASSES, *_table(further), *_table(chosen))
    found = (*_ONLY_PROBS, *masses, *(map(_weighed, masses) if by_norm else ()))
    if names is None:
        return found
    known = {one.name: one for one in found}
    if unknown := [name for name in names if name not in known]:
        raise SurveyError(
            f"measure {', '.join(unknown)}{did_you_mean(unknown[0], known)}: not known here; known "
            f"are {', '.join(known)}."
        )
    return tuple(known[name] for name in names)


def _weighed(measure: Measure) -> Measure:
    """This measure with rows weighted by norms: shares of Σ α·‖f(x)‖."""

    def of_rows(masses: RowMasses) -> Floats:
        assert masses.by_norm is not None
        return measure.of_rows(masses.by_norm)

    return replace(
        measure,
        name=measure.name + BY_NORM,
        words=f"{measure.words}, rows weighted by norms",
        source=f"{measure.source}; {_KOBAYASHI}",
        of_rows=of_rows,
    )
