"""The kernel for the gradients of key and value, and the relevance of each key.

P = exp(s − lse) is computed again, tile by tile. dz is the gradient of z. For each query, δ is the
sum of dz·z over d_value minus the gradient of lse:

    dP = dz·valueᵀ      dS = P ∘ (dP − δ)      dC = dS ∘ (1 − tanh²(s/c)) with a soft cap c, or dS
    d value = Pᵀ·dz     d key = scale·dCᵀ·query     d query = scale·dC·key     d bias = dS

A sink has no value, so that its dP is 0: d sink = −Σ exp(sink − lse)·δ over the queries. The
relevance of a cell is f(P ∘ dP): the number itself, its positive part or its absolute value.

As in FlashAttention-2 (Dao 2023, §3.1) a program owns a block of keys and walks over the queries,
or owns a block of queries and walks over the keys. The keys of a group of query heads belong to one
program, which takes the heads one after the other. So no two programs add to the same number, and
results are the same each time, bit by bit. `backward_tiles.py` explains transposed tiles.
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
    whole_query_blocks,
)
from minibert.kernels.fused.masks import query_range
from minibert.kernels.fused.primitives import head_view, key_start


@triton.jit
@no_type_check
def over_queries(
    key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span, first_key,
    D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
    KIND: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`sums` of a block of keys, d key (without the scale), d value and relevance, grown.

    The length plays no part: a key beyond it spoils its own row alone, which the caller drops.
    """
    d_key, d_value, relevance = sums
    batch, head = place
    query = head_rows(inputs.query, strides.query, inputs.starts, batch, head)
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, batch, head)
    begin, n_queries = filled_start(inputs, sizes, batch, head), counts[0]
    columns = first_key + tl.arange(0, key_tile.shape[0])[:, None]
    first, last, full, whole = span
    counts = (n_queries, counts[1], counts[1])
    for turn in range(first, last, BLOCK_M):
        row = turn_of(turn, full, whole, EDGE and sizes.before is not None)
        rows = row + tl.arange(0, BLOCK_M)[None, :]
        at = begin + rows
        query_tile = rows_from(
            query, strides.query[2], row, n_queries, D_HEAD, BLOCK_M, key_tile.shape[1], True
        )
        dz_tile = rows_from(
            dz, strides.z_gradient[2], row, n_queries, D_VALUE, BLOCK_M, value_tile.shape[1], True
        )
        products = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
        probs = probabilities(
            products, tl.load(inputs.lse + at), rows, columns, counts,
            inputs, strides, sizes, batch, head, scale, CAUSAL, EDGE,
        )  # fmt: skip
        d_probs = tl.dot(value_tile, tl.trans(dz_tile), input_precision=PRECISION)
        if KIND:
            found = relevance_of(probs, d_probs, KIND)
            if inputs.weights is not None:
                found *= tl.load(inputs.weights + at)
            relevance += tl.sum(found, axis=1)
        if inputs.delta is not None:
            rounded = probs.to(dz_tile.dtype)
            d_value = tl.dot(rounded, dz_tile, d_value, input_precision=PRECISION)
            d_scores = probs * (d_probs - tl.load(inputs.delta + at))
            rounded = cap_slope(d_scores, products, scale, inputs).to(query_tile.dtype)
            d_key = tl.dot(rounded, query_tile, d_key, input_precision=PRECISION)
    return d_key, d_value, relevance


