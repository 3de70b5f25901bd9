"""A window of documents measured, and the sums of a survey.

The documents of a window are sorted by length into batches. Their results are added in float64 and
in the order of the documents, so an interrupted run gives the same bits as an uninterrupted one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from minibert.survey.documents import MOST_NAMED, worth_reading
from minibert.survey.live import AttachedStack, Surveyable
from minibert.survey.measures import Measure
from minibert.survey.rows import RowMasses
from minibert.survey.runs import Arrays, Read, Window
from minibert.survey.segments import Batch, Segmenter, SegmentTokens, batches
from minibert.untrusted import Json

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.int64]

#: Documents kept as examples.
BEST = 3
#: A document is an example only where it is worth reading and so many rows count: a row or two can
#: show anything.
LEAST_ROWS = 8


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of some documents.

    rows, row_total       (measure), (measure, layer, head): rows that count, and their sum
    documents             (measure): documents with a row that counts
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
        """The sums over no document; the profile goes from −reach to reach."""
        size = (measures, layers, heads)
        return cls(
            np.zeros(measures),
            np.zeros(size),
            np.zeros(measures, dtype=np.int64),
            np.zeros(size),
            np.zeros(size),
            np.full((*size, BEST), -np.inf),
            np.full((*size, BEST), -1, dtype=np.int64),
            np.zeros((layers, heads, 2 * reach + 1)),
        )

    def __add__(self, other: "Sums") -> "Sums":
        """The sums of both; the documents of `other` follow those of this."""
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


def rows_that_count(measures: Sequence[Measure], tokens: SegmentTokens) -> Floats:
    """1 where a row counts, (measure, token)."""
    return np.stack([measure.rows(tokens) for measure in measures]).astype(np.float64)


def row_sums(measures: Sequence[Measure], masses: RowMasses, rows: Floats) -> Floats:
    """The sums of the rows of one layer that count, by segment: (measure, head, segment)."""
    sums = [
        np.add.reduceat(measure.of_rows(masses) * counted, masses.tokens.starts, axis=1)
        for measure, counted in zip(measures, rows, strict=True)
    ]
    return np.stack(sums)


def document_sums(
    rows: Floats, counts: Floats, profile: Floats, numbers: Whole, worth: npt.NDArray[np.bool_]
) -> Sums:
    """The sums of documents from those of each.

    rows (measure, layer, head, document), counts (measure, document), profile (layer, head, offset)
    summed over documents, the numbers of the documents in reading order, and which of them are
    worth reading as examples.
    """
    applies = counts > 0
    each = np.where(applies, counts, 1)[:, None, None]
    means = np.where(applies[:, None, None], rows / each, 0.0)
    scores = np.where(((counts >= LEAST_ROWS) & worth)[:, None, None], means, -np.inf)
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


@contextmanager
def batch_threads(device: torch.device) -> Iterator[Executor]:
    """Threads that batches are computed in: on a CPU as many as torch has, else one.

    While they run, torch uses one thread in the whole process.
    """
    before = torch.get_num_threads()
    if device.type != "cpu":
        with ThreadPoolExecutor(1) as threads:
            yield threads
        return
    threads = ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield threads
    finally:
        # What has not begun is of no use to anyone after an error or Ctrl-C.
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


Masses = Callable[[Batch, Callable[[int, RowMasses], None]], None]


@dataclass(frozen=True, eq=False)
class Measured:
    """The results of some windows.

    sums       over their documents
    ids        of the documents that are among the best, by number
    documents, segments, tokens: how many were measured
    n_wrong    documents that could not become tokens; wrong: (document, reason) for the first
    pairs_cut  pairs whose ends were left out
    read       the windows, where they are the first of a corpus
    """

    sums: Sums
    ids: Mapping[int, str] = field(default_factory=dict)
    documents: int = 0
    segments: int = 0
    tokens: int = 0
    n_wrong: int = 0
    pairs_cut: int = 0
    wrong: tuple[tuple[str, str], ...] = ()
    read: Read = field(default_factory=Read)

    def with_window(self, window: Window, other: "Measured") -> "Measured":
        """These results with those of the next window added."""
        sums, ids = self.sums + other.sums, {**self.ids, **other.ids}
        kept = {int(n) for n in np.unique(sums.best_document) if n >= 0}
        counts = ("documents", "segments", "tokens", "n_wrong", "pairs_cut")
        return Measured(
            sums,
            {n: ids[n] for n in sorted(kept)},
            **{name: getattr(self, name) + getattr(other, name) for name in counts},
            wrong=(*self.wrong, *other.wrong)[:MOST_NAMED],
            read=self.read.with_window(window),
        )

    def told(self) -> Json:
        """All but the sums, for JSON."""
        return {name: one for name, one in vars(self).items() if name != "sums"} | {
            "read": vars(self.read)
        }

    @classmethod
    def of(cls, told: Json, arrays: Arrays) -> "Measured":
        """What `told` and the arrays of the sums say."""
        ids = {int(number): name for number, name in told["ids"].items()}
        wrong = tuple((place, reason) for place, reason in told["wrong"])
        read = Read(**told["read"])
        sums: dict[str, Any] = dict(arrays)
        return cls(Sums(**sums), **told | {"ids": ids, "wrong": wrong, "read": read})


class WindowSurvey:
    """Measures windows with one model."""

    def __init__(
        self,
        model: Surveyable,
        segmenter: Segmenter,
        masses: Masses,
        measures: Sequence[Measure],
        *,
        batch_tokens: int,
        profile: bool,
    ) -> None:
        self.segmenter, self.masses, self.measures = segmenter, masses, measures
        self.size, self.batch_tokens = (model.config.n_layers, model.config.n_heads), batch_tokens
        self.reach = segmenter.longest - 1 if profile else 0
        # A live model reads segments of one length together, without padding.
        self.equal_lengths = isinstance(model, AttachedStack)
        self.device: torch.device = (
            model.device if isinstance(model, AttachedStack) else model.body.device
        )

    def empty(self) -> Sums:
        """The sums of no document."""
        return Sums.empty(len(self.measures), *self.size, self.reach)

    def in_order(self, unread: Iterable[Window]) -> Iterator[tuple[Window, Measured]]:
        """Each window with what its documents give; while one ends, the next one has begun."""
        begun: deque[tuple[Window, Callable[[], Measured]]] = deque()
        with batch_threads(self.device) as threads:
            for window in unread:
                begun.append((window, self.begin(window, threads)))
                if len(begun) > 1:
                    first, finish = begun.popleft()
                    yield first, finish()
            for last, finish in begun:
                yield last, finish()

    def begin(self, window: Window, threads: Executor) -> Callable[[], Measured]:
        """Have the window's batches measured by the threads; what is returned waits for them."""
        cut_before = self.segmenter.pairs_cut
        segments, wrong = self.segmenter.segments(window.documents)
        reasons = tuple((window.documents[n].id, why) for n, why in sorted(wrong.items()))
        cut = self.segmenter.pairs_cut - cut_before
        n_tokens = np.zeros(len(window.documents))
        for segment in segments:
            n_tokens[segment.document] += len(segment.ids)
        held = _Held(self, n_tokens)
        parts = batches(segments, self.batch_tokens, equal_lengths=self.equal_lengths)
        begun = [threads.submit(held.measured, one) for one in parts]

        def finish() -> Measured:
            for one in begun:
                held.add(one.result())
            good = np.flatnonzero(n_tokens)
            if not len(good):
                return Measured(self.empty(), n_wrong=len(wrong), wrong=reasons, pairs_cut=cut)
            read = [window.documents[n] for n in good]
            worth = [worth_reading(one.text or " ".join(one.words or ())) for one in read]
            sums = document_sums(
                held.rows[..., good],
                held.counts[..., good],
                held.profile,
                good + window.first,
                np.array(worth),
            )
            best = np.unique(sums.best_document)
            return Measured(
                sums,
                {int(n): window.documents[n - window.first].id for n in best if n >= 0},
                len(good),
                len(segments),
                int(n_tokens.sum()),
                len(wrong),
                cut,
                reasons,
            )

        return finish


