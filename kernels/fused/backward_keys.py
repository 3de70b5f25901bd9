"""The kernel for the gradients of key and value, and the relevance of each key.

P = exp(s − lse) is computed again, tile by tile. dz is the gradient of z. For each query, δ is the
sum of dz·z over d_head minus the gradient of lse:

    dP = dz·valueᵀ      dS = P ∘ (dP − δ)
    d value = Pᵀ·dz     d key = scale·dSᵀ·query     d query = scale·dS·key     d bias = dS

The relevance of a cell is f(P ∘ dP): the number itself, its positive part or its absolute value.

As in FlashAttention-2 (Dao 2023, §3.1) a program owns a block of keys and walks over the queries,
or owns a block of queries and walks over the keys. No two programs add to the same number, so
results are the same each time, bit by bit. `backward_tiles.py` explains transposed tiles,
inputs and strides.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.backward_tiles import (
    first_queries,
    place_of,
    probabilities,
    relevance_of,
    rows_from,
    store_tile,
)

__all__ = ["backward_key_value_kernel"]


@triton.jit
@no_type_check
def over_queries(
    key_tile,
    value_tile,
    sums,
    inputs,
    strides,
    sizes,
    place,
    scale,
    first,
    last,
    first_key,
    D_HEAD: tl.constexpr,
    CAUSAL: tl.constexpr,
    KIND: tl.constexpr,
    QUERIES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`sums` of a block of keys, d key (without the scale), d value and relevance, grown.

    The length plays no part: a key beyond it spoils its own row alone, which the caller drops.
    """
    d_key, d_value, relevance = sums
    COLUMNS: tl.constexpr = key_tile.shape[1]
    keys = first_key + tl.arange(0, key_tile.shape[0])[:, None]
    n_queries, n_keys = sizes.n_queries, sizes.n_keys
    for row in range(first, last, QUERIES):
        queries = row + tl.arange(0, QUERIES)[None, :]
        at = place[2] + queries
        query_tile = rows_from(
            inputs.query, strides.query, place, row, n_queries, D_HEAD, QUERIES, COLUMNS, True
        )
        dz_tile = rows_from(
            inputs.z_gradient,
            strides.z_gradient,
            place,
            row,
            n_queries,
            D_HEAD,
            QUERIES,
            COLUMNS,
            True,
        )
        products = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
        probs = probabilities(
            products, tl.load(inputs.lse + at), queries, keys, n_keys,
            inputs, strides, sizes, place, scale, CAUSAL, CAUSAL,
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
            rounded = (probs * (d_probs - tl.load(inputs.delta + at))).to(query_tile.dtype)
            d_key = tl.dot(rounded, query_tile, d_key, input_precision=PRECISION)
    return d_key, d_value, relevance


@triton.jit
@no_type_check
def backward_key_value_kernel(
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
    """`outputs` of one block of keys: d key, d value, sum of w·f(P ∘ dP) over the queries.

    Without delta there are no gradients, with KIND 0 no relevance, and None in their places.
    """
    blocks = tl.cdiv(sizes.n_keys, KEYS)
    pair, first_key = tl.program_id(0) // blocks, tl.program_id(0) % blocks * KEYS
    n_keys, place = sizes.n_keys, place_of(inputs, sizes, pair)
    length = place[3]
    key_tile = rows_from(
        inputs.key, strides.key, place, first_key, n_keys, D_HEAD, KEYS, D_BLOCK, True
    )
    value_tile = rows_from(
        inputs.value, strides.value, place, first_key, n_keys, D_HEAD, KEYS, D_BLOCK, True
    )
    zeros = tl.zeros((KEYS, D_BLOCK), tl.float32)
    sums = (zeros, zeros, tl.zeros((KEYS,), tl.float32))
    # No query attends to a block of padding.
    stop = tl.where(first_key < length, sizes.n_queries, 0)
    whole = 0
    if CAUSAL:
        some, whole = first_queries(first_key, sizes, KEYS, QUERIES)
        last = tl.minimum(whole, stop)
        sums = over_queries(
            key_tile, value_tile, sums, inputs, strides, sizes, place, scale,
            some, last, first_key, D_HEAD, True, KIND, QUERIES, PRECISION,
        )  # fmt: skip
    d_key, d_value, relevance = over_queries(
        key_tile, value_tile, sums, inputs, strides, sizes, place, scale,
        whole, stop, first_key, D_HEAD, False, KIND, QUERIES, PRECISION,
    )  # fmt: skip
    keys = first_key + tl.arange(0, KEYS)
    real = keys < length
    if inputs.delta is not None:
        d_key = tl.where(real[:, None], d_key * scale, 0.0)
        d_value = tl.where(real[:, None], d_value, 0.0)
        store_tile(outputs[0], output_strides[0], place, d_key, first_key, n_keys, D_HEAD)
        store_tile(outputs[1], output_strides[1], place, d_value, first_key, n_keys, D_HEAD)
    if KIND:
        at = tl.cast(pair, tl.int64) * n_keys + keys
        tl.store(outputs[2] + at, tl.where(real, relevance, 0.0), mask=keys < n_keys)
