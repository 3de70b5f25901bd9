"""The kernels for δ, and for the gradient of query with the relevance of each query.

`backward_keys.py` has the formulas, `backward_tiles.py` the inputs and strides.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.backward_tiles import (
    place_of,
    probabilities,
    relevance_of,
    rows_from,
    store_tile,
)
from minibert.kernels.fused.primitives import LOG2E

__all__ = ["backward_delta_kernel", "backward_query_kernel"]


@triton.jit
@no_type_check
def backward_delta_kernel(
    z,
    z_gradient,
    lse,
    lse_gradient,
    delta,
    lse_in_base_2,
    z_strides,
    z_gradient_strides,
    sizes,
    D_HEAD: tl.constexpr,
    D_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """δ = sum dz·z − d lse of each query, and lse in base 2, both filled up to whole blocks."""
    blocks = sizes.n_filled // QUERIES
    pair, first = tl.program_id(0) // blocks, tl.program_id(0) % blocks * QUERIES
    n_queries, place = sizes.n_queries, (pair // sizes.n_heads, pair % sizes.n_heads)
    z_tile = rows_from(z, z_strides, place, first, n_queries, D_HEAD, QUERIES, D_BLOCK, True)
    dz_tile = rows_from(
        z_gradient, z_gradient_strides, place, first, n_queries, D_HEAD, QUERIES, D_BLOCK, True
    )
    sums = tl.sum(z_tile.to(tl.float32) * dz_tile.to(tl.float32), axis=1)
    queries = first + tl.arange(0, QUERIES)
    there = queries < n_queries
    given = tl.cast(pair, tl.int64) * n_queries + queries
    logs = tl.load(lse + given, mask=there, other=float("-inf"))
    if lse_gradient is not None:
        sums -= tl.load(lse_gradient + given, mask=there, other=0.0)
    dead = logs == float("-inf")
    filled = tl.cast(pair, tl.int64) * sizes.n_filled + queries
    tl.store(delta + filled, tl.where(dead, 0.0, sums))
    tl.store(lse_in_base_2 + filled, tl.where(dead, 1e30, logs * LOG2E))


@triton.jit
@no_type_check
def over_keys(
    query_tile,
    dz_tile,
    rows,
    sums,
    inputs,
    strides,
    sizes,
    place,
    scale,
    first,
    last,
    first_query,
    D_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
    KIND: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`sums` of a block of queries, d query (without the scale) and relevance, grown."""
    logs, delta = rows
    d_query, relevance = sums
    COLUMNS: tl.constexpr = query_tile.shape[1]
    queries = first_query + tl.arange(0, query_tile.shape[0])[:, None]
    # At an edge there are one or two turns, so there is little to load ahead; without it wgmma is
    # not serialised. float32, which has no matrix instruction, would spill.
    SHORT: tl.constexpr = EDGE and query_tile.dtype != tl.float32
    for row in tl.range(first, last, KEYS, num_stages=1 if SHORT else None):
        keys = row + tl.arange(0, KEYS)[None, :]
        key_tile = rows_from(
            inputs.key, strides.key, place, row, sizes.n_keys, D_HEAD, KEYS, COLUMNS, EDGE
        )
        value_tile = rows_from(
            inputs.value, strides.value, place, row, sizes.n_keys, D_HEAD, KEYS, COLUMNS, EDGE
        )
        products = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        probs = probabilities(
            products, logs, queries, keys, place[3],
            inputs, strides, sizes, place, scale, CAUSAL, EDGE,
        )  # fmt: skip
        d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision=PRECISION)
        if KIND:
            relevance += tl.sum(relevance_of(probs, d_probs, KIND), axis=1)
        rounded = (probs * (d_probs - delta)).to(key_tile.dtype)
        d_query = tl.dot(rounded, key_tile, d_query, input_precision=PRECISION)
    return d_query, relevance


@triton.jit
@no_type_check
def backward_query_kernel(
    inputs,
    strides,
    outputs,
    output_strides,
    sizes,
    scale,
    D_HEAD: tl.constexpr,
    D_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    KIND: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`outputs` of one block of queries: d query; with a KIND, sum of f(P ∘ dP) over the keys."""
    blocks = tl.cdiv(sizes.n_queries, QUERIES)
    pair, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if CAUSAL:
        # The longest rows first, so that no program is left working alone at the end.
        block = blocks - 1 - block
    first_query = block * QUERIES
    n_queries, place = sizes.n_queries, place_of(inputs, sizes, pair)
    length = place[3]
    query_tile = rows_from(
        inputs.query, strides.query, place, first_query, n_queries, D_HEAD, QUERIES, D_BLOCK, True
    )
    dz_tile = rows_from(
        inputs.z_gradient, strides.z_gradient, place, first_query,
        n_queries, D_HEAD, QUERIES, D_BLOCK, True,
    )  # fmt: skip
    queries = first_query + tl.arange(0, QUERIES)
    at = place[2] + queries[:, None]
    rows = (tl.load(inputs.lse + at), tl.load(inputs.delta + at))
    stop, whole = length, length
    if CAUSAL:
        ahead = sizes.n_keys - sizes.n_queries
        stop = tl.minimum(length, first_query + QUERIES + ahead)
        whole = tl.maximum(tl.minimum(length, first_query + ahead + 1), 0)
    whole = whole // KEYS * KEYS
    sums = (tl.zeros((QUERIES, D_BLOCK), tl.float32), tl.zeros((QUERIES,), tl.float32))
    sums = over_keys(
        query_tile, dz_tile, rows, sums, inputs, strides, sizes, place, scale,
        0, whole, first_query, D_HEAD, CAUSAL, False, KIND, KEYS, PRECISION,
    )  # fmt: skip
    d_query, relevance = over_keys(
        query_tile, dz_tile, rows, sums, inputs, strides, sizes, place, scale,
        whole, stop, first_query, D_HEAD, CAUSAL, True, KIND, KEYS, PRECISION,
    )  # fmt: skip
    d_query *= scale
    store_tile(outputs[0], output_strides[0], place, d_query, first_query, n_queries, D_HEAD)
    if KIND:
        at = tl.cast(pair, tl.int64) * n_queries + queries
        tl.store(outputs[1] + at, relevance, mask=queries < n_queries)
