"""How the attention of all layers together joins the input positions to each output position.

rollout, rollout_of
    Each layer's probs, reduced over heads to one matrix P, count beside the residual stream:
    A = (1 − residual)·P + residual·1, its rows brought to sum 1. Rollout is the product of the
    layers, A_last ··· A_1·A_0 (Abnar and Zuidema 2020, "Quantifying Attention Flow in
    Transformers", section 3; residual = 0.5 and the mean over heads are theirs).
attention_flow
    The layers as a graph: position i above a layer is joined to position j below it by an edge
    of capacity A[i, j]. The flow of a pair of positions is the largest that the edges between them
    can carry (the same paper, section 3; the maximum flow after Dinic 1970).
gradient_x_attention, relevance, relevance_of
    Gradient x attention is dy/dP ∘ P: to first order, what the number y loses without that weight
    of attention. Relevance takes of that what speaks for y, as a mean over heads,
    Ā = mean_h (dy/dP ∘ P)⁺, and lets it flow beside the residual stream: R ← R + Ā·R from the
    first layer to the last, starting from R = 1 (Chefer, Gur and Wolf 2021, "Generic
    attention-model explainability", equations 5 and 6). They read `trace.grad`: call
    `trace.backward(y)` first.

For one output position rollout and relevance are a row that passes through the layers from the last
to the first, r ← r·A, and no product of matrices is ever made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_choice,
    check_trace,
    one_position_each,
    real_tokens,
)
from minibert.errors import TraceError, check_index
from minibert.quantities import Float
from minibert.result import Result, sourced
from minibert.trace.read import Trace
from minibert.trace.statistics import (
    columns_of_probs,
    columns_of_relevance,
    follows_from_vectors,
)

REDUCTIONS = ("mean", "max", "min")
# Numbers of probs that are held at a time: 16 MiB in float32.
_NUMBERS = 2**22
# Seconds a position in 12 layers; the work grows with the cube of the tokens at least.
LARGEST = 64

Matrices = Sequence[np.ndarray[tuple[int, int], np.dtype[np.float64]]]
Rows = Iterator[tuple[slice, Float[Tensor, "batch query key"]]]
"""A matrix in blocks of rows, each with its slice."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OfPosition(Result[Tensor]):
    """A number for each position that enters the layers, (layer, batch, key), about one output.

    values[0] is over the embeddings, values[l] over what enters layer l. A flow has no axis of
    layers: it is over the embeddings.

    positions   the output position of each sentence
    """

    positions: tuple[int, ...]

    @property
    def shares(self) -> Float[Tensor, "*layer batch key"]:
        """The values of each sentence divided by their sum."""
        return self.values / self.values.sum(-1, keepdim=True)


@sourced
def rollout(
    trace: Trace, *, layer: int | None = None, reduce: str = "mean", residual: float | int = 0.5
) -> Result[Tensor]:
    """What share of each output position comes from each input position, (batch, query, key).

    From the embeddings to what leaves a layer, by default the last one. Rows sum to 1; rows of
    padding stand for nothing. `reduce` over heads is "mean", "max" or "min"; `residual` is the
    weight, 0 to 1, of what passes by attention. Memory: the result twice, and rows of one layer's
    probs at a time. Raises TraceError for another reduction or weight, and for a layer that is not
    there.
    """
    last = _check_choices(trace, layer, reduce, residual)

    def step(values: Tensor, index: int) -> Tensor:
        rows = mixing(trace, index, reduce=reduce, residual=residual)
        return torch.cat([part @ values for _, part in rows], dim=1)

    values = _all_positions(trace, range(last + 1), step)
    title, unit, tokens = "Attention rollout", "share of the query", trace.tokens.strings
    return Result(values, "batch query key", title=title, unit=unit, tokens=tokens)


