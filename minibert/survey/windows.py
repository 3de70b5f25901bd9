"""A window of documents measured: the piece of work a survey is cut into.

The corpus is read a window at a time, so that memory does not depend on its size. The documents of
a window are sorted by length into batches, and what these give is added in their order. Whoever
measures a window, and in whichever order windows and batches are done, gets the same bits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from minibert.survey.batch_threads import batch_threads
from minibert.survey.formats import Document
from minibert.survey.measures import Measure
from minibert.survey.rows import RowMasses
from minibert.survey.segments import Batch, Segmenter, batches
from minibert.survey.sums import Sums, document_sums, row_sums, rows_that_count

__all__ = ["Measured", "Window", "WindowSurvey", "windows"]

Floats = npt.NDArray[np.floating]
#: A window ends with the document that reaches either: about 30,000 tokens.
CHARACTERS, DOCUMENTS = 2**17, 512
Masses = Callable[[Batch, Callable[[int, RowMasses], None]], None]


@dataclass(frozen=True)
class Window:
    """Documents in a row: the number of the window, and that of its first document."""

    number: int
    first: int
    documents: tuple[Document, ...]


@dataclass(frozen=True, eq=False)
class Measured:
    """What a window gave.

    sums       over its documents
    ids        of the documents that are among the best, by number
    documents, segments, tokens: how many were measured
    wrong      where a document could not become tokens, and why
    """

    sums: Sums
    ids: dict[int, str] = field(default_factory=dict)
    documents: int = 0
    segments: int = 0
    tokens: int = 0
    wrong: tuple[tuple[str, str], ...] = ()
    pairs_cut: int = 0


def windows(documents: Iterable[Document]) -> Iterator[Window]:
    """The documents in windows."""
    held: list[Document] = []
    characters = first = number = 0
    for document in documents:
        held.append(document)
        characters += _length(document)
        if characters >= CHARACTERS or len(held) == DOCUMENTS:
            yield Window(number, first, tuple(held))
            number, first = number + 1, first + len(held)
            held, characters = [], 0
    if held:
        yield Window(number, first, tuple(held))


def _length(document: Document) -> int:
    texts = (document.text or "", document.words or (), document.pair or "")
    return sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in texts)


class WindowSurvey:
    """Measures windows with one model."""

    def __init__(
        self,
        segmenter: Segmenter,
        masses: Masses,
        measures: Sequence[Measure],
        *,
        size: tuple[int, int],
        batch_tokens: int,
        profile: bool,
        device: torch.device,
        equal_lengths: bool = False,
        layer_windows: Sequence[tuple[int, int] | None] = (),
    ) -> None:
        self.segmenter, self.masses, self.measures = segmenter, masses, measures
        self.size, self.batch_tokens = size, batch_tokens
        self.reach = segmenter.longest - 1 if profile else 0
        self.has_profile = profile
        self.device, self.equal_lengths = device, equal_lengths
        # Where rows that count depend on what a layer sees: those of gradients.
        self.layer_windows = tuple(layer_windows) or (None,) * size[0]

    def empty(self) -> Sums:
        """The sums of no document."""
        return Sums.empty(len(self.measures), *self.size, self.reach)

    def __call__(self, window: Window) -> Measured:
        """What its documents give."""
        with batch_threads(self.device) as threads:
            return self.begin(window, threads)()

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
                return Measured(self.empty(), wrong=reasons, pairs_cut=cut)
            sums = document_sums(
                held.rows[..., good], held.counts[..., good], held.profile, good + window.first
            )
            best = np.unique(sums.best_document)
            return Measured(
                sums,
                {int(n): window.documents[n - window.first].id for n in best if n >= 0},
                len(good),
                len(segments),
                int(n_tokens.sum()),
                reasons,
                cut,
            )

        return finish


@dataclass(frozen=True, eq=False)
class _OfBatch:
    """What a batch gave.

    counts   (measure, layer, segment): rows that count
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
        self.counts = np.zeros((n_measures, survey.size[0], n_documents))
        self.profile = survey.empty().profile

    def measured(self, batch: Batch) -> _OfBatch:
        """What the batch gives."""
        survey = self.survey
        of_window = {
            window: rows_that_count(survey.measures, batch.seen_by(window))
            for window in dict.fromkeys(survey.layer_windows)
        }
        layers: list[tuple[Floats, Floats | None]] = []

        def visit(layer: int, masses: RowMasses) -> None:
            rows, _ = of_window[survey.layer_windows[layer]]
            layers.append((row_sums(survey.measures, masses, rows), masses.profile))

        survey.masses(batch, visit)
        counts = np.stack([of_window[window][1] for window in survey.layer_windows], axis=1)
        return _OfBatch(batch, counts, layers)

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
