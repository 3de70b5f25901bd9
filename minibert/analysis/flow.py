"""What attention moves, in one layer and over all layers together.

head_norms, summed_norms
    Attention weighted by what it moves: ‖α·f(x)‖ instead of α. A head sees position j as the vector
    f(x_j) = (x_j·W_V + b_V)·W_O and adds α_ij·f(x_j) to position i, so a large weight on a short
    vector moves little (Kobayashi et al. 2020, "Attention is Not Only a Weight").
rollout_of
    The mean of each layer's probs over its heads, P, counts beside the residual stream:
    A = (1 − residual)·P + residual·1, its rows brought to sum 1. Rollout is the product of the
    layers, A_last ··· A_1·A_0 (Abnar and Zuidema 2020, "Quantifying Attention Flow in
    Transformers", section 3; residual = 0.5 and the mean over heads are theirs).
relevance_of
    Gradient x attention, dy/dP ∘ P, is to first order what the number y loses without that weight
    of attention. Relevance takes of it what speaks for y, as a mean over heads,
    Ā = mean_h (dy/dP ∘ P)⁺, and lets it flow beside the residual stream: R ← R + Ā·R from the
    first layer to the last, starting from R = 1 (Chefer, Gur and Wolf 2021, "Generic
    attention-model explainability", equations 5 and 6). They read `trace.grad`: call
    `trace.backward(y)` first.

For one output position the last two are a row that passes through the layers from the last to the
first, r ← r·A, and no product of matrices is ever made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace, one_position_each
from minibert.analysis.rows import wide
from minibert.analysis.stream import layer_of
from minibert.errors import TraceError, check_index
from minibert.quantities import Float
from minibert.result import Result, sourced
from minibert.trace.layer_view import LayerTrace
from minibert.trace.read import Trace

# Numbers of probs that are held at a time: 16 MiB in float32.
_NUMBERS = 2**22
Rows = Iterator[tuple[slice, Float[Tensor, "batch query key"]]]
"""A matrix in blocks of rows, each with its slice."""


# Keys whose products with all queries are held at once.
_KEYS = 64


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadNorms(Result[Tensor]):
    """What each head of a layer moves: ‖α_ij·f(x_j)‖ = α_ij·‖f(x_j)‖, (batch, head, query, key).

    vectors   ‖f(x_j)‖: how long the vector is that a position offers
    """

    vectors: Float[Tensor, "batch head key"]


@sourced
def head_norms(trace: Trace, layer: int) -> HeadNorms:
    """The norms of a layer head by head, ‖α_ij·f(x_j)‖; rows and columns of padding are void.

    No vector of width d_model is made for a position: with W_Oᵀ = Q·R, ‖f(x)‖ is the norm of
    R·value, d_head numbers. Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        corner = torch.linalg.qr(_output(at).mT, mode="r")[1]
        vectors = torch.linalg.vector_norm(_values(at) @ corner.mT, dim=-1)
        norms = wide(at.probs) * vectors[:, :, None]
    title, tokens = f"Norms ‖α·f(x)‖, layer {at.layer}", trace.tokens.strings
    return HeadNorms(
        norms, "batch head query key", title=title, unit="norm", tokens=tokens, vectors=vectors
    )


@sourced
def summed_norms(trace: Trace, layer: int) -> Result[Tensor]:
    """The norms of a layer over all heads at once, ‖Σ α_ij·f(x_j)‖ over heads: (batch, query, key).

    With the d_model x head matrix of all f(x_j) at one j, Q_j·R_j, it is the norm of R_j·α, head
    numbers. Memory: head x position vectors of width d_model, and the layer's probs.
    Raises TraceError for a layer that was not computed.
    """
    check_trace(trace)
    at = trace[layer]
    with torch.no_grad():
        moved = torch.einsum("bhkd,hdm->bkhm", _values(at), _output(at))
        norms = _norms_of_sums(wide(at.probs), moved)
    title, tokens = f"Norms ‖Σ α·f(x)‖, layer {at.layer}", trace.tokens.strings
    return Result(norms, "batch query key", title=title, unit="norm", tokens=tokens)


def _norms_of_sums(
    probs: Float[Tensor, "batch head query key"], vectors: Float[Tensor, "batch key head d_model"]
) -> Float[Tensor, "batch query key"]:
    """‖Σ over heads of probs·vector‖ of each pair."""
    corners = torch.linalg.qr(vectors.mT, mode="r")[1]  # batch key rank head
    norms = torch.empty_like(probs[:, 0].mT)
    for here, corner, found in zip(probs, corners, norms, strict=True):
        by_key = torch.empty_like(here.mT, memory_format=torch.contiguous_format)
        for target, source in zip(by_key, here, strict=True):
            # A matrix at a time: torch transposes two axes in blocks, and three number by number.
            target.copy_(source.mT)
        whole = by_key.transpose(0, 1)  # key head query
        for first in range(0, len(corner), _KEYS):
            part = slice(first, first + _KEYS)
            torch.sum((corner[part] @ whole[part]).square_(), 1, out=found[part])
    return norms.sqrt_().mT