@sourced
def rollout_of(
    trace: Trace,
    position: int | Sequence[int],
    *,
    layer: int | None = None,
    reduce: str = "mean",
    residual: float | int = 0.5,
) -> OfPosition:
    """The rollout of one output position, with what it is made of on the way down.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each.

    Memory is O(layer x position): the row of `rollout`, without the matrix; for "max" and "min",
    and where probs were kept or edited, rows of one layer's probs at a time. The options are those
    of `rollout`.
    Raises TraceError as `rollout` does, and for a position that a sentence does not have.
    """
    last = _check_choices(trace, layer, reduce, residual)

    def step(row: Tensor, index: int, queries: slice) -> Tensor:
        if reduce == "mean" and follows_from_vectors(trace, index):
            # A mean of rows that sum to 1 needs no division, so columns of probs are enough.
            return (1 - residual) * columns_of_probs(trace, index, row).mean(1) + residual * row
        return _times(row, mixing(trace, index, reduce=reduce, residual=residual, queries=queries))

    return _one_position(trace, position, last, step, "Attention rollout", "of", "share")


@sourced
def attention_flow(
    trace: Trace,
    position: int | Sequence[int],
    *,
    layer: int | None = None,
    reduce: str = "mean",
    residual: float | int = 0.5,
) -> OfPosition:
    """The maximum flow, 0 to 1, from one position of what leaves a layer to each embedding.

    The axes are (batch, key). `position` and the options are those of `rollout_of`; padding gets 0.
    Computed on the CPU, one maximum flow for each input position; `shares` are what the authors'
    code gives. The result is float64 for a trace in float64, otherwise float32.
    Raises TraceError as `rollout_of`, and for more than 64 tokens: take `rollout_of` for those.
    """
    last = _check_choices(trace, layer, reduce, residual)
    positions, lengths = one_position_each(trace, position), real_tokens(trace)
    N = trace.allowed.position
    if N > LARGEST:
        raise TraceError(
            f"Attention flow of {N} tokens is {N} maximum flows over {N} x {N} edges a layer; "
            f"expected at most {LARGEST} tokens. rollout_of answers for longer texts."
        )
    with torch.no_grad():
        layers = [_matrix(trace, index, reduce, residual) for index in range(last, -1, -1)]
    values = torch.zeros(len(lengths), N, dtype=torch.float64)
    for sentence, length in enumerate(lengths):
        matrices = [matrix[sentence, :length, :length] for matrix in layers]
        for key in range(length):
            values[sentence, key] = maximum_flow(matrices, positions[sentence], key)
    found = values.to(result_dtype(trace))
    return _about(trace, found, positions, "Attention flow", "from", "maximum flow")


def _matrix(
    trace: Trace, layer: int, reduce: str, residual: float | int
) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    rows = mixing(trace, layer, reduce=reduce, residual=residual)
    return torch.cat([part for _, part in rows], dim=1).double().cpu().numpy()


@sourced
def gradient_x_attention(
    trace: Trace, *, layers: int | Sequence[int] | None = None
) -> Result[Tensor]:
    """dy/dP ∘ P for every head of these layers, by default of all; 0 where masked.

    The axes are (layer, batch, head, query, key). Of a row the sum over keys is dz·z. Memory: the
    result, and one layer twice.
    Raises TraceError for a layer that is not there, and before `trace.backward`.
    """
    check_trace(trace)
    chosen = _layers(trace, layers)
    with torch.no_grad():
        values = torch.stack([trace.grad[layer].probs * trace[layer].probs for layer in chosen])
    return Result(
        values,
        "layer batch head query key",
        title="Gradient x attention",
        unit="dy/dP ∘ P",
        labels={} if layers is None else {"layer": chosen},
        tokens=trace.tokens.strings,
        signed=True,
    )


@sourced
def relevance(trace: Trace) -> Result[Tensor]:
    """Chefer's relevance of every input position to every output position: R ← R + Ā·R.

    The axes are (batch, query, key); numbers are at least 0, and at least 1 for a position itself,
    so a picture's colours end at the largest of another position. A row is meant for the position
    whose output y was made of; that of [CLS] for a classifier. Memory: the result twice, and rows
    of one layer's probs at a time. Raises TraceError before `trace.backward`.
    """
    check_trace(trace)

    def step(values: Tensor, layer: int) -> Tensor:
        rows = _positive_parts(trace, layer)
        return values + torch.cat([part @ values for _, part in rows], dim=1)

    values = _all_positions(trace, range(len(trace)), step)
    others = [
        values[n, :N, :N] - values[n, :N, :N].diagonal().diag()
        for n, N in enumerate(real_tokens(trace))
    ]
    return Result(
        values,
        "batch query key",
        title="Relevance",
        unit="relevance of the key to the query",
        tokens=trace.tokens.strings,
        limits=(0.0, max(float(each.max()) for each in others) or 1.0),
    )


