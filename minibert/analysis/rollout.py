"""Attention rollout: how the input positions mix, layer by layer, into each output position.

Each layer's probs, reduced over heads to one matrix P, count beside the residual stream:
A = (1 − residual)·P + residual·1, its rows brought to sum 1. Rollout is the product of the layers,
A_last ··· A_1·A_0. For one output position it is a row that passes through the layers from the
last to the first, r ← r·A, and no product of matrices is ever made.

Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3
(residual = 0.5 and the mean over heads are theirs).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minibert.analysis.arguments import check_choice, check_trace
from minibert.analysis.one_position import OfOnePosition
from minibert.analysis.positions import one_position_each
from minibert.doors import Figure, plots
from minibert.errors import TraceError
from minibert.quantities import Float
from minibert.trace.places import check_index
from minibert.trace.read import Trace
from minibert.trace.statistics import columns_of_probs, follows_from_vectors

__all__ = [
    "REDUCTIONS",
    "PositionRollout",
    "Rollout",
    "mixing",
    "result_dtype",
    "rollout",
    "rollout_of",
]

REDUCTIONS = ("mean", "max", "min")
# Numbers of probs that are held at a time: 16 MiB in float32.
_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class Rollout:
    """What share of each output position comes from each input position; rows sum to 1.

    Rows of padding stand for nothing.
    """

    values: Float[Tensor, "batch query key"]
    labels: tuple[tuple[str, ...], ...]
    """The tokens of each sentence."""

    def plot(self, path: str | Path | None = None, *, sentence: int = 0) -> Figure:
        """The matplotlib Figure of the shares: output positions down, input positions across.

        Saved where `path` is given, as SVG, PDF or PNG by its name. Raises TraceError for a
        sentence that is not there, and MinibertError without matplotlib.
        """
        return plots.token_map(
            self.values,
            self.labels,
            sentence=sentence,
            title="Attention rollout",
            unit="share of the query",
            path=path,
        )


class PositionRollout(OfOnePosition):
    """Where one output position comes from: shares of the positions that enter each layer.

    values[0] is over the embeddings and the result of rollout, values[l] over what enters layer l.
    """

    NAME, UNIT = "Rollout of", "share"


def rollout(
    trace: Trace, *, layer: int | None = None, reduce: str = "mean", residual: float | int = 0.5
) -> Rollout:
    """The rollout from the embeddings to what leaves a layer, by default the last one.

    `reduce` over heads is "mean", "max" or "min"; `residual` is the weight, 0 to 1, of what passes
    by attention. Memory: the result twice, and rows of one layer's probs at a time.
    Raises TraceError for another reduction or weight, and for a layer that is not there.
    """
    last = check_choices(trace, layer, reduce, residual)
    B, N = trace.allowed.batch, trace.allowed.position
    with torch.no_grad():
        values = torch.eye(N, dtype=result_dtype(trace), device=trace.embed.device).expand(B, N, N)
        for index in range(last + 1):
            rows = mixing(trace, index, reduce=reduce, residual=residual)
            values = torch.cat([part @ values for _, part in rows], dim=1)
    return Rollout(values, trace.tokens.strings)


def rollout_of(
    trace: Trace,
    position: int | Sequence[int],
    *,
    layer: int | None = None,
    reduce: str = "mean",
    residual: float | int = 0.5,
) -> PositionRollout:
    """The rollout of one output position, with what it is made of on the way down.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each.

    Memory is O(layer x position): the row of `rollout`, without the matrix; for "max" and "min",
    and where probs were kept or edited, rows of one layer's probs at a time. The options are those
    of `rollout`.
    Raises TraceError as `rollout` does, and for a position that a sentence does not have.
    """
    last = check_choices(trace, layer, reduce, residual)
    positions = one_position_each(trace, position)
    with torch.no_grad():
        row = trace.embed.new_zeros(trace.embed.shape[:2], dtype=result_dtype(trace))
        row[range(len(positions)), positions] = 1
        values: list[Tensor] = []
        for index in range(last, -1, -1):
            # The first row to be multiplied is 1 in one place: no other row of probs matters.
            wanted = slice(min(positions), max(positions) + 1) if index == last else slice(None)
            row = _step(trace, index, row, reduce=reduce, residual=residual, queries=wanted)
            values.append(row)
    return PositionRollout(positions, torch.stack(values[::-1]), trace.tokens.strings)


def _step(
    trace: Trace,
    layer: int,
    row: Float[Tensor, "batch key"],
    *,
    reduce: str,
    residual: float | int,
    queries: slice,
) -> Float[Tensor, "batch key"]:
    """row · A of a layer; `queries` hold all that is not 0 of the row."""
    if reduce == "mean" and follows_from_vectors(trace, layer):
        # A mean of rows that sum to 1 needs no division, so columns of probs are enough.
        return (1 - residual) * columns_of_probs(trace, layer, row).mean(1) + residual * row
    total = torch.zeros_like(row)
    for rows, part in mixing(trace, layer, reduce=reduce, residual=residual, queries=queries):
        total += (row[:, None, rows] @ part)[:, 0]
    return total


def mixing(
    trace: Trace,
    layer: int,
    *,
    reduce: str,
    residual: float | int,
    queries: slice = slice(None),
) -> Iterator[tuple[slice, Float[Tensor, "batch query key"]]]:
    """A layer's A = (1 − residual)·P + residual·1 in blocks of rows, each with its slice."""
    B, N, H = trace.allowed.batch, trace.allowed.position, trace.config.n_heads
    step = max(1, _NUMBERS // (B * H * N))
    first, stop, _ = queries.indices(N)
    for start in range(first, stop, step):
        rows = slice(start, min(start + step, stop))
        probs = trace[layer].window("probs", queries=rows).detach().to(result_dtype(trace))
        reduced = probs.mean(1) if reduce == "mean" else getattr(probs, f"a{reduce}")(1)
        mixed = (1 - residual) * reduced
        mixed.diagonal(start, -2, -1).add_(residual)
        yield rows, mixed / mixed.sum(-1, keepdim=True)


def check_choices(trace: Trace, layer: int | None, reduce: str, residual: float | int) -> int:
    """The last layer to count; TraceError for what `rollout` does not take."""
    check_trace(trace)
    check_choice(reduce, "reduce", REDUCTIONS)
    if not isinstance(residual, int | float) or not 0 <= residual <= 1:
        raise TraceError(f"residual={residual!r:.80}: expected a weight from 0 to 1.")
    if residual == 0 and reduce == "min":
        raise TraceError(
            "residual=0 with reduce='min' leaves rows without any weight where no key is looked at "
            "by all heads; give the residual some weight."
        )
    last = len(trace) - 1 if layer is None else check_index("layer", layer, trace.config.n_layers)
    return trace[last].layer


def result_dtype(trace: Trace) -> torch.dtype:
    """float64 for a trace in float64, otherwise float32."""
    return torch.promote_types(trace.embed.dtype, torch.float32)