@triton.jit
@no_type_check
def over_head(
    key_tile, value_tile, d_key, d_value, inputs, strides, relevances, sizes, place, counts, scale,
    first_key, D_HEAD: tl.constexpr, D_VALUE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d key and d value with what one query head adds; writes the relevance that it gives."""
    KEYS: tl.constexpr = key_tile.shape[0]
    ORDERED: tl.constexpr = CAUSAL or sizes.before is not None or sizes.after is not None
    sums = (d_key, d_value, tl.zeros((KEYS,), tl.float32))
    if ORDERED:
        seen = query_range(
            inputs, sizes, place[0], first_key, first_key + (KEYS - 1), counts, CAUSAL
        )
        begin, full, whole, stop = whole_query_blocks(seen, counts[0], BLOCK_M)
        span = (begin, full + (stop - whole), full, whole)
        sums = over_queries(
            key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span,
            first_key, D_HEAD, D_VALUE, CAUSAL, True, KIND, BLOCK_M, PRECISION,
        )  # fmt: skip
        span = (full, whole, full, whole)
    else:
        # No query attends to a block of padding.
        span = (0, tl.where(first_key < counts[2], counts[0], 0), 0, 0)
    d_key, d_value, relevance = over_queries(
        key_tile, value_tile, sums, inputs, strides, sizes, place, counts, scale, span,
        first_key, D_HEAD, D_VALUE, False, False, KIND, BLOCK_M, PRECISION,
    )  # fmt: skip
    if KIND:
        keys = first_key + tl.arange(0, KEYS)
        at = key_start(inputs, sizes, place[0] * sizes.n_heads + place[1]) + keys
        relevance = tl.where(keys < counts[2], relevance, 0.0)
        tl.store(relevances + at, relevance, mask=keys < counts[1])
    return d_key, d_value


@triton.jit
@no_type_check
def backward_key_value_kernel(
    inputs, strides, outputs, output_strides, sizes, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr, GROUPED: tl.constexpr, KIND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`outputs` of one block of keys: d key, d value, sum of w·f(P ∘ dP) over the queries.

    Without delta there are no gradients, with KIND 0 no relevance, and None in their places.
    """
    pair, first_key = tl.program_id(0) // sizes.n_blocks, tl.program_id(0) % sizes.n_blocks
    first_key *= BLOCK_N
    n_key_heads = sizes.n_heads
    if GROUPED:
        n_key_heads = sizes.n_heads // sizes.group
    batch, key_head = pair // n_key_heads, pair % n_key_heads
    first_head = key_head
    if GROUPED:
        first_head = key_head * sizes.group
    head, counts = head_view(inputs, strides, sizes, batch * sizes.n_heads + first_head)
    n_keys = counts[1]
    key_tile = rows_from(head[1], strides.key[2], first_key, n_keys, D_HEAD, BLOCK_N, BLOCK_D, True)
    value_tile = rows_from(
        head[2], strides.value[2], first_key, n_keys, D_VALUE, BLOCK_N, BLOCK_V, True
    )
    d_key = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    d_value = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    if GROUPED:
        for query_head in range(first_head, first_head + sizes.group):
            d_key, d_value = over_head(
                key_tile, value_tile, d_key, d_value, inputs, strides, outputs[2], sizes,
                (batch, query_head), counts, scale, first_key,
                D_HEAD, D_VALUE, CAUSAL, KIND, BLOCK_M, PRECISION,
            )  # fmt: skip
    else:
        d_key, d_value = over_head(
            key_tile, value_tile, d_key, d_value, inputs, strides, outputs[2], sizes,
            (batch, first_head), counts, scale, first_key,
            D_HEAD, D_VALUE, CAUSAL, KIND, BLOCK_M, PRECISION,
        )  # fmt: skip
    if inputs.delta is not None:
        real = (first_key + tl.arange(0, BLOCK_N) < counts[2])[:, None]
        starts = inputs.starts if inputs.key_starts is None else inputs.key_starts
        to_key = head_rows(outputs[0], output_strides[0], starts, batch, key_head)
        to_value = head_rows(outputs[1], output_strides[1], starts, batch, key_head)
        d_key = tl.where(real, d_key * scale, 0.0)
        d_value = tl.where(real, d_value, 0.0)
        store_tile(to_key, output_strides[0][2], d_key, first_key, n_keys, D_HEAD)
        store_tile(to_value, output_strides[1][2], d_value, first_key, n_keys, D_VALUE)