@sourced
def relevance_of(trace: Trace, position: int | Sequence[int]) -> OfPosition:
    """Chefer's relevance to one output position, with what it is made of on the way down.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each. Memory is O(layer x position); where y was made of probs, or probs
    were kept or edited, rows of one layer's probs at a time.
    Raises TraceError before `trace.backward`, and for a position that a sentence does not have.
    """
    check_trace(trace)

    def step(row: Tensor, layer: int, queries: slice) -> Tensor:
        columns = columns_of_relevance(trace, layer, row)
        if columns is not None:
            return row + columns.mean(1)
        return row + _times(row, _positive_parts(trace, layer, queries))

    return _one_position(trace, position, len(trace) - 1, step, "Relevance", "to", "relevance")


def _all_positions(
    trace: Trace, layers: range, step: Callable[[Tensor, int], Tensor]
) -> Float[Tensor, "batch query key"]:
    """The unit matrix of each sentence after a step through each layer."""
    B, N = trace.allowed.batch, trace.allowed.position
    with torch.no_grad():
        values = torch.eye(N, dtype=result_dtype(trace), device=trace.embed.device).expand(B, N, N)
        for layer in layers:
            values = step(values, layer)
    return values


def _one_position(
    trace: Trace,
    position: int | Sequence[int],
    last: int,
    step: Callable[[Tensor, int, slice], Tensor],
    *said: str,
) -> OfPosition:
    """The row that is 1 at one position, after a step through each layer from the last one down.

    A step is given the queries that hold all that is not 0 of the row.
    """
    positions = one_position_each(trace, position)
    with torch.no_grad():
        row = trace.embed.new_zeros(trace.embed.shape[:2], dtype=result_dtype(trace))
        row[range(len(positions)), positions] = 1
        values: list[Tensor] = []
        # At the start the row is 1 in one place: no other row of probs matters.
        queries = slice(min(positions), max(positions) + 1)
        for layer in range(last, -1, -1):
            row, queries = step(row, layer, queries), slice(None)
            values.append(row)
    return _about(trace, torch.stack(values[::-1]), positions, *said)


def _about(
    trace: Trace, values: Tensor, positions: tuple[int, ...], title: str, joined: str, unit: str
) -> OfPosition:
    """The result; "Relevance" is joined to each position by "to"."""
    tokens = trace.tokens.strings
    words = [
        f"{joined} “{strings[place].strip()}” at position {place}"
        for strings, place in zip(tokens, positions, strict=True)
    ]
    names = "layer batch key" if values.dim() == 3 else "batch key"
    return OfPosition(values, names, title, unit, {"batch": words}, tokens, positions=positions)


def _times(row: Float[Tensor, "batch key"], matrix: Rows) -> Float[Tensor, "batch key"]:
    """row · matrix, a block of rows at a time."""
    total = torch.zeros_like(row)
    for rows, part in matrix:
        total += (row[:, None, rows] @ part)[:, 0]
    return total


def mixing(
    trace: Trace,
    layer: int,
    *,
    reduce: str,
    residual: float | int,
    queries: slice = slice(None),
) -> Rows:
    """A layer's A = (1 − residual)·P + residual·1."""
    for rows in _blocks(trace, queries):
        probs = trace[layer].window("probs", queries=rows).detach().to(result_dtype(trace))
        reduced = probs.mean(1) if reduce == "mean" else getattr(probs, f"a{reduce}")(1)
        mixed = (1 - residual) * reduced
        mixed.diagonal(rows.start, -2, -1).add_(residual)
        yield rows, mixed / mixed.sum(-1, keepdim=True)