def _values(at: LayerTrace) -> Float[Tensor, "batch head key d_head"]:
    """The value that each head reads."""
    return wide(at.value).repeat_interleave(layer_of(at).attention.group, 1)


def _output(at: LayerTrace) -> Float[Tensor, "head d_head d_model"]:
    return wide(layer_of(at).attention.W_O)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OfPosition(Result[Tensor]):
    """A number for each position that enters the layers, (layer, batch, key), about one output.

    values[0] is over the embeddings, values[l] over what enters layer l.

    positions   the output position of each sentence
    """

    positions: tuple[int, ...]

    @property
    def shares(self) -> Float[Tensor, "*layer batch key"]:
        """The values of each sentence divided by their sum."""
        return self.values / self.values.sum(-1, keepdim=True)


@sourced
def rollout_of(
    trace: Trace,
    position: int | Sequence[int],
    *,
    layer: int | None = None,
    residual: float | int = 0.5,
) -> OfPosition:
    """What share of one output position comes from each input position, layer by layer.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each.

    What is shared out goes from the embeddings to what leaves `layer`, by default the last one.
    `residual` is the weight, 0 to 1, of what passes by attention. Memory is O(layer x position) and
    rows of one layer's probs at a time.

    Raises TraceError for another weight, and for a layer or a position that is not there.
    """
    check_trace(trace)
    if not isinstance(residual, int | float) or not 0 <= residual <= 1:
        raise TraceError(f"residual={residual!r:.80}: expected a weight from 0 to 1.")
    last = len(trace) - 1 if layer is None else check_index("layer", layer, trace.config.n_layers)
    last = trace[last].layer

    def step(row: Tensor, index: int, queries: slice) -> Tensor:
        return _times(row, mixing(trace, index, residual, queries))

    return _one_position(trace, position, last, step, "Attention rollout", "of", "share")


@sourced
def relevance_of(trace: Trace, position: int | Sequence[int]) -> OfPosition:
    """Chefer's relevance to one output position, with what it is made of on the way down.

    `position` is counted in each sentence, -1 for its last token: one for all sentences, or a
    sequence of one for each. Memory is O(layer x position) and rows of one layer's probs at a time.
    Raises TraceError before `trace.backward`, and for a position that a sentence does not have.
    """
    check_trace(trace)

    def step(row: Tensor, layer: int, queries: slice) -> Tensor:
        return row + _times(row, _positive_parts(trace, layer, queries))

    return _one_position(trace, position, len(trace) - 1, step, "Relevance", "to", "relevance")


def _one_position(
    trace: Trace,
    position: int | Sequence[int],
    last: int,
    step: Callable[[Tensor, int, slice], Tensor],
    *said: str,
) -> OfPosition:
    """The row that is 1 at one position, after a step through each layer from the last one down.

    A step is given the queries that hold all that is not 0 of the row. `said` is the title, the
    word that joins it to the position, and the unit.
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
    title, joined, unit = said
    tokens = trace.tokens.strings
    words = [
        f"{joined} “{strings[place].strip()}” at position {place}"
        for strings, place in zip(tokens, positions, strict=True)
    ]
    names, labels = "layer batch key", {"batch": words}
    found = torch.stack(values[::-1])
    return OfPosition(found, names, title, unit, labels, tokens, positions=positions)


def _times(row: Float[Tensor, "batch key"], matrix: Rows) -> Float[Tensor, "batch key"]:
    """row · matrix, a block of rows at a time."""
    total = torch.zeros_like(row)
    for rows, part in matrix:
        total += (row[:, None, rows] @ part)[:, 0]
    return total


def mixing(trace: Trace, layer: int, residual: float | int, queries: slice = slice(None)) -> Rows:
    """A layer's A = (1 − residual)·P + residual·1."""
    for rows in _blocks(trace, queries):
        probs = trace[layer].window("probs", queries=rows).detach().to(result_dtype(trace))
        mixed = (1 - residual) * probs.mean(1)
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


def result_dtype(trace: Trace) -> torch.dtype:
    """float64 for a trace in float64, otherwise float32."""
    return torch.promote_types(trace.embed.dtype, torch.float32)
