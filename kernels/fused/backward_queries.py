"""The kernels for δ, and for the gradient of query with the relevance of each query.

`backward_keys.py` has the formulas, `backward_tiles.py` says how δ and lse lie.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.backward_tiles import (
    cap_slope,
    filled_start,
    head_rows,
    probabilities,
    relevance_of,
    rows_from,
    store_tile,
    turn_of,
)
from minibert.kernels.fused.masks import key_range, whole_blocks
from minibert.kernels.fused.primitives import LOG2E, head_start, head_view, row_start


@triton.jit
@no_type_check
def backward_delta_kernel(
    inputs, rows, strides, sizes, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Fills lse (in base 2), δ and weights of `inputs` from what the forward gave for each row.

    `rows` is a `backward_launch.Rows`. Without z there is no δ. Of a sink it writes what this block
    of queries adds to its gradient.
    """
    pair, first = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks * BLOCK_M
    batch, head = pair // sizes.n_heads, pair % sizes.n_heads
    _, counts = head_view(inputs, strides, sizes, pair)
    queries = first + tl.arange(0, BLOCK_M)
    there = queries < counts[0]
    given = row_start(inputs, sizes, pair) + queries
    filled = filled_start(inputs, sizes, batch, head) + queries
    # A sentence that is shorter than the longest one has no place for more blocks.
    owned = queries < tl.cdiv(counts[0], BLOCK_M) * BLOCK_M
    logs = tl.load(rows.lse + given, mask=there, other=float("-inf"))
    dead = logs == float("-inf")
    logs = tl.where(dead, 1e30, logs * LOG2E)
    tl.store(inputs.lse + filled, logs, mask=owned)
    if inputs.delta is not None:
        z = head_rows(rows.z, strides.z, inputs.starts, batch, head)
        dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, batch, head)
        z_tile = rows_from(z, strides.z[2], first, counts[0], D_VALUE, BLOCK_M, BLOCK_V, True)
        dz_tile = rows_from(
            dz, strides.z_gradient[2], first, counts[0], D_VALUE, BLOCK_M, BLOCK_V, True
        )
        sums = tl.sum(z_tile.to(tl.float32) * dz_tile.to(tl.float32), axis=1)
        if rows.lse_gradient is not None:
            sums -= tl.load(rows.lse_gradient + given, mask=there, other=0.0)
        sums = tl.where(dead, 0.0, sums)
        tl.store(inputs.delta + filled, sums, mask=owned)
        if rows.sink_parts is not None:
            sink = tl.load(inputs.sinks + head) * LOG2E
            tl.store(
                rows.sink_parts + tl.program_id(0),
                -tl.sum(tl.math.exp2(sink - logs) * sums, axis=0),
            )
    if inputs.weights is not None:
        weights = rows.weights + head_start(rows.weight_strides, batch, head)
        if inputs.starts is not None:
            weights = rows.weights + head_start(rows.weight_strides, 0, head)
            weights += tl.load(inputs.starts + batch) * rows.weight_strides[2]
        weights = tl.load(weights + queries * rows.weight_strides[2], mask=there, other=0.0)
        tl.store(inputs.weights + filled, weights.to(tl.float32), mask=owned)


