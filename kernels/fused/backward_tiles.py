"""The jitted pieces of the backward of attention: P of a tile, relevance of a tile, storing.

`backward_keys.py` has the formulas. A tile is (query, key). In programs that own keys it is
transposed, (key, query): then the tile is the left operand, which the matrix instructions take from
registers. `queries` and `keys` are positions with an axis of size 1 added, so the same lines work
for both forms. Strides are (batch, head, row), and (batch, head, query, key) for mask and bias; the
last axis of vectors is contiguous.

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.primitives import (
    LOG2E,
    block_offsets,
    head_start,
    load_cells,
    load_rows,
)

__all__ = [
    "Inputs",
    "Sizes",
    "Strides",
    "first_queries",
    "place_of",
    "probabilities",
    "relevance_of",
    "rows_from",
    "store_tile",
]


class Inputs(NamedTuple):
    """What a kernel reads; None for what is not given.

    lse (in base 2), delta and weights are float32, (batch · head, queries filled up to whole
    blocks). Where a row is dead or not there lse is so large that P is 0. Mask is in bytes.
    """

    query: Any
    key: Any
    value: Any
    z_gradient: Any
    lse: Any
    delta: Any
    weights: Any
    lengths: Any
    mask: Any
    bias: Any


class Strides(NamedTuple):
    """The strides of `Inputs`, each a tuple."""

    query: Any
    key: Any
    value: Any
    z_gradient: Any
    mask: Any
    bias: Any


class Sizes(NamedTuple):
    """How many there are; n_filled is n_queries filled up to whole blocks."""

    n_heads: Any
    n_queries: Any
    n_filled: Any
    n_keys: Any


@triton.jit
@no_type_check
def place_of(inputs, sizes, pair):
    """Of one (batch · head): batch, head, where its numbers of queries begin, and its length."""
    batch, head = pair // sizes.n_heads, pair % sizes.n_heads
    length = sizes.n_keys
    if inputs.lengths is not None:
        length = tl.load(inputs.lengths + batch).to(tl.int32)
    return batch, head, tl.cast(pair, tl.int64) * sizes.n_filled, length


@triton.jit
@no_type_check
def rows_from(
    vectors, strides, place, first, n_rows, D_HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS, EDGE
):
    """ROWS vectors of a head from `first` on, (ROWS, COLUMNS); 0 beyond d_head.

    With EDGE 0 beyond n_rows as well; without, all of them are there.
    """
    # The first row in 64 bits: a million rows times their stride do not fit 32.
    start = head_start(strides, place[0], place[1]) + tl.cast(first, tl.int64) * strides[2]
    offsets = block_offsets(strides[2], ROWS, COLUMNS)
    return load_rows(vectors + start, offsets, n_rows - first, D_HEAD, ROWS, COLUMNS, EDGE)


@triton.jit
@no_type_check
def store_tile(vectors, strides, place, tile, first, n_rows, D_HEAD: tl.constexpr):
    """Rounds a (ROWS, COLUMNS) tile and writes the part of it inside n_rows and d_head."""
    start = head_start(strides, place[0], place[1]) + tl.cast(first, tl.int64) * strides[2]
    inside = (first + tl.arange(0, tile.shape[0]) < n_rows)[:, None]
    if tile.shape[1] != D_HEAD:
        inside = inside & (tl.arange(0, tile.shape[1]) < D_HEAD)[None, :]
    offsets = block_offsets(strides[2], tile.shape[0], tile.shape[1])
    tl.store(vectors + start + offsets, tile.to(vectors.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def probabilities(
    products,
    lse,
    queries,
    keys,
    length,
    inputs,
    strides,
    sizes,
    place,
    scale,
    CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
):
    """P = 2^(log2(e)·(scale·products + bias) − lse), lse in base 2; 0 where not allowed.

    Of tiles that are not EDGE neither the length nor the causal order forbids a cell.
    """
    exponent = products * (scale * LOG2E)
    inside = (queries < sizes.n_queries) & (keys < sizes.n_keys)
    if inputs.bias is not None:
        added = load_cells(inputs.bias, strides.bias, place[0], place[1], queries, keys, inside)
        exponent += added.to(tl.float32) * LOG2E
    probs = tl.math.exp2(exponent - lse)
    if EDGE:
        allowed = keys < length
        if CAUSAL:
            allowed = allowed & (keys <= queries + (sizes.n_keys - sizes.n_queries))
        probs = tl.where(allowed, probs, 0.0)
    if inputs.mask is not None:
        seen = load_cells(inputs.mask, strides.mask, place[0], place[1], queries, keys, inside)
        probs = tl.where(seen != 0, probs, 0.0)
    return probs


@triton.jit
@no_type_check
def relevance_of(probs, probs_gradient, KIND: tl.constexpr):
    """f(P ∘ dP) of each cell: itself (KIND 1), its positive part (2), or its absolute value (3)."""
    relevance = probs * probs_gradient
    if KIND == 2:
        relevance = tl.maximum(relevance, 0.0)
    elif KIND == 3:
        relevance = tl.abs(relevance)
    return relevance


@triton.jit
@no_type_check
def first_queries(first_key, sizes, KEYS: tl.constexpr, QUERIES: tl.constexpr):
    """In causal order: the whole blocks of queries from which on any, and all, of KEYS are seen."""
    ahead = sizes.n_keys - sizes.n_queries
    some = tl.maximum(first_key - ahead, 0) // QUERIES * QUERIES
    every = tl.maximum(first_key + KEYS - 1 - ahead, 0)
    return some, (every + QUERIES - 1) // QUERIES * QUERIES
