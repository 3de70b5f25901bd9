"""How differently two heads attend: Jensen-Shannon divergences between all heads of a model.

    JS(p, q) = H((p + q)/2) - (H(p) + H(q))/2   of two rows of attention, in nats, 0 to ln 2

summed over rows and documents, as mergeable sums. What is made of the distances (points in a
plane, clusters) is in head_map.py.

Source: Clark et al. 2019, "What Does BERT Look At?", section 6, and the authors' code: rows are
smoothed first, p <- 0.999·p + 0.001/n with n the number of keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.analysis.arguments import whole_number
from minibert.errors import AttentionError
from minibert.quantities import Float
from minibert.survey.document_rows import Rows, Texts, document_rows, generator_of, surveyable
from minibert.survey.live import Given

SMOOTHING = 0.001
# Numbers of a head that are worked on at once: all heads of bert-base then take 1.2 MB in float32,
# which stays in a core's own cache. Measured: 128 takes twice as long, more gains nothing.
_BLOCK = 2048
# Numbers of attention that are read from a trace at once: 32 MiB in float32.
_NUMBERS = 2**23


def jensen_shannon_sums(probs: Float[Tensor, "head query key"]) -> NDArray[np.float64]:
    """Σ over queries of JS between each two heads, in nats: (head, head), symmetric, 0 on diagonal.

    Computed in the dtype of `probs` and added up in float64: give float64 for the last digits.
    With s(a, b) = Σ (p_a + p_b)·ln(p_a + p_b), the sum is (s(a, a) + s(b, b))/4 - s(a, b)/2: one
    logarithm for each pair of heads, query and key.
    Raises AttentionError for empty probs.
    """
    if 0 in probs.shape:
        raise AttentionError(f"probs has shape {tuple(probs.shape)}; expected one row at least.")
    heads, _, keys = probs.shape
    smooth = probs.detach() * (1 - SMOOTHING) + SMOOTHING / keys
    flat = smooth.reshape(heads, -1)
    pairs = torch.zeros(heads, heads, dtype=torch.float64)
    for start in range(0, flat.shape[1], _BLOCK):
        block = flat[:, start : start + _BLOCK].contiguous()
        both, logs = torch.empty_like(block), torch.empty_like(block)
        for a in range(heads):
            total = torch.add(block[a:], block[a], out=both[a:])
            log = torch.log(total, out=logs[a:])
            pairs[a, a:] += torch.linalg.vecdot(total, log).cpu()
    alone = pairs.diagonal()
    upper = ((alone[:, None] + alone) / 4 - pairs / 2).triu(1)
    # Rounding may leave heads that are alike a little below 0.
    return (upper + upper.T).clamp_min(0.0).numpy()


class JensenShannonSums:
    """Sums over documents from which the distances between heads follow.

    `add` one document at a time; `merge` the sums of two parts of a corpus. Merged in the same
    order, the same documents give the same bits.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.shape = (n_layers, n_heads)
        size = (n_layers * n_heads,) * 2
        self.documents = 0
        self.rows = 0
        self.rows_squared = 0
        self.total: NDArray[np.float64] = np.zeros(size)
        self.squares: NDArray[np.float64] = np.zeros(size)
        self.products: NDArray[np.float64] = np.zeros(size)

    def add(self, divergence: NDArray[np.float64], rows: int) -> None:
        """Add one document: what `jensen_shannon_sums` gave for so many of its rows."""
        if divergence.shape != self.total.shape:
            raise AttentionError(
                f"The divergences have shape {divergence.shape}; expected {self.total.shape}, for "
                f"all heads of {self.shape[0]} layers of {self.shape[1]}."
            )
        self.documents += 1
        self.rows += rows
        self.rows_squared += rows**2
        self.total += divergence
        self.squares += divergence**2
        self.products += divergence * rows

    def distances(self) -> "HeadDistances":
        """The mean over all rows, and its standard error over documents."""
        if not self.rows:
            raise AttentionError("No row was added, so there are no distances between heads.")
        mean = self.total / self.rows
        # Σ (x - mean·rows)² over documents, of the sum x of a document and its number of rows.
        spread = self.squares - 2 * mean * self.products + mean**2 * self.rows_squared
        error = np.full_like(mean, np.nan)
        if self.documents > 1:
            inflation = self.documents / (self.documents - 1)
            error = np.sqrt(np.maximum(spread, 0.0) * inflation) / self.rows
        return HeadDistances(self.shape, mean, error, self.rows, self.documents)


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Jensen-Shannon divergences between the heads of a model.

    shape            layers, heads of a layer; head (layer, head) is entry layer·heads + head
    mean             (entry, entry): nats a row, the mean over all rows measured, 0 to ln 2
    standard_error   of the mean, from the spread between documents: of the ratio of two sums,
                     Cochran 1977, "Sampling Techniques", section 2.11; nan with one document
    rows, documents  how many were measured
    """

    shape: tuple[int, int]
    mean: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    rows: int
    documents: int

    def __repr__(self) -> str:
        layers, heads = self.shape
        return (
            f"HeadDistances({layers} layers x {heads} heads, {self.rows} rows of "
            f"{self.documents} documents)"
        )


def head_distances(
    model: Given,
    texts: Texts,
    *,
    rows_per_document: int | None = 16,
    stack: str | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> HeadDistances:
    """The distances between all heads of a model over a corpus.

    Of each document `rows_per_document` rows are drawn without repetition, by a hash of `seed` and
    the document's id, so that neither its neighbours nor the order matter; None takes all. No
    N x N is kept. `model`, `stack`, `texts` and `longest` are those of `patterns`.

    Raises TokenizationError for text that the model cannot read, TraceError for what is no model or
    no number of rows, and SurveyError for an attached model that cannot be surveyed.
    """
    subject = surveyable(model, stack, longest)
    if rows_per_document is not None:
        rows_per_document = whole_number(
            "rows_per_document", rows_per_document, AttentionError, least=1
        )
    sums = JensenShannonSums(subject.config.n_layers, subject.config.n_heads)
    for document in document_rows(subject, texts, longest=longest):
        rows = [(part, row) for part in document.parts for row in range(part.tokens.lengths[0])]
        total = np.zeros_like(sums.total)
        chosen = _drawn(document.id, rows, rows_per_document, seed)
        for part, of_part in groupby(chosen, key=itemgetter(0)):
            for probs in _blocks(part, [row for _, row in of_part], sums.shape):
                total += jensen_shannon_sums(probs)
        sums.add(total, len(chosen))
    return sums.distances()


def _drawn(
    name: str, rows: list[tuple[Rows, int]], wanted: int | None, seed: int
) -> list[tuple[Rows, int]]:
    if wanted is None or wanted >= len(rows):
        return rows
    places = generator_of(seed, name).choice(len(rows), wanted, replace=False)
    return [rows[place] for place in sorted(places.tolist())]


def _blocks(
    part: Rows, rows: list[int], shape: tuple[int, int]
) -> Iterator[Float[Tensor, "head row key"]]:
    """The chosen rows of all heads of all layers, some rows at a time."""
    layers, heads = shape
    size = max(1, _NUMBERS // (layers * heads * part.tokens.lengths[0]))
    for start in range(0, len(rows), size):
        some = torch.tensor(rows[start : start + size])
        yield torch.cat([part.probs(layer, some) for layer in range(layers)])