@dataclass(frozen=True, eq=False)
class _OfBatch:
    """What a batch gave.

    counts   (measure, segment): rows that count
    layers   for each layer the sums of rows, (measure, head, segment), and the profile
    """

    batch: Batch
    counts: Floats
    layers: list[tuple[Floats, Floats | None]]


class _Held:
    """The sums of each document of a window, batch by batch."""

    def __init__(self, survey: WindowSurvey, n_tokens: Floats) -> None:
        self.survey, self.n_tokens = survey, n_tokens
        n_measures, n_documents = len(survey.measures), len(n_tokens)
        self.rows = np.zeros((n_measures, *survey.size, n_documents))
        self.counts = np.zeros((n_measures, n_documents))
        self.profile = survey.empty().profile

    def measured(self, batch: Batch) -> _OfBatch:
        """What the batch gives."""
        survey, tokens = self.survey, batch.tokens
        rows = rows_that_count(survey.measures, tokens)
        layers: list[tuple[Floats, Floats | None]] = []

        def visit(layer: int, masses: RowMasses) -> None:
            layers.append((row_sums(survey.measures, masses, rows), masses.profile))

        survey.masses(batch, visit)
        return _OfBatch(batch, np.add.reduceat(rows, tokens.starts, axis=1), layers)

    def add(self, found: _OfBatch) -> None:
        """Add it to the sums of its documents."""
        owners = [one.document for one in found.batch.segments]
        for number, owner in enumerate(owners):
            self.counts[..., owner] += found.counts[..., number]
        for layer, (sums, profile) in enumerate(found.layers):
            for number, owner in enumerate(owners):
                self.rows[:, layer, :, owner] += sums[..., number]
            if profile is not None:
                self._add_profile(layer, profile, found.batch.tokens.lengths, owners)

    def _add_profile(
        self, layer: int, profile: Floats, lengths: Sequence[int], owners: Sequence[int]
    ) -> None:
        first, middle = 0, self.survey.reach
        for length, owner in zip(lengths, owners, strict=True):
            own = profile[:, first : first + 2 * length - 1] / self.n_tokens[owner]
            self.profile[layer, :, middle - length + 1 : middle + length] += own
            first += 2 * length - 1
