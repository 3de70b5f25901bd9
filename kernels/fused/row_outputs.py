"""Writes the outputs of a block of rows at the end of a forward kernel.

`fold.py` has the formulas. For a row without an allowed key, `api.Statistics` says what is written.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.masks import masked_scores
from minibert.kernels.fused.primitives import LN2, LOG2E, NOTHING, head_start, row_start


@triton.jit
@no_type_check
def prob_of_keys(
    query_tile,
    keys,
    inputs,
    strides,
    sizes,
    place,
    rows,
    counts,
    head,
    lse2,
    scale,
    CAUSAL,
    D_HEAD,
):
    """The prob of each row at its key in `keys`; 0 where the mask does not allow this key."""
    feature = tl.arange(0, query_tile.shape[1])
    cells = tl.cast(keys, tl.int64)[:, None] * strides.key[2] + feature[None, :]
    seen = ((keys >= 0) & (keys < counts[2]))[:, None] & (feature < D_HEAD)[None, :]
    vectors = tl.load(head[1] + cells, mask=seen, other=0.0)
    scores = tl.sum(query_tile.to(tl.float32) * vectors.to(tl.float32), 1)
    there = tl.where(keys < 0, counts[1], keys)
    scores = masked_scores(
        scores, scale, inputs, strides, sizes, place, rows, there, counts, CAUSAL
    )
    # Subtraction alone would be wrong for a row without an allowed key: it has no normaliser.
    probs = tl.math.exp2(scores - lse2)
    # A score in the thousands, summed in another order, may be larger than the row's lse.
    probs = tl.where(probs > 1.0, 1.0, probs)
    return tl.where(scores == NOTHING, 0.0, probs)


@triton.jit
@no_type_check
def with_sink(largest, total, product, inputs, sizes, place):
    """(lse in base 2, prob of the best key, entropy in bits) of rows, a sink in their softmax.

    The sink is one more logit, without a key: L = log2(2^sink + 2^m·l), and what belongs to the
    keys shrinks by 2^(m − L). Without a sink L = m + log2 l. Dead rows have the sink's L alone.
    """
    if inputs.sinks is None:
        bits = tl.math.log2(total)
        return largest + bits, 1.0 / total, bits - product / total
    else:
        sink = tl.load(inputs.sinks + place % sizes.n_heads) * LOG2E
        dead = (largest <= 0.5 * NOTHING) & (total == total)
        top = tl.where(dead, sink, tl.maximum(largest, sink))
        mass = tl.where(dead, 0.0, total * tl.math.exp2(largest - top))
        lse2 = top + tl.math.log2(mass + tl.math.exp2(sink - top))
        best = tl.math.exp2(largest - lse2)
        return lse2, best, -best * (product + (largest - lse2) * total)


@triton.jit
@no_type_check
def store_rows(outputs, inputs, sizes, place, rows, n_queries, largest, total, product, best_key):
    """Writes lse and the wanted statistics of a block of rows.

    Gives lse in base 2, and by what to multiply weights for probs: 0 for a dead row.
    """
    at, inside = row_start(inputs, sizes, place) + rows, rows < n_queries
    alive = (largest > 0.5 * NOTHING) | (total != total)
    lse2, share, bits = with_sink(largest, total, product, inputs, sizes, place)
    lse = lse2 * LN2
    if inputs.sinks is None:
        lse = tl.where(alive, lse, float("-inf"))
    tl.store(outputs.lse + at, lse, mask=inside)
    if outputs.row_max is not None:
        # A NaN among the scores does not show in the maximum, but it does in the total.
        row_max = tl.where(total == total, largest * LN2, total)
        tl.store(outputs.row_max + at, tl.where(alive, row_max, float("-inf")), mask=inside)
    if outputs.max_prob is not None:
        max_prob = tl.where(share > 1.0, 1.0, share)
        tl.store(outputs.max_prob + at, tl.where(alive, max_prob, 0.0), mask=inside)
    if outputs.entropy is not None:
        # Never negative by rounding; NaN stays NaN.
        entropy = LN2 * tl.where(bits < 0.0, 0.0, bits)
        tl.store(outputs.entropy + at, tl.where(alive, entropy, 0.0), mask=inside)
    if outputs.argmax is not None:
        key = tl.where(alive, best_key, -1).to(tl.int64)
        tl.store(outputs.argmax + at, key, mask=inside)
    return lse2, tl.where(alive, share, 0.0)


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
    scale,
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
                query_tile, keys, inputs, strides, sizes, place, rows, counts, head, lse2, scale,
                CAUSAL, D_HEAD,
            )  # fmt: skip
            tl.store(chosen.offset_mass + begin * chosen.n_offsets + i, probs, mask=inside)
    if chosen.key_mass is not None:
        for i in range(chosen.n_positions):
            keys = tl.zeros_like(rows) + tl.load(chosen.positions + i)
            probs = prob_of_keys(
                query_tile, keys, inputs, strides, sizes, place, rows, counts, head, lse2, scale,
                CAUSAL, D_HEAD,
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
