"""The kernel for the gradient of a bias: d bias = dS, summed where the bias was repeated.

`backward_keys.py` has the formulas, `backward_tiles.py` the inputs and strides. The gradient of a
bias that is repeated over sentences, heads, queries or keys is the sum over them. One program adds
it up in one order, so the numbers are the same each time and no sentence needs an N x N tensor.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.backward_tiles import place_of, probabilities, rows_from

__all__ = ["backward_bias_kernel"]


@triton.jit
@no_type_check
def score_gradient(
    inputs,
    strides,
    sizes,
    scale,
    pair,
    first_query,
    first_key,
    D_HEAD: tl.constexpr,
    D_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dS of one tile of one head, (query, key)."""
    place = place_of(inputs, sizes, pair)
    n_queries, n_keys = sizes.n_queries, sizes.n_keys
    query_tile = rows_from(
        inputs.query, strides.query, place, first_query, n_queries, D_HEAD, QUERIES, D_BLOCK, True
    )
    dz_tile = rows_from(
        inputs.z_gradient, strides.z_gradient, place, first_query,
        n_queries, D_HEAD, QUERIES, D_BLOCK, True,
    )  # fmt: skip
    key_tile = rows_from(
        inputs.key, strides.key, place, first_key, n_keys, D_HEAD, KEYS, D_BLOCK, True
    )
    value_tile = rows_from(
        inputs.value, strides.value, place, first_key, n_keys, D_HEAD, KEYS, D_BLOCK, True
    )
    queries = first_query + tl.arange(0, QUERIES)[:, None]
    keys = first_key + tl.arange(0, KEYS)[None, :]
    at = place[2] + queries
    products = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
    probs = probabilities(
        products, tl.load(inputs.lse + at), queries, keys, place[3],
        inputs, strides, sizes, place, scale, CAUSAL, True,
    )  # fmt: skip
    d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision=PRECISION)
    return probs * (d_probs - tl.load(inputs.delta + at))


@triton.jit
@no_type_check
def backward_bias_kernel(
    inputs,
    strides,
    output,
    shape,
    spans,
    sizes,
    scale,
    D_HEAD: tl.constexpr,
    D_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of d bias, contiguous in the bias's own shape, whose axes are whole or 1.

    `spans` says how many sentences, heads, queries and keys, from its own on, go into a tile.
    """
    total = tl.zeros((QUERIES, KEYS), tl.float32)
    key_blocks, query_blocks = tl.cdiv(shape[3], KEYS), tl.cdiv(shape[2], QUERIES)
    own_key = tl.program_id(0) % key_blocks * KEYS
    own_query = tl.program_id(0) // key_blocks % query_blocks * QUERIES
    own_pair = tl.program_id(0) // key_blocks // query_blocks
    own_batch, own_head = own_pair // shape[1], own_pair % shape[1]
    for batch in range(own_batch, own_batch + spans[0]):
        for head in range(own_head, own_head + spans[1]):
            for first_query in range(own_query, own_query + spans[2], QUERIES):
                for first_key in range(own_key, own_key + spans[3], KEYS):
                    total += score_gradient(
                        inputs, strides, sizes, scale,
                        batch * sizes.n_heads + head, first_query, first_key,
                        D_HEAD, D_BLOCK, CAUSAL, QUERIES, KEYS, PRECISION,
                    )  # fmt: skip
    queries = own_query + tl.arange(0, QUERIES)[:, None]
    keys = own_key + tl.arange(0, KEYS)[None, :]
    # Of an axis of 1 the first row or column gets the sum and is the only one to be written.
    if shape[2] == 1:
        total = tl.where(queries == 0, tl.sum(total, axis=0, keep_dims=True), 0.0)
    if shape[3] == 1:
        total = tl.where(keys == 0, tl.sum(total, axis=1, keep_dims=True), 0.0)
    row = tl.cast(own_pair, tl.int64) * shape[2] + queries
    inside = (queries < shape[2]) & (keys < shape[3])
    tl.store(output + row * shape[3] + keys, total.to(output.dtype.element_ty), mask=inside)