def _positive_parts(trace: Trace, layer: int, queries: slice = slice(None)) -> Rows:
    """A layer's Ā."""
    for rows in _blocks(trace, queries):
        slopes = trace.grad[layer].window("probs", queries=rows)
        probs = trace[layer].window("probs", queries=rows)
        yield rows, (slopes * probs).clamp_(min=0).to(result_dtype(trace)).mean(1)


def _blocks(trace: Trace, queries: slice) -> Iterator[slice]:
    """The rows of probs in pieces that are held at a time."""
    B, N, H = trace.allowed.batch, trace.allowed.position, trace.config.n_heads
    step = max(1, _NUMBERS // (B * H * N))
    first, stop, _ = queries.indices(N)
    for start in range(first, stop, step):
        yield slice(start, min(start + step, stop))


def _check_choices(trace: Trace, layer: int | None, reduce: str, residual: float | int) -> int:
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


def _layers(trace: Trace, layers: int | Sequence[int] | None) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(len(trace)))
    given = layers if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    if not given:
        raise TraceError("layers is empty; expected some layers, or None for all.")
    return tuple(check_index("layer", layer, len(trace)) for layer in given)


def maximum_flow(matrices: Matrices, source: int, sink: int) -> float:
    """The largest flow from a position above the first matrix to one below the last.

    matrices[l][i, j] is the capacity from position i above layer l to position j below it.
    """
    if len(matrices) == 1:
        return float(matrices[0][source, sink])
    network = _Network(matrices, source, sink)
    total = 0.0
    while network.measure_distances():
        while pushed := network.push():
            total += pushed
    return total


class _Network:
    """What each edge can still carry, in both directions. A node is (matrices above it, position).

    left[node] maps each neighbour to what can still go there.
    """

    def __init__(self, matrices: Matrices, source: int, sink: int) -> None:
        size, depth = len(matrices[0]), len(matrices)
        self.source, self.sink = source, depth * size + sink
        self.left: list[dict[int, float]] = [{} for _ in range((depth + 1) * size)]
        for level, matrix in enumerate(matrices):
            for above, row in enumerate(matrix.tolist()):
                # Nothing else is above the first matrix or below the last: dead ends.
                if level == 0 and above != source:
                    continue
                for below, capacity in enumerate(row):
                    if capacity > 0 and (level < depth - 1 or below == sink):
                        upper, lower = level * size + above, (level + 1) * size + below
                        self.left[upper][lower] = capacity
                        self.left[lower][upper] = 0.0
        self.neighbours = [list(edges) for edges in self.left]

    def measure_distances(self) -> bool:
        """Count the steps to the sink from every node; False where the source cannot reach it."""
        # From the sink up, against the edges: neighbours are mutual.
        self.distance = [-1] * len(self.left)
        self.distance[self.sink] = 0
        reached = [self.sink]
        for node in reached:
            for neighbour in self.left[node]:
                if self.distance[neighbour] < 0 and self.left[neighbour][node] > 0:
                    self.distance[neighbour] = self.distance[node] + 1
                    reached.append(neighbour)
        # Edges that were tried in vain are not tried again until the distances change.
        self.tried = [0] * len(self.left)
        return self.distance[self.source] >= 0

    def push(self) -> float:
        """Send what fits along one shortest path; 0 when no such path is left."""
        path = self._shortest_path()
        if not path:
            return 0.0
        steps = list(pairwise(path))
        amount = min(self.left[a][b] for a, b in steps)
        for a, b in steps:
            self.left[a][b] -= amount
            self.left[b][a] += amount
        return amount

    def _shortest_path(self) -> list[int]:
        path = [self.source]
        while path and path[-1] != self.sink:
            step = self._step_from(path[-1])
            if step is not None:
                path.append(step)
                continue
            path.pop()
            if path:
                self.tried[path[-1]] += 1
        return path

    def _step_from(self, node: int) -> int | None:
        """The next neighbour that is one step nearer to the sink and can be reached."""
        neighbours, left = self.neighbours[node], self.left[node]
        for number in range(self.tried[node], len(neighbours)):
            neighbour = neighbours[number]
            if self.distance[neighbour] == self.distance[node] - 1 and left[neighbour] > 0:
                self.tried[node] = number
                return neighbour
        return None
