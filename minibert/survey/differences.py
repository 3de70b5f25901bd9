"""Two surveys of one corpus, head by head: before and after fine-tuning, two sizes, two seeds.

survey A, survey B -> heads as vectors of measures -> matched by behaviour -> changes
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError
from minibert.survey.tables import Survey

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def assignment(cost: Floats) -> list[tuple[int, int]]:
    """Pairs (row, column), sorted by row, with the least sum of costs; as many as the shorter side.

    No row and no column occurs twice. Exact, in O(n²·m) steps for n rows and m >= n columns: rows
    join one after the other, each by the shortest augmenting path. Raises SurveyError unless
    cost is a table of finite numbers.

    Source: Kuhn 1955, "The Hungarian method for the assignment problem"; Jonker and Volgenant 1987.
    """
    cost = np.asarray(cost, dtype=np.float64)
    if cost.ndim != 2 or not np.isfinite(cost).all():
        raise SurveyError(
            f"assignment: cost has shape {cost.shape}; expected rows and columns of finite numbers."
        )
    if cost.shape[0] > cost.shape[1]:
        return sorted((row, column) for column, row in assignment(cost.T))
    n, m = cost.shape
    of_row, of_column = np.zeros(n), np.zeros(m)
    owner = np.full(m, -1)
    for row in range(n):
        _add(cost, row, of_row, of_column, owner)
    return sorted((int(owner[column]), int(column)) for column in np.flatnonzero(owner >= 0))


def _add(cost: Floats, row: int, of_row: Floats, of_column: Floats, owner: Whole) -> None:
    """Give one more row a column; rows that have one may change theirs.

    `of_row` and `of_column` are the dual prices: cost - of_row - of_column is never below 0, and 0
    where a row has its column.
    """
    least = np.full(len(owner), np.inf)
    before = np.full(len(owner), -1)
    reached = np.zeros(len(owner), dtype=bool)
    column, length, at = -1, 0.0, row
    lengths = {row: 0.0}
    while True:
        way = length + cost[at] - of_row[at] - of_column
        shorter = ~reached & (way < least)
        least[shorter], before[shorter] = way[shorter], column
        column = int(np.where(reached, np.inf, least).argmin())
        length = float(least[column])
        if owner[column] < 0:
            break
        reached[column] = True
        at = int(owner[column])
        lengths[at] = length
    for passed, distance in lengths.items():
        of_row[passed] += length - distance
    of_column[reached] -= length - least[reached]
    while column >= 0:
        earlier = int(before[column])
        owner[column] = row if earlier < 0 else owner[earlier]
        column = earlier


Flags = npt.NDArray[np.bool_]
Head = tuple[int, int]
#: What `SurveyDiff.rows` gives.
COLUMNS = (
    "layer_a", "head_a", "layer_b", "head_b", "distance",
    "measure", "before", "after", "change", "margin", "exceeds",
)  # fmt: skip
# Options that change neither what is measured nor on which documents.
_NO_MATTER = ("batch_tokens", "impl", "measures", "on_error", "window")


@dataclass(frozen=True, eq=False)
class SurveyDiff:
    """The heads of survey A beside the heads of survey B that behave most like them.

    names          the measures, as in both surveys
    spread         (measure): its standard deviation over the heads of both
    matched_by     True (measure) where a measure took part in the matching
    pairs          (layer, head) in A and in B, those with the largest distance first
    distance       (pair): between both heads, in standard deviations between heads
    before, after  (pair, measure): the means in A and in B
    margin         (pair, measure): half the width of the 95 % interval of their difference, as if
                   the documents of both were drawn apart: √(a² + b²) of both half widths
    only_a, only_b heads that have no partner, because the other model has fewer heads
    """

    names: tuple[str, ...]
    spread: Floats
    matched_by: Flags
    pairs: tuple[tuple[Head, Head], ...]
    distance: Floats
    before: Floats
    after: Floats
    margin: Floats
    only_a: tuple[Head, ...]
    only_b: tuple[Head, ...]

    @property
    def change(self) -> Floats:
        """(pair, measure): after - before."""
        return self.after - self.before

    @property
    def exceeds(self) -> Flags:
        """(pair, measure): True where the change is larger than its margin.

        False where there is no margin: with fewer than two documents, or no row that counts. Both
        surveys read the same documents, so chance alone exceeds it in fewer than 1 of 20 cases.
        """
        return np.abs(self.change) > self.margin

    @property
    def moved(self) -> tuple[bool, ...]:
        """(pair): True where the partner stands in another place than the head itself."""
        return tuple(a != b for a, b in self.pairs)

    def rows(self) -> Iterator[list[str | int | float]]:
        """One line a pair and measure: `COLUMNS`; nan for a number that there is not."""
        for pair, (a, b) in enumerate(self.pairs):
            for number, name in enumerate(self.names):
                at = pair, number
                values = (self.before, self.after, self.change, self.margin)
                numbers = [float(table[at]) for table in values]
                distance = float(self.distance[pair])
                yield [*a, *b, distance, name, *numbers, int(self.exceeds[at])]

    def to_dict(self) -> dict[str, object]:
        """All of it as numbers, lists and texts that JSON has; null for a number that is not."""
        pairs = []
        for pair, (a, b) in enumerate(self.pairs):
            table = zip(
                self.names,
                *(part[pair].tolist() for part in (self.before, self.after, self.margin)),
                self.exceeds[pair].tolist(),
                strict=True,
            )
            measures = {
                name: {
                    "before": _number(before),
                    "after": _number(after),
                    "change": _number(after - before),
                    "margin": _number(margin),
                    "exceeds": exceeds,
                }
                for name, before, after, margin, exceeds in table
            }
            distance = float(self.distance[pair])
            pairs.append({"a": list(a), "b": list(b), "distance": distance, "measures": measures})
        return {
            "matched_by": [
                name for name, by in zip(self.names, self.matched_by, strict=True) if by
            ],
            "pairs": pairs,
            "only_a": [list(head) for head in self.only_a],
            "only_b": [list(head) for head in self.only_b],
        }


def diff(a: Survey, b: Survey) -> SurveyDiff:
    """Which heads changed from survey A to survey B, each beside the one that behaves most like it.

    A head is the vector of its measures, each divided by its standard deviation over the heads of
    both surveys. Heads are paired so that the sum of the Euclidean distances within pairs is least
    (`assignment`); their layers do not count, so models of different sizes can be compared. A
    measure that no row of one survey counts for, or that is the same for all heads, takes no part.

    Raises SurveyError where both do not have the same measures, corpus and options, and where no
    measure can tell heads apart.
    """
    check_alike(a, b)
    tables = [np.stack([one.table(name) for name in a.names], axis=-1) for one in (a, b)]
    means = [table.reshape(-1, len(a.names)) for table in tables]
    both = np.concatenate(means)
    known = np.isfinite(both).all(0)
    spread = np.where(known, np.where(known, both, 0.0).std(0), 0.0)
    # Rounding leaves a little of numbers that are all the same.
    used = spread > 1e-12 * np.abs(np.where(known, both, 0.0)).max(0)
    if not used.any():
        raise SurveyError(
            "survey-diff: no measure differs between heads, so none can be matched with another; "
            "make both surveys with more measures."
        )
    first, second = (table[:, used] / spread[used] for table in means)
    apart = np.stack([np.linalg.norm(second - head, axis=-1) for head in first])
    pairs = assignment(apart)
    distance = np.array([apart[pair] for pair in pairs])
    order = np.argsort(-distance, kind="stable")
    rows, columns = np.array(pairs)[order].T
    half = [_half_widths(one) for one in (a, b)]
    return SurveyDiff(
        names=a.names,
        spread=spread,
        matched_by=used,
        pairs=tuple(
            (_place(int(row), a), _place(int(column), b))
            for row, column in zip(rows, columns, strict=True)
        ),
        distance=distance[order],
        before=means[0][rows],
        after=means[1][columns],
        margin=np.hypot(half[0][rows], half[1][columns]),
        only_a=_without(rows, a),
        only_b=_without(columns, b),
    )


def check_alike(a: Survey, b: Survey) -> None:
    """Raise SurveyError, naming what differs, unless both measured the same in the same way."""
    missing = [name for name in a.names if name not in b.names]
    more = [name for name in b.names if name not in a.names]
    if missing or more or a.names != b.names:
        raise _unlike(f"measures: only in A {missing or 'none'}, only in B {more or 'none'}")
    one, other = ({**_part(x, "corpus"), **_part(x, "options")} for x in (a, b))
    wrong = [
        f"{name}: {one.get(name)!r:.80} and {other.get(name)!r:.80}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]
    if wrong:
        raise _unlike("; ".join(wrong))


def _part(survey: Survey, name: str) -> dict[str, object]:
    """What a part of the manifest says, but for what two models or two machines may differ in."""
    told = survey.manifest.get(name, {})
    if name == "corpus":
        # Two tokenizers cut the same documents into other tokens.
        return {"corpus": told.get("sha256")}
    return {key: value for key, value in told.items() if key not in _NO_MATTER}


def _unlike(what: str) -> SurveyError:
    return SurveyError(
        f"survey-diff: both surveys must have the same measures, corpus and options, but they "
        f"differ in {what}. Survey both models over the same documents with the same options."
    )


def _half_widths(survey: Survey) -> Floats:
    """(head, measure): half the width of the confidence interval of each mean."""
    intervals = np.stack([survey.interval(name) for name in survey.names], axis=-2)
    return ((intervals[..., 1] - intervals[..., 0]) / 2).reshape(-1, len(survey.names))


def _place(entry: int, survey: Survey) -> Head:
    return divmod(entry, survey.n_heads)


def _without(matched: npt.NDArray[np.int64], survey: Survey) -> tuple[Head, ...]:
    there = set(matched.tolist())
    entries = range(survey.n_layers * survey.n_heads)
    return tuple(_place(entry, survey) for entry in entries if entry not in there)


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
