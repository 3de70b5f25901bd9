"""How many of the d_head dimensions carry a head's query·key.

Vig looks at query * key, element by element, and sees a few dimensions decide where a delimiter or
bag-of-words head looks, and many where a next-token head does. Here it is a number. Softmax does
not see what all scores of a row have in common, so what counts is how scores differ between keys,
and the variance of a row's scores over the keys it sees is a sum over dimensions:

    Var_j(s_ij) = Σ_d c_id,   c_id = Cov_j(scale·q_id·k_jd, s_ij)

c_id is what dimension d contributes. How many dimensions there are is asked in two ways: the
participation ratio (Σ|c|)²/Σc² (m if m dimensions contribute alike), and the fewest dimensions that
make up 90 % of the variance.

A head's dimensions can be rotated, query and key alike, without a change of any score, and then
other dimensions carry it. So these numbers are about the dimensions as the model was trained. In a
rotary model they are those of query and key as they meet, each turned by its own position. Scores
are those before a soft cap.

Sources: Vig 2019, "Deconstructing BERT, part 2"; participation ratio: Bell and Dean 1970.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.errors import AttentionError
from minibert.quantities import Float
from minibert.survey.document_rows import Rows, Texts, document_rows, surveyable
from minibert.survey.live import Given
from minibert.survey.pattern_table import Seen
from minibert.survey.patterns import HeadPatterns

SHARE = 0.9
# Scores that are computed at once: 32 MiB in float64.
_NUMBERS = 2**22

Values = NDArray[np.float64]


def contributions(
    query: Float[Tensor, "head query d_head"],
    key: Float[Tensor, "head key d_head"],
    *,
    scale: float,
    first: int | None = None,
    window: Seen = None,
) -> Float[Tensor, "head query d_head"]:
    """c_id: what each dimension contributes to the variance of a row's scores over keys.

    The variance is that of the keys alone, divided by their number. For a causal model `first` is
    the position of the first of these queries, and keys behind a query do not count; by default
    every query sees every key. With `window`, how many keys before and after its own position a
    query sees at most, or True for those that each query of the text sees, `first` is needed as
    well. A contribution is negative where a dimension
    works against the others. Computed in float64.
    """
    query, key = query.double() * scale, key.double()
    scores = query @ key.transpose(1, 2)
    seen = torch.ones(scores.shape[1:], dtype=torch.float64, device=scores.device)
    if isinstance(window, Tensor) and first is not None:
        seen = window[first : first + len(seen)].to(seen)
    elif isinstance(window, tuple) and first is not None:
        before, after = window
        seen = seen.tril(first + after).triu(first - before)
    elif first is not None:
        seen = seen.tril(first)
    count = seen.sum(1, keepdim=True)
    scores = scores * seen
    # Cov(k, s) = mean(k·s) - mean(k)·mean(s), over the keys that a query sees.
    together = scores @ key / count
    apart = (seen @ key / count) * (scores.sum(-1, keepdim=True) / count)
    return query * (together - apart)


class QueryKeySums:
    """Sums over rows of documents from which `QueryKeyDimensions` follow."""

    def __init__(self, n_layers: int, n_heads: int, d_head: int) -> None:
        self.documents = 0
        self.rows: NDArray[np.int64] = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.total: Values = np.zeros((n_layers, n_heads, d_head))
        self.participation: Values = np.zeros((n_layers, n_heads))

    def add(self, layer: int, found: Float[Tensor, "head query d_head"]) -> None:
        """Add the contributions in some rows of one layer; rows without any variance are none."""
        rows = found.cpu().numpy()
        self.total[layer] += rows.sum(1)
        ratio = _participation(rows)
        self.rows[layer] += (~np.isnan(ratio)).sum(1)
        self.participation[layer] += np.nansum(ratio, axis=1)

    def result(self) -> "QueryKeyDimensions":
        """The numbers of dimensions."""
        if not self.documents:
            raise AttentionError("No document was added, so no dimension carries anything.")
        variance = self.total.sum(-1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            return QueryKeyDimensions(
                shares=self.total / variance,
                participation=_participation(self.total),
                participation_of_rows=self.participation / self.rows,
                count=_count(self.total, variance),
                rows=self.rows,
                documents=self.documents,
            )


@dataclass(frozen=True, eq=False)
class QueryKeyDimensions:
    """How many dimensions carry query·key; nan, or a count of 0, for heads whose scores are flat.

    shares                 (layer, head, d_head): of the variance of scores over keys, summed over
                           rows and documents; they sum to 1
    participation          (layer, head): participation ratio of these: how many dimensions carry
                           the head over all rows
    participation_of_rows  (layer, head): the mean over rows of each row's own: how many carry one
                           row, which may be others in the next
    count                  (layer, head): the fewest dimensions with 90 % of the variance
    rows, documents        how many were measured, rows for each head
    """

    shares: Values
    participation: Values
    participation_of_rows: Values
    count: NDArray[np.int64]
    rows: NDArray[np.int64]
    documents: int

    @property
    def d_head(self) -> int:
        """The dimensions there are."""
        return int(self.shares.shape[-1])

    def to_dict(self) -> dict[str, object]:
        """For JSON: one entry a head; None where nan."""
        n_layers, n_heads, d_head = self.shares.shape
        tables = {
            name: getattr(self, name)
            for name in ("participation", "participation_of_rows", "count")
        }
        heads = [
            {
                "layer": layer,
                "head": head,
                **{
                    name: None
                    if np.isnan(table[layer, head])
                    else round(float(table[layer, head]), 6)
                    for name, table in tables.items()
                },
            }
            for layer in range(n_layers)
            for head in range(n_heads)
        ]
        return {"d_head": d_head, "share": SHARE, "documents": self.documents, "heads": heads}


def query_key_dimensions(
    model: Given, texts: Texts, *, stack: str | None = None, longest: int | None = None
) -> QueryKeyDimensions:
    """How many dimensions carry each head's query·key over a corpus, all rows of all documents.

    `model`, `texts`, `stack` and `longest` are those of `minibert.survey.patterns.patterns`. Raises
    TokenizationError for what the model cannot read, and SurveyError for an attached model that
    cannot be surveyed, or whose heads have several widths or scales.
    """
    subject = surveyable(model, stack, longest)
    causal, size = subject.config.causal, (subject.config.n_layers, subject.config.n_heads)
    sums: QueryKeySums | None = None
    for document in document_rows(subject, texts, longest=longest):
        for part in document.parts:
            for seen, layers in part.seen():
                for layer in layers:
                    for found in _of_layer(part, layer, seen, causal=causal):
                        sums = QueryKeySums(*size, found.shape[-1]) if sums is None else sums
                        sums.add(layer, found)
        if sums is not None:
            sums.documents += 1
    if sums is None:
        raise AttentionError("There is no document; give the text of one at least.")
    return sums.result()


def _of_layer(
    part: Rows, layer: int, seen: Seen, *, causal: bool
) -> Iterator[Float[Tensor, "head query d_head"]]:
    """The contributions in one layer, some rows at a time."""
    query, key, scale = part.vectors(layer)
    size = max(1, _NUMBERS // (len(query) * key.shape[1]))
    for start in range(0, query.shape[1], size):
        yield contributions(
            query[:, start : start + size],
            key,
            scale=scale,
            first=start if causal or seen is not None else None,
            window=seen,
        )


def dimensions_by_pattern(
    dimensions: QueryKeyDimensions, found: HeadPatterns
) -> Mapping[str, tuple[int, float, float]]:
    """For each pattern that names heads: how many, and their mean participation and row's own.

    Vig's claim is that these are small for delimiter and bag_of_words and large for next.
    """
    table: dict[str, tuple[int, float, float]] = {}
    places = found.named()
    for name in found.score:
        heads = [place for place, names in places.items() if name in names]
        if heads:
            layer, head = np.array(heads).T
            table[name] = (
                len(heads),
                float(np.nanmean(dimensions.participation[layer, head])),
                float(np.nanmean(dimensions.participation_of_rows[layer, head])),
            )
    return table


def _participation(values: Values) -> Values:
    """(Σ|c|)²/Σc² along the last axis; nan where nothing varies."""
    size = np.abs(values)
    # By the largest first, for contributions so small that their squares are 0.
    largest = size.max(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        size = size / largest
        return np.asarray(size.sum(-1) ** 2 / (size**2).sum(-1))


def _count(values: Values, variance: Values) -> NDArray[np.int64]:
    """The fewest values whose sum is 90 % of all; 0 where there is no variance."""
    reached = np.sort(values, axis=-1)[..., ::-1].cumsum(-1) >= SHARE * variance
    return np.where(variance[..., 0] > 0, reached.argmax(-1) + 1, 0)
