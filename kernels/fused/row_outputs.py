"""Writes the outputs of a block of rows at the end of a forward kernel.

`fold.py` has the formulas. For a row without an allowed key, `api.Statistics` says what is written.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.primitives import (
    LN2,
    NOTHING,
    head_start,
    masked_scores,
    row_start,
)

__all__ = ["store_chosen", "store_rows", "store_vectors"]


@triton.jit
@no_type_check
def nats(total, product):
    """The entropy, ln 2·(log2 l − W/l), never negative by rounding; NaN stays NaN."""
    entropy = LN2 * (tl.math.log2(total) - product / total)
    return tl.where(entropy < 0.0, 0.0, entropy)


@triton.jit
@no_type_check
def prob_of_keys(
    query_tile,
    keys,
    inputs,
    strides,
    place,
    n_heads,
    rows,
    counts,
    head,
    lse2,
    scale2,
    CAUSAL,
    D_HEAD,
):
    """The prob of each row at its key in `keys`; 0 where the mask does not allow this key."""
    feature = tl.arange(0, query_tile.shape[1])
    cells = tl.cast(keys, tl.int64)[:, None] * strides.key[2] + feature[None, :]
    seen = ((keys >= 0) & (keys < counts[2]))[:, None] & (feature < D_HEAD)[None, :]
    vectors = tl.load(head[1] + cells, mask=seen, other=0.0)
    scores = tl.sum(query_tile.to(tl.float32) * vectors.to(tl.float32), 1) * scale2
    there = tl.where(keys < 0, counts[1], keys)
    scores = masked_scores(scores, inputs, strides, place, n_heads, rows, there, counts, CAUSAL)
    # Subtraction alone would be wrong for a row without an allowed key: it has no normaliser.
    probs = tl.math.exp2(scores - lse2)
    # A score in the thousands, summed in another order, may be larger than the row's lse.
    probs = tl.where(probs > 1.0, 1.0, probs)
    return tl.where(scores == NOTHING, 0.0, probs)


@triton.jit
@no_type_check
def store_rows(outputs, rows, begin, n_queries, largest, total, product, best):
    """Writes lse and the wanted statistics of a block of rows; returns lse in base 2."""
    at, inside = begin + rows, rows < n_queries
    alive = (largest > 0.5 * NOTHING) | (total != total)
    lse2 = largest + tl.math.log2(total)
    tl.store(outputs.lse + at, tl.where(alive, lse2 * LN2, float("-inf")), mask=inside)
    if outputs.row_max is not None:
        # A NaN among the scores does not show in the maximum, but it does in the total.
        row_max = tl.where(total == total, largest * LN2, total)
        tl.store(outputs.row_max + at, tl.where(alive, row_max, float("-inf")), mask=inside)
    if outputs.max_prob is not None:
        max_prob = 1.0 / total
        max_prob = tl.where(max_prob > 1.0, 1.0, max_prob)
        tl.store(outputs.max_prob + at, tl.where(alive, max_prob, 0.0), mask=inside)
    if outputs.entropy is not None:
        tl.store(outputs.entropy + at, tl.where(alive, nats(total, product), 0.0), mask=inside)
    if outputs.argmax is not None:
        place = tl.where(alive, best, -1).to(tl.int64)
        tl.store(outputs.argmax + at, place, mask=inside)
    return lse2, alive


@triton.jit
@no_type_check
def store_chosen(
    chosen,
    query_tile,
    inputs,
    strides,
    sizes,
    place,
    rows,
    counts,
    head,
    lse2,
    scale2,
    CAUSAL,
    D_HEAD,
):
    """Writes the probs at chosen offsets and keys: their few scores are computed once more."""
    begin = row_start(inputs, sizes, place) + rows
    inside = rows < counts[0]
    if chosen.offset_mass is not None:
        for i in range(chosen.n_offsets):
            keys = rows + (counts[1] - counts[0]) + tl.load(chosen.offsets + i)
            probs = prob_of_keys(
                query_tile, keys, inputs, strides, place, sizes.n_heads, rows, counts, head, lse2,
                scale2, CAUSAL, D_HEAD,
            )  # fmt: skip
            tl.store(chosen.offset_mass + begin * chosen.n_offsets + i, probs, mask=inside)
    if chosen.key_mass is not None:
        for i in range(chosen.n_positions):
            keys = tl.zeros_like(rows) + tl.load(chosen.positions + i)
            probs = prob_of_keys(
                query_tile, keys, inputs, strides, place, sizes.n_heads, rows, counts, head, lse2,
                scale2, CAUSAL, D_HEAD,
            )  # fmt: skip
            tl.store(chosen.key_mass + begin * chosen.n_positions + i, probs, mask=inside)


@triton.jit
@no_type_check
def store_vectors(vectors, tile, inputs, strides, sizes, place, rows, n_queries, D_HEAD):
    """Writes a block of rows of z, rounded to its dtype."""
    batch, head = place // sizes.n_heads, place % sizes.n_heads
    vectors += head_start(strides.z, batch, head)
    if inputs.starts is not None:
        vectors += tl.load(inputs.starts + batch) * strides.z[2]
    feature = tl.arange(0, tile.shape[1])
    inside = (rows < n_queries)[:, None] & (feature < D_HEAD)[None, :]
    cells = tl.cast(rows, tl.int64)[:, None] * strides.z[2] + feature[None, :]
    tl.store(vectors + cells, tile.to(vectors.dtype.element_ty), mask=inside)
