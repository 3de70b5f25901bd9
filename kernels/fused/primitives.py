"""The jitted pieces that the forward kernels are made of, each a formula or a load.

Place: called by the kernels of `forward.py`, `one_tile.py` and `columns.py`.

Scores are in base 2 here: score·log2(e), so that exp(s) is 2 to their power, which is what the
hardware has an instruction for. Per row, with m the largest score so far and t = s − m:

    l = sum 2^t        W = sum 2^t·t        z·l = sum 2^t·value

and when the maximum moves from m to m', a = 2^(m − m'), W <- a·(W + (m − m')·l), l <- a·l
(Milakov & Gimelshein 2018, with W beside it). Then, in nats, entropy = ln 2·(log2 l − W/l).
What is masked is NOTHING and not −inf: 0·(−inf) in W would be NaN.

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

import os
from typing import no_type_check

import triton
import triton.language as tl

__all__ = [
    "LN2",
    "LOG2E",
    "NOTHING",
    "block_offsets",
    "fold_scores",
    "head_start",
    "head_view",
    "key_of_best",
    "key_start",
    "load_rows",
    "masked_scores",
    "no_best",
    "program_place",
    "row_start",
    "settled",
]

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
#: The score of a masked cell; what is lower than half of it is no score.
NOTHING = tl.constexpr(-1.0e30)
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
@no_type_check
def program_place(n_blocks, n_heads, n_together, HEAVY_FIRST: tl.constexpr):
    """Which (batch · head) and which block of rows this program has.

    The programs of `n_together` heads run side by side, so that their keys stay in the L2 cache.
    Among them the last blocks come first, which are the longest where attention is causal.
    """
    program = tl.program_id(0)
    first_head = program // (n_blocks * n_together) * n_together
    within = program - first_head * n_blocks
    n_here = tl.minimum(n_together, n_heads - first_head)
    block = within // n_here
    if HEAVY_FIRST:
        block = n_blocks - 1 - block
    return first_head + within % n_here, block


@triton.jit
@no_type_check
def head_start(strides, batch, head):
    """Where the numbers of one head begin, in elements, counted in 64 bits."""
    return tl.cast(batch, tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[1]


@triton.jit
@no_type_check
def block_offsets(stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the cells of a tile of vectors are, from its first cell."""
    return tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]


@triton.jit
@no_type_check
def load_rows(
    vectors,
    offsets,
    n_rows,
    D_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGE: tl.constexpr,
):
    """A (ROWS, COLUMNS) tile of vectors, the columns beyond d_head 0.

    With EDGE the rows from n_rows on are 0 too; without, all of them are there.
    """
    inside_row = (tl.arange(0, ROWS) < n_rows)[:, None]
    inside_column = (tl.arange(0, COLUMNS) < D_HEAD)[None, :]
    if EDGE and D_HEAD != COLUMNS:
        return tl.load(vectors + offsets, mask=inside_row & inside_column, other=0.0)
    elif EDGE:
        return tl.load(vectors + offsets, mask=inside_row, other=0.0)
    elif D_HEAD != COLUMNS:
        return tl.load(vectors + offsets, mask=inside_column, other=0.0)
    else:
        return tl.load(vectors + offsets)


