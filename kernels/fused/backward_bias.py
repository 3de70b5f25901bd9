"""The kernel for the gradient of a bias: d bias = dS, summed where the bias was repeated.

`backward_keys.py` has the formulas. The gradient of a bias that is repeated over sentences, heads,
queries or keys is the sum over them. One program adds it up in one order, so the numbers are the
same each time and no sentence needs an N x N tensor.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.backward_tiles import (
    filled_start,
    head_rows,
    probabilities,
    rows_from,
)
from minibert.kernels.fused.primitives import head_view


@triton.jit
@no_type_check
def score_gradient(
    inputs, strides, sizes, scale, batch, number, first_query, first_key,
    D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS of one tile of one head, (query, key)."""
    head, counts = head_view(inputs, strides, sizes, batch * sizes.n_heads + number)
    dz = head_rows(inputs.z_gradient, strides.z_gradient, inputs.starts, batch, number)
    query_tile = rows_from(
        head[0], strides.query[2], first_query, counts[0], D_HEAD, BLOCK_M, BLOCK_D, True
    )
    dz_tile = rows_from(
        dz, strides.z_gradient[2], first_query, counts[0], D_VALUE, BLOCK_M, BLOCK_V, True
    )
    key_tile = rows_from(
        head[1], strides.key[2], first_key, counts[2], D_HEAD, BLOCK_N, BLOCK_D, True
    )
    value_tile = rows_from(
        head[2], strides.value[2], first_key, counts[2], D_VALUE, BLOCK_N, BLOCK_V, True
    )
    rows = first_query + tl.arange(0, BLOCK_M)[:, None]
    columns = first_key + tl.arange(0, BLOCK_N)[None, :]
    at = filled_start(inputs, sizes, batch, number) + rows
    products = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
    probs = probabilities(
        products, tl.load(inputs.lse + at), rows, columns, counts,
        inputs, strides, sizes, batch, number, scale, CAUSAL, True,
    )  # fmt: skip
    d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision=PRECISION)
    return probs * (d_probs - tl.load(inputs.delta + at))


@triton.jit
@no_type_check
def backward_bias_kernel(
    inputs, strides, output, shape, spans, sizes, scale,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, D_HEAD: tl.constexpr, BLOCK_D: tl.constexpr,
    D_VALUE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of d bias, contiguous in the bias's own shape, whose axes are whole or 1.

    `spans` says how many sentences, heads, queries and keys, from its own on, go into a tile.
    """
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    key_blocks, query_blocks = tl.cdiv(shape[3], BLOCK_N), tl.cdiv(shape[2], BLOCK_M)
    own_key = tl.program_id(0) % key_blocks * BLOCK_N
    own_query = tl.program_id(0) // key_blocks % query_blocks * BLOCK_M
    own_pair = tl.program_id(0) // key_blocks // query_blocks
    own_batch, own_head = own_pair // shape[1], own_pair % shape[1]
    for batch in range(own_batch, own_batch + spans[0]):
        for head in range(own_head, own_head + spans[1]):
            for first_query in range(own_query, own_query + spans[2], BLOCK_M):
                for first_key in range(own_key, own_key + spans[3], BLOCK_N):
                    total += score_gradient(
                        inputs, strides, sizes, scale, batch, head, first_query, first_key,
                        D_HEAD, BLOCK_D, D_VALUE, BLOCK_V, CAUSAL, BLOCK_M, BLOCK_N, PRECISION,
                    )  # fmt: skip
    queries = own_query + tl.arange(0, BLOCK_M)[:, None]
    keys = own_key + tl.arange(0, BLOCK_N)[None, :]
    # Of an axis of 1 the first row or column gets the sum and is the only one to be written.
    if shape[2] == 1:
        total = tl.where(queries == 0, tl.sum(total, axis=0, keep_dims=True), 0.0)
    if shape[3] == 1:
        total = tl.where(keys == 0, tl.sum(total, axis=1, keep_dims=True), 0.0)
    row = tl.cast(own_pair, tl.int64) * shape[2] + queries
    inside = (queries < shape[2]) & (keys < shape[3])
    tl.store(output + row * shape[3] + keys, total.to(output.dtype.element_ty), mask=inside)