@triton.jit
@no_type_check
def over_keys(
    query_tile, dz_tile, numbers, sums, head, inputs, strides, sizes, place, counts, scale, span,
    first_query, D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, KIND: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`sums` of a block of queries, d query (without the scale) and relevance, grown."""
    logs, delta = numbers
    d_query, relevance = sums
    BLOCK_D: tl.constexpr = query_tile.shape[1]
    BLOCK_V: tl.constexpr = dz_tile.shape[1]
    rows = first_query + tl.arange(0, query_tile.shape[0])[:, None]
    first, last, full, whole = span
    # At an edge there are one or two turns, so there is little to load ahead; without it wgmma is
    # not serialised. float32, which has no matrix instruction, would spill.
    SHORT: tl.constexpr = EDGE and query_tile.dtype != tl.float32
    for turn in tl.range(first, last, BLOCK_N, num_stages=1 if SHORT else None):
        key = turn_of(turn, full, whole, EDGE and sizes.before is not None)
        columns = key + tl.arange(0, BLOCK_N)[None, :]
        key_tile = rows_from(
            head[1], strides.key[2], key, counts[2], D_HEAD, BLOCK_N, BLOCK_D, EDGE
        )
        value_tile = rows_from(
            head[2], strides.value[2], key, counts[2], D_VALUE, BLOCK_N, BLOCK_V, EDGE
        )
        products = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        probs = probabilities(
            products, logs, rows, columns, counts,
            inputs, strides, sizes, place[0], place[1], scale, CAUSAL, EDGE,
        )  # fmt: skip
        d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision=PRECISION)
        if KIND:
            relevance += tl.sum(relevance_of(probs, d_probs, KIND), axis=1)
        d_scores = cap_slope(probs * (d_probs - delta), products, scale, inputs)
        d_query = tl.dot(d_scores.to(key_tile.dtype), key_tile, d_query, input_precision=PRECISION)
    return d_query, relevance


@triton.jit
@no_type_check
def backward_query_kernel(
    inputs, strides, outputs, output_strides, sizes, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr, KIND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`outputs` of one block of queries: d query; with a KIND, sum of f(P ∘ dP) over the keys."""
    pair, block = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks
    if CAUSAL:
        # The longest rows first, so that no program is left working alone at the end.
        block = sizes.n_blocks - 1 - block
    first = block * BLOCK_M
    place = (pair // sizes.n_heads, pair % sizes.n_heads)
    head, counts = head_view(inputs, strides, sizes, pair)
    n_queries = counts[0]
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, place[0], place[1])
    query_tile = rows_from(
        head[0], strides.query[2], first, n_queries, D_HEAD, BLOCK_M, BLOCK_D, True
    )
    dz_tile = rows_from(
        dz, strides.z_gradient[2], first, n_queries, D_VALUE, BLOCK_M, BLOCK_V, True
    )
    queries = first + tl.arange(0, BLOCK_M)
    there = (queries < tl.cdiv(n_queries, BLOCK_M) * BLOCK_M)[:, None]
    at = filled_start(inputs, sizes, place[0], place[1]) + queries[:, None]
    if inputs.starts is None:
        numbers = (tl.load(inputs.lse + at), tl.load(inputs.delta + at))
    else:
        # A sentence that is shorter than the longest one has no place for more blocks.
        numbers = (
            tl.load(inputs.lse + at, mask=there, other=1e30),
            tl.load(inputs.delta + at, mask=there, other=0.0),
        )
    seen = key_range(inputs, sizes, place[0], first, first + (BLOCK_M - 1), counts, CAUSAL)
    begin, full, whole, stop = whole_blocks(seen, BLOCK_N)
    sums = (tl.zeros((BLOCK_M, BLOCK_D), tl.float32), tl.zeros((BLOCK_M,), tl.float32))
    span = (full, whole, full, whole)
    sums = over_keys(
        query_tile, dz_tile, numbers, sums, head, inputs, strides, sizes, place, counts, scale,
        span, first, D_HEAD, D_VALUE, False, False, KIND, BLOCK_N, PRECISION,
    )  # fmt: skip
    if sizes.before is None:
        span = (whole, stop, full, whole)
    else:
        span = (begin, full + (stop - whole), full, whole)
    d_query, relevance = over_keys(
        query_tile, dz_tile, numbers, sums, head, inputs, strides, sizes, place, counts, scale,
        span, first, D_HEAD, D_VALUE, CAUSAL, True, KIND, BLOCK_N, PRECISION,
    )  # fmt: skip
    to_query = head_rows(outputs[0], output_strides[0], inputs.starts, place[0], place[1])
    store_tile(to_query, output_strides[0][2], d_query * scale, first, n_queries, D_HEAD)
    if KIND:
        at = row_start(inputs, sizes, pair) + queries
        tl.store(outputs[1] + at, relevance, mask=queries < n_queries)
