"""Relevance: which attention, and through it which input positions, a number depends on.

Gradient x attention is dy/dP ∘ P: to first order, what the number y loses without that weight of
attention. Chefer's relevance takes of that what speaks for y, as a mean over heads,
Ā = mean_h (dy/dP ∘ P)⁺, and lets it flow beside the residual stream: R ← R + Ā·R from the first
layer to the last, starting from R = 1. For one output position that is a row passing through the
layers from the last to the first, r ← r + r·Ā, and no product of matrices is ever made.

All of them read `trace.grad`: call `trace.backward(y)` first.

Source: Chefer, Gur and Wolf 2021, "Generic attention-model explainability", equations 5 and 6.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace
from minibert.analysis.one_position import OfOnePosition
from minibert.analysis.positions import one_position_each
from minibert.analysis.rollout import result_dtype
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.places import check_index
from minibert.trace.read import Trace
from minibert.trace.statistics import columns_of_relevance

__all__ = [
    "AttentionRelevance",
    "PositionRelevance",
    "Relevance",
    "gradient_x_attention",
    "relevance",
    "relevance_of",
]

# Numbers of probs that are held at a time: 16 MiB in float32.
_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class AttentionRelevance:
    """dy/dP ∘ P of each weight of attention, in some layers."""

    layers: tuple[int, ...]
    values: Float[Tensor, "layer batch head query key"]
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""

    def plot(
        self,
        path: str | Path | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        sentence: int = 0,
    ) -> Figure:
        """The matplotlib Figure of one head, queries down and keys across, or of all not chosen.

        `layer` is the layer's own number. Saved where `path` is given, as SVG, PDF or PNG by its
        name. Raises TraceError for a layer, head or sentence that is not there, and MinibertError
        without matplotlib.
        """
        return plots.matrix_of_head(
            self.values,
            self.layers,
            self.labels,
            layer=layer,
            head=head,
            sentence=sentence,
            name="Gradient x attention",
            unit="dy/dP ∘ P",
            signed=True,
            path=path,
        )

    def __repr__(self) -> str:
        layer, batch, head, query, _ = self.values.shape
        return (
            f"AttentionRelevance({layer} layers x {head} heads, batch {batch}, {query} positions)"
        )


@dataclass(frozen=True, eq=False)
class Relevance:
    """How relevant each input position is to each output position; at least 0, 1 for itself."""

    values: Float[Tensor, "batch query key"]
    labels: tuple[tuple[str, ...], ...]

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of the relevance: output positions down, input positions across.

        Colours end at the largest relevance of another position: that to itself is at least 1.
        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        row = check_index("sentence", sentence, len(self.labels))
        others = self.values[row] - self.values[row].diagonal().diag()
        largest = float(others.max()) or 1.0
        return plots.token_map(
            self.values,
            self.labels,
            sentence=sentence,
            title="Relevance",
            unit="relevance of the key to the query",
            limits=(0.0, largest),
            path=path,
        )

    def __repr__(self) -> str:
        return f"Relevance(batch {self.values.shape[0]}, {self.values.shape[1]} positions)"


class PositionRelevance(OfOnePosition):
    """How relevant the positions that enter each layer are to one output position.

    values[0] is over the embeddings and the result of `relevance`, values[l] over what enters
    layer l.
    """

    NAME, UNIT = "Relevance to", "relevance"


def gradient_x_attention(
    trace: Trace, *, layers: int | Sequence[int] | None = None
) -> AttentionRelevance:
    """dy/dP ∘ P for every head of these layers, by default of all; 0 where masked.

    Of a row the sum over keys is dz·z. Memory: the result, and one layer twice.
    Raises TraceError for a layer that is not there, and before `trace.backward`.
    """
    check_trace(trace)
    chosen = _layers(trace, layers)
    with torch.no_grad():
        values = torch.stack([trace.grad[layer].probs * trace[layer].probs for layer in chosen])
    return AttentionRelevance(chosen, values, trace.tokens.strings)


def relevance(trace: Trace) -> Relevance:
    """Chefer's relevance of every input position to every output position: R ← R + Ā·R.

    A row is meant for the position whose output y was made of; that of [CLS] for a classifier.
    Memory: the result twice, and rows of one layer's probs at a time.
    Raises TraceError before `trace.backward`.
    """
    check_trace(trace)
    B, N = trace.allowed.batch, trace.allowed.position
    with torch.no_grad():
        values = torch.eye(N, dtype=result_dtype(trace), device=trace.embed.device).expand(B, N, N)
        for layer in range(len(trace)):
            rows = _positive_parts(trace, layer)
            values = values + torch.cat([part @ values for _, part in rows], dim=1)
    return Relevance(values, trace.tokens.strings)


def relevance_of(trace: Trace, position: int | Sequence[int]) -> PositionRelevance:
    """Chefer's relevance to one output position, with what it is made of on the way down.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each. Memory is O(layer x position); where y was made of probs, or probs
    were kept or edited, rows of one layer's probs at a time.
    Raises TraceError before `trace.backward`, and for a position that a sentence does not have.
    """
    check_trace(trace)
    positions = one_position_each(trace, position)
    with torch.no_grad():
        row = trace.embed.new_zeros(trace.embed.shape[:2], dtype=result_dtype(trace))
        row[range(len(positions)), positions] = 1
        values: list[Tensor] = []
        # At the start the row is 1 in one place: no other row of probs matters.
        queries = slice(min(positions), max(positions) + 1)
        for layer in reversed(range(len(trace))):
            row, queries = row + _flow(trace, layer, row, queries), slice(None)
            values.append(row)
    return PositionRelevance(positions, torch.stack(values[::-1]), trace.tokens.strings)


def _flow(
    trace: Trace, layer: int, row: Float[Tensor, "batch key"], queries: slice
) -> Float[Tensor, "batch key"]:
    """row · Ā of a layer; `queries` hold all that is not 0 of the row."""
    columns = columns_of_relevance(trace, layer, row)
    if columns is not None:
        return columns.mean(1)
    total = torch.zeros_like(row)
    for rows, part in _positive_parts(trace, layer, queries):
        total += (row[:, None, rows] @ part)[:, 0]
    return total


def _positive_parts(
    trace: Trace, layer: int, queries: slice = slice(None)
) -> Iterator[tuple[slice, Float[Tensor, "batch query key"]]]:
    """A layer's Ā in blocks of rows, each with its slice."""
    B, N, H = trace.allowed.batch, trace.allowed.position, trace.config.n_heads
    step = max(1, _NUMBERS // (B * H * N))
    first, stop, _ = queries.indices(N)
    for start in range(first, stop, step):
        rows = slice(start, min(start + step, stop))
        slopes = trace.grad[layer].window("probs", queries=rows)
        probs = trace[layer].window("probs", queries=rows)
        yield rows, (slopes * probs).clamp_(min=0).to(result_dtype(trace)).mean(1)


def _layers(trace: Trace, layers: int | Sequence[int] | None) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(len(trace)))
    given = layers if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    if not given:
        raise TraceError("layers is empty; expected some layers, or None for all.")
    return tuple(check_index("layer", layer, len(trace)) for layer in given)