@triton.jit
@no_type_check
def load_cells(matrix, strides, place, n_heads, rows, columns, inside):
    """The cells of a mask or bias at rows and columns, whose shapes go together; 0 outside."""
    begin = head_start(strides, place // n_heads, place % n_heads)
    cells = tl.cast(rows, tl.int64) * strides[2] + tl.cast(columns, tl.int64) * strides[3]
    return tl.load(matrix + begin + cells, mask=inside, other=0)


@triton.jit
@no_type_check
def head_view(inputs, strides, sizes, place):
    """Where one head's (query, key, value) begin, and its numbers of (queries, keys, real keys).

    Packed sentences have `starts`: the first row of each, and one past the last row of all.
    """
    batch, head = place // sizes.n_heads, place % sizes.n_heads
    query = inputs.query + head_start(strides.query, batch, head)
    key = inputs.key + head_start(strides.key, batch, head)
    value = inputs.value + head_start(strides.value, batch, head)
    n_queries, n_keys = sizes.n_queries, sizes.n_keys
    if inputs.starts is not None:
        start = tl.load(inputs.starts + batch)
        n_queries = (tl.load(inputs.starts + batch + 1) - start).to(tl.int32)
        n_keys = n_queries
        query += start * strides.query[2]
        key += start * strides.key[2]
        value += start * strides.value[2]
    n_real = n_keys
    if inputs.lengths is not None:
        n_real = tl.minimum(n_keys, tl.load(inputs.lengths + batch).to(tl.int32))
    return (query, key, value), (n_queries, n_keys, n_real)


@triton.jit
@no_type_check
def row_start(inputs, sizes, place):
    """Where the outputs of one head begin that have one number a row: (batch, head, query)."""
    begin = tl.cast(place, tl.int64) * sizes.n_queries
    if inputs.starts is not None:
        head = tl.cast(place % sizes.n_heads, tl.int64)
        begin = head * sizes.n_queries + tl.load(inputs.starts + place // sizes.n_heads)
    return begin


@triton.jit
@no_type_check
def key_start(inputs, sizes, place):
    """Where the sums of one head begin: (batch, head, key)."""
    begin = tl.cast(place, tl.int64) * sizes.n_keys
    if inputs.starts is not None:
        begin = row_start(inputs, sizes, place)
    return begin


@triton.jit
@no_type_check
def masked_scores(
    scores, inputs, strides, place, n_heads, rows, columns, counts, CAUSAL: tl.constexpr
):
    """The scores in base 2 with bias added, NOTHING where the key may not be seen.

    rows and columns have shapes that go together: a tile's, or one key for each row.
    """
    n_queries, n_keys, n_real = counts
    allowed = columns < n_real
    if CAUSAL:
        allowed = allowed & (columns <= rows + (n_keys - n_queries))
    inside = allowed & (rows < n_queries)
    if inputs.bias is not None:
        bias = load_cells(inputs.bias, strides.bias, place, n_heads, rows, columns, inside)
        scores += bias.to(tl.float32) * LOG2E
    if inputs.mask is not None:
        mask = load_cells(inputs.mask, strides.mask, place, n_heads, rows, columns, inside)
        allowed = allowed & (mask != 0)
    return tl.where(allowed, scores, NOTHING)


@triton.jit
@no_type_check
def numbered(scores, member, MEMBERS: tl.constexpr):
    """The scores with `member` (below MEMBERS, a power of two) in place of their last bits."""
    if _INTERPRETED:
        bits = (scores.to(tl.int32, bitcast=True) & -MEMBERS) | member
        return bits.to(tl.float32, bitcast=True)
    else:
        # Written out because ptxas makes two instructions of it otherwise.
        return tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xEA;",
            "=f,f,r,r",
            [scores, -MEMBERS, member],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
@no_type_check
def by_thread(tile):
    """A tile's columns as (column of a thread, thread, 2): what each of four threads holds.

    So a matrix instruction leaves a row. What is reduced over the first and the last axis needs no
    other thread.
    """
    return tl.reshape(tile, (tile.shape[0], tile.shape[1] // 8, 4, 2))


@triton.jit
@no_type_check
def no_best(BEST: tl.constexpr, BLOCK_M: tl.constexpr):
    """What `fold_scores` starts from: the largest scores so far, and where they are."""
    if BEST == "near":
        return tl.full((BLOCK_M, 4), NOTHING, tl.float32), tl.zeros((BLOCK_M, 4), tl.int32)
    else:
        return tl.full((BLOCK_M,), NOTHING, tl.float32), tl.zeros((BLOCK_M,), tl.int32)


@triton.jit
@no_type_check
def better(scores, first, best, BEST: tl.constexpr):
    """The largest score of each row of a tile, and `best` with it.

    A maximum that carries its column costs three instructions a score, one alone costs one. So
    with BEST = "near" the last bits of a score say which of its thread's it is, as if it were
    rounded a little, and each thread keeps its best score and that one's tile.
    """
    top, place = best
    if BEST == "near":
        MEMBERS: tl.constexpr = scores.shape[1] // 4
        column = tl.arange(0, 4 * MEMBERS)
        member = column // 8 * 2 + column % 2
        tops = by_thread(numbered(scores, member[None, :], MEMBERS))
        tops = tl.max(tl.max(tops, 1), 2)
        place = tl.where(tops > top, first, place)
        return tl.max(tops, 1), (tl.maximum(top, tops), place)
    elif BEST == "exact":
        largest, column = tl.max(
            scores, 1, return_indices=True, return_indices_tie_break_left=_INTERPRETED
        )
        place = tl.where(largest > top, first + column, place)
        return largest, (tl.maximum(top, largest), place)
    else:
        return tl.max(tl.max(tl.max(by_thread(scores), 1), 2), 1), best


@triton.jit
@no_type_check
def key_of_best(best, BEST: tl.constexpr, BLOCK_N: tl.constexpr):
    """The key of each row's largest score among those that `better` saw."""
    top, place = best
    if BEST == "near":
        MEMBERS: tl.constexpr = BLOCK_N // 4
        member = top.to(tl.int32, bitcast=True) & (MEMBERS - 1)
        key = place + member // 2 * 8 + tl.arange(0, 4)[None, :] * 2 + member % 2
        return tl.max(tl.where(top == tl.max(top, 1)[:, None], key, 0), 1)
    else:
        return place


@triton.jit
@no_type_check
def fold_scores(
    scores, factor, first, largest, total, product, best, WITH_PRODUCT: tl.constexpr, BEST
):
    """The weights 2^t of a tile, a for what came before, and the rows' m, l, W, argmax with it.

    scores · factor is in base 2; `first` is the key of the tile's first column. l and W are four
    parts of sums, one of each thread that has a part of the row.
    """
    block_largest, best = better(scores, first, best, BEST)
    new_largest = tl.maximum(largest, block_largest * factor)
    shifted = scores * factor - new_largest[:, None]
    weights = tl.math.exp2(shifted)
    shrink = tl.math.exp2(largest - new_largest)
    if WITH_PRODUCT:
        moved = product + (largest - new_largest)[:, None] * total
        product = moved * shrink[:, None] + tl.sum(tl.sum(by_thread(weights * shifted), 1), 2)
    total = total * shrink[:, None] + tl.sum(tl.sum(by_thread(weights), 1), 2)
    return weights, shrink, new_largest, total, product, best


@triton.jit
@no_type_check
def settled(tile):
    """The tile itself, as an instruction of no length that only a finished product can enter.

    Otherwise Triton leaves the product of weights and values under way into the next block, where
    ptxas finds its registers touched and makes every matrix instruction wait for the one before
    (its note C7515; triton 3.6).
    """
    if _INTERPRETED:
        return tile
    else:
        return tl.inline_asm_elementwise("", "=f,0", [tile], dtype=tl.float32, is_pure=True, pack=1)
