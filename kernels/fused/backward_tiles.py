"""The jitted pieces of the backward of attention: P of a tile, relevance of a tile, storing.

`backward_keys.py` has the formulas, `launch.py` the named tuples, `masks.py` the scores and who
sees whom. A tile is (query, key). In programs that own keys it is transposed, (key, query): then
the tile is the left operand, which the matrix instructions take from registers. `rows` and
`columns` are positions of queries and keys with an axis of size 1 added, so the same lines work for
both forms.

lse (in base 2), δ and weights lie filled: each head of each sentence has whole blocks of FILL
queries, so that they are read without a mask. Where a row is dead or not there, lse is so large
that P is 0.

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.masks import seers, shaped_score, sight, tanh
from minibert.kernels.fused.primitives import block_offsets, head_start, load_cells, load_rows

#: The number of queries is rounded up to a multiple of this; every tile size divides it.
FILL = tl.constexpr(128)


@triton.jit
@no_type_check
def head_rows(vectors, strides, starts, batch, head):
    """Where the vectors of one head begin; `starts` are those of packed sentences, or None."""
    begin = vectors + head_start(strides, batch, head)
    if starts is not None:
        begin += tl.load(starts + batch) * strides[2]
    return begin


@triton.jit
@no_type_check
def filled_start(inputs, sizes, batch, head):
    """Where lse, δ and weights of one head begin.

    Of packed sentences sentence b begins at the block start // FILL + b: as blocks are rounded up,
    each sentence needs one more than its tokens fill, at most.
    """
    if inputs.starts is None:
        return tl.cast(batch * sizes.n_heads + head, tl.int64) * sizes.n_filled
    else:
        block = tl.load(inputs.starts + batch) // FILL + batch
        return tl.cast(head, tl.int64) * sizes.n_filled + block * FILL


@triton.jit
@no_type_check
def rows_from(
    vectors,
    stride,
    first,
    n_rows,
    D_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGE: tl.constexpr,
):
    """ROWS vectors of a head from `first` on, (ROWS, COLUMNS); 0 beyond D_HEAD.

    With EDGE 0 beyond n_rows as well; without, all of them are there.
    """
    # The first row in 64 bits: a million rows times their stride do not fit 32.
    start = tl.cast(first, tl.int64) * stride
    offsets = block_offsets(stride, ROWS, COLUMNS)
    return load_rows(vectors + start, offsets, n_rows - first, D_HEAD, ROWS, COLUMNS, EDGE)


@triton.jit
@no_type_check
def store_tile(vectors, stride, tile, first, n_rows, D_HEAD: tl.constexpr):
    """Rounds a (ROWS, COLUMNS) tile and writes the part of it inside n_rows and D_HEAD."""
    start = tl.cast(first, tl.int64) * stride
    inside = (first + tl.arange(0, tile.shape[0]) < n_rows)[:, None]
    if tile.shape[1] != D_HEAD:
        inside = inside & (tl.arange(0, tile.shape[1]) < D_HEAD)[None, :]
    offsets = block_offsets(stride, tile.shape[0], tile.shape[1])
    tl.store(vectors + start + offsets, tile.to(vectors.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def probabilities(
    products,
    lse,
    rows,
    columns,
    counts,
    inputs,
    strides,
    sizes,
    batch,
    head,
    scale,
    CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
):
    """P = 2^(score − lse), both in base 2; 0 where the query may not look at the key.

    Of tiles that are not EDGE no position forbids a cell, which only the mask in memory can.
    """
    scores = shaped_score(
        products, scale, inputs, strides, sizes, batch, head, rows, columns, counts, CAUSAL
    )
    probs = tl.math.exp2(scores - lse)
    if EDGE:
        seen = in_sight(inputs, sizes, batch, rows, columns, counts, CAUSAL)
        probs = tl.where(seen, probs, 0.0)
    if inputs.mask is not None:
        inside = (columns < counts[2]) & (rows < counts[0])
        seen = load_cells(inputs.mask, strides.mask, batch, head, rows, columns, inside)
        probs = tl.where(seen != 0, probs, 0.0)
    return probs


@triton.jit
@no_type_check
def in_sight(inputs, sizes, batch, rows, columns, counts, CAUSAL: tl.constexpr):
    """True where the position of a query lets it look at a key.

    In a transposed tile a thread has more queries than keys, and the limits of its keys stay the
    same from turn to turn. There keys beyond the length count as real.
    """
    TRANSPOSED: tl.constexpr = rows.shape[0] == 1
    if TRANSPOSED:
        low, high = seers(inputs, sizes, batch, columns, counts, CAUSAL)
        seen = rows >= low
        if sizes.before is not None:
            seen = seen & (rows < high)
    else:
        low, high = sight(inputs, sizes, batch, rows, counts, CAUSAL)
        seen = columns < high
        if sizes.before is not None:
            seen = seen & (columns >= low)
    return seen


@triton.jit
@no_type_check
def cap_slope(score_gradient, products, scale, inputs):
    """dS past the soft cap c·tanh(s/c), whose slope is 1 − tanh²."""
    if inputs.soft_cap is not None:
        capped = tanh(products * (scale / inputs.soft_cap))
        score_gradient *= 1.0 - capped * capped
    return score_gradient


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
def whole_query_blocks(span, n_queries, BLOCK: tl.constexpr):
    """The range of `masks.query_range` with its inner limits at whole blocks, counted from 0.

    Positions forbid cells in begin … full and in whole … stop alone.
    """
    begin, full, whole, stop = span
    begin = begin // BLOCK * BLOCK
    full = (full + BLOCK - 1) // BLOCK * BLOCK
    # Behind the last query P is 0, so the last block is a whole one, however few it has.
    filled = tl.where(whole == n_queries, whole + (BLOCK - 1), whole)
    whole = filled // BLOCK * BLOCK
    # Without a block that sees everything, all of them are of the last kind.
    nothing = full > whole
    full, whole = tl.where(nothing, begin, full), tl.where(nothing, begin, whole)
    return begin, full, whole, tl.maximum(stop, whole)


@triton.jit
@no_type_check
def turn_of(at, full, whole, TWO_EDGES: tl.constexpr):
    """The block of a turn of the loop over both edges, which leaves out full … whole."""
    if TWO_EDGES:
        at += tl.where(at >= full, whole - full, 0)
    return at
