"""The kernel of the forward: z and lse as flash attention gives them, with statistics of the rows.

A program owns a block of queries and walks over the keys, as in FlashAttention-2 (Dao 2023, §3.1).
First it reads, without a mask, the blocks of keys that all of its queries see completely. Then it
reads those at an edge: the end of the text, or the limit of causal order. Blocks that no query sees
are not read. `fold.py` has the formulas.

Outputs that are not wanted are None and cost nothing. row_max, max_prob and entropy come from the
same walk; entropy adds one multiplication for each score. argmax stores a position with each
maximum. offset_mass and key_mass compute their few scores again at the end.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.call import Call, Outputs
from minibert.kernels.fused.fold import fold_scores, key_of_best, no_best, settled
from minibert.kernels.fused.launch import (
    Config,
    best_of,
    chosen_outputs,
    constants_of,
    given_outputs,
    inputs_of,
    row_outputs,
    sizes_of,
    strides_of,
)
from minibert.kernels.fused.masks import key_range, masked_scores, tile_scores, whole_blocks
from minibert.kernels.fused.primitives import (
    LN2,
    LOG2E,
    NOTHING,
    block_offsets,
    head_start,
    head_view,
    load_at,
    load_rows,
    program_place,
    row_start,
)
from minibert.kernels.fused.tuning import run


@triton.jit
@no_type_check
def prob_of_keys(
    query_tile, keys, inputs, strides, sizes, place, rows, counts, head, lse2, scale, CAUSAL, D_HEAD
):
    """The prob of each row at its key in `keys`; 0 where the mask does not allow this key."""
    there = (keys >= 0) & (keys < counts[2])
    vectors = load_at(head[1], keys, strides.key[2], there, D_HEAD, query_tile.shape[1])
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

    Returns lse in base 2, and the factor that turns weights into probs: 0 for a dead row.
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
    chosen, query_tile, inputs, strides, sizes, place, rows, counts, head, lse2, scale, CAUSAL,
    D_HEAD,
):  # fmt: skip
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


@triton.jit
@no_type_check
def walk(
    state, query_tile, head, inputs, strides, sizes, place, rows, counts, span, scale,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, PRODUCT: tl.constexpr, BEST: tl.constexpr,
    PRECISION: tl.constexpr, D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The rows' state after the keys of `span`, a block at a time."""
    weighted, largest, total, product, best_key = state
    before, best = largest, no_best(BEST, largest.shape[0])
    _, key, value = head
    BLOCK_D: tl.constexpr = query_tile.shape[1]
    BLOCK_V: tl.constexpr = weighted.shape[1]
    key_offsets = block_offsets(strides.key[2], BLOCK_N, BLOCK_D)
    value_offsets = block_offsets(strides.value[2], BLOCK_N, BLOCK_V)
    # Computing a block's address from the previous block takes fewer instructions.
    key += tl.cast(span[0], tl.int64) * strides.key[2]
    value += tl.cast(span[0], tl.int64) * strides.value[2]
    for first in range(span[0], span[1], BLOCK_N):
        left = counts[2] - first
        key_tile = load_rows(key, key_offsets, left, D_HEAD, BLOCK_N, BLOCK_D, EDGE)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        columns = (first + tl.arange(0, BLOCK_N))[None, :]
        scores, factor = tile_scores(
            scores, scale, inputs, strides, sizes, place, rows[:, None], columns, counts, EDGE,
            CAUSAL,
        )  # fmt: skip
        weights, shrink, largest, total, product, best = fold_scores(
            scores, factor, first, largest, total, product, best, PRODUCT, BEST
        )
        value_tile = load_rows(value, value_offsets, left, D_VALUE, BLOCK_N, BLOCK_V, EDGE)
        weighted = weighted * shrink[:, None]
        weights = weights.to(value_tile.dtype)
        weighted = settled(tl.dot(weights, value_tile, weighted, input_precision=PRECISION))
        key += tl.cast(BLOCK_N, tl.int64) * strides.key[2]
        value += tl.cast(BLOCK_N, tl.int64) * strides.value[2]
    if BEST is not None:
        best_key = tl.where(largest > before, key_of_best(best, BEST, BLOCK_N), best_key)
    return weighted, largest, total, product, best_key


