"""Sums over documents that can be added up: what a survey holds while it runs.

For each measure, layer and head: the sum over rows and how many there were; over documents the
number, the sum and the sum of squares of the document's means; and the best documents. All in
float64 and added in the order of the documents, so that the same corpus gives the same bits whether
it was interrupted or not, by one worker or many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from minibert.survey.measures import Measure
from minibert.survey.rows import RowMasses
from minibert.survey.token_kinds import SegmentTokens

__all__ = [
    "BEST",
    "LEAST_ROWS",
    "Sums",
    "document_means",
    "document_sums",
    "row_sums",
    "rows_that_count",
]

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

#: Documents kept as examples.
BEST = 3
#: A document is an example only where so many rows count: a row or two can show anything.
LEAST_ROWS = 8


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of some documents.

    rows, row_total       (measure, layer), (measure, layer, head): rows that count, and their sum
    documents             (measure, layer): documents with a row that counts; layers differ where
                          their windows do
    total, squares        (measure, layer, head): sums over documents of its mean, and of its square
    best                  (measure, layer, head, 3): the largest means, largest first; −inf: none
    best_document         the same shape: numbers of these documents in reading order; −1: none
    profile               (layer, head, offset): sum over documents of the mean profile; the middle
                          is offset 0
    """

    rows: Floats
    row_total: Floats
    documents: Whole
    total: Floats
    squares: Floats
    best: Floats
    best_document: Whole
    profile: Floats

    @classmethod
    def empty(cls, measures: int, layers: int, heads: int, reach: int) -> "Sums":
        """Those of no document; the profile goes from −reach to reach."""
        size = (measures, layers, heads)
        return cls(
            np.zeros(size[:2]),
            np.zeros(size),
            np.zeros(size[:2], dtype=np.int64),
            np.zeros(size),
            np.zeros(size),
            np.full((*size, BEST), -np.inf),
            np.full((*size, BEST), -1, dtype=np.int64),
            np.zeros((layers, heads, 2 * reach + 1)),
        )

    def __add__(self, other: "Sums") -> "Sums":
        """Both together; the documents of `other` come behind those of this."""
        plain = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if not one.name.startswith("best")
        }
        best = np.concatenate([self.best, other.best], axis=-1)
        numbers = np.concatenate([self.best_document, other.best_document], axis=-1)
        best, numbers = _largest(best, numbers)
        return Sums(**plain, best=best, best_document=numbers)


def _largest(scores: Floats, numbers: Whole) -> tuple[Floats, Whole]:
    """The largest scores and their documents; of equals those that were read first."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :BEST]
    return np.take_along_axis(scores, order, -1), np.take_along_axis(numbers, order, -1)


def document_means(sums: Sums) -> Floats:
    """(measure, layer, head): the means over documents; nan where none counts."""
    counts = np.where(sums.documents > 0, sums.documents, np.nan)
    return np.asarray(sums.total / counts[..., None])


def rows_that_count(measures: Sequence[Measure], tokens: SegmentTokens) -> tuple[Floats, Floats]:
    """1 where a row counts, (measure, token), and how many do, (measure, segment)."""
    rows = np.stack([measure.rows(tokens) for measure in measures]).astype(np.float64)
    return rows, np.add.reduceat(rows, tokens.starts, axis=1)


def row_sums(measures: Sequence[Measure], masses: RowMasses, rows: Floats | None = None) -> Floats:
    """Of one layer, for each segment the sums of the rows that count: (measure, head, segment).

    `rows` is what `rows_that_count` gives for these tokens, where it is known already.
    """
    if rows is None:
        rows, _ = rows_that_count(measures, masses.tokens)
    sums = [
        np.add.reduceat(measure.of_rows(masses) * counted, masses.tokens.starts, axis=1)
        for measure, counted in zip(measures, rows, strict=True)
    ]
    return np.stack(sums)


def document_sums(rows: Floats, counts: Floats, profile: Floats, numbers: Whole) -> Sums:
    """The sums of documents from those of each.

    rows (measure, layer, head, document), counts (measure, layer, document), profile (layer, head,
    offset) summed over documents, and the numbers of the documents in reading order.
    """
    applies = counts > 0
    each = np.where(applies, counts, 1)[:, :, None]
    means = np.where(applies[:, :, None], rows / each, 0.0)
    scores = np.where((counts >= LEAST_ROWS)[:, :, None], means, -np.inf)
    where = np.broadcast_to(np.asarray(numbers, dtype=np.int64), scores.shape)
    missing = [(0, 0)] * 3 + [(0, max(0, BEST - scores.shape[-1]))]
    best, best_document = _largest(
        np.pad(scores, missing, constant_values=-np.inf), np.pad(where, missing, constant_values=-1)
    )
    return Sums(
        rows=counts.sum(-1),
        row_total=rows.sum(-1),
        documents=applies.sum(-1),
        total=means.sum(-1),
        squares=(means**2).sum(-1),
        best=best,
        best_document=np.where(np.isinf(best), -1, best_document),
        profile=profile,
    )