@triton.jit
@no_type_check
def forward_kernel(
    inputs, outputs, chosen, strides, sizes, scale,
    CAUSAL: tl.constexpr, BEST: tl.constexpr, PRECISION: tl.constexpr,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """z = softmax(scale·query·keyᵀ + bias)·value of a block of queries, with lse and statistics.

    The named tuples are those of `launch.py`. Source: Dao 2023, algorithm 1.
    """
    place, block = program_place(sizes.n_blocks, sizes.n_places, sizes.n_together, CAUSAL)
    head, counts = head_view(inputs, strides, sizes, place)
    first = block * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    query = head[0] + tl.cast(first, tl.int64) * strides.query[2]
    query_offsets = block_offsets(strides.query[2], BLOCK_M, BLOCK_D)
    left = counts[0] - first
    query_tile = load_rows(query, query_offsets, left, D_HEAD, BLOCK_M, BLOCK_D, True)
    seen = key_range(
        inputs, sizes, place // sizes.n_heads, first, first + (BLOCK_M - 1), counts, CAUSAL
    )
    begin, full, whole, stop = whole_blocks(seen, BLOCK_N, sizes.before is not None)
    none = tl.zeros((BLOCK_M,), tl.float32)
    parts = tl.zeros((BLOCK_M, 4), tl.float32)
    weighted = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    state = (weighted, none + NOTHING, parts, parts, tl.zeros((BLOCK_M,), tl.int32))
    PRODUCT: tl.constexpr = outputs.entropy is not None
    if inputs.mask is None and inputs.bias is None:
        if sizes.before is not None:
            state = walk(
                state, query_tile, head, inputs, strides, sizes, place, rows, counts,
                (begin, full), scale, True, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE,
                BLOCK_N,
            )  # fmt: skip
        state = walk(
            state, query_tile, head, inputs, strides, sizes, place, rows, counts,
            (full, whole), scale, False, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE, BLOCK_N,
        )  # fmt: skip
        begin = whole
    state = walk(
        state, query_tile, head, inputs, strides, sizes, place, rows, counts,
        (begin, stop), scale, True, CAUSAL, PRODUCT, BEST, PRECISION, D_HEAD, D_VALUE, BLOCK_N,
    )  # fmt: skip
    weighted, largest, total, product, best = state
    total, product = tl.sum(total, 1), tl.sum(product, 1)
    lse2, share = store_rows(
        outputs, inputs, sizes, place, rows, counts[0], largest, total, product, best
    )
    weighted = weighted * share[:, None]
    store_vectors(outputs.z, weighted, inputs, strides, sizes, place, rows, counts[0], D_VALUE)
    store_chosen(
        chosen, query_tile, inputs, strides, sizes, place, rows, counts, head, lse2, scale, CAUSAL,
        D_HEAD,
    )  # fmt: skip


def forward(call: Call, *, config: Config | None = None) -> Outputs:
    """z, lse and the wanted statistics of T1 and T2 (rows and chosen probs), of one kernel.

    Of packed sentences batch is 1.
    """
    call = call.positively_scaled()
    want, inputs = call.want, inputs_of(call)
    outputs = row_outputs(call)
    chosen = chosen_outputs(call)
    strides = strides_of(inputs, outputs.z)
    constants = constants_of(call) | {"BEST": best_of(call.query.dtype, want)}
    tier = "argmax" if "argmax" in want else "entropy" if "entropy" in want else "plain"

    def launch(cut: Config) -> None:
        sizes, programs = sizes_of(inputs, call, cut.block_m)
        forward_kernel[(programs,)](
            inputs, outputs, chosen, strides, sizes, call.scale,
            **constants, **cut.constants(),
        )  # fmt: skip

    run("forward", call, tier, launch, config)
    return given_outputs(outputs, chosen)
