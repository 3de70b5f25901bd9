"""The online softmax: a tile of scores updates the maximum, the sums and the argmax of its rows.

For each row, m is the largest score so far, in base 2, and t = s − m:

    l = sum 2^t        W = sum 2^t·t        z·l = sum 2^t·value

When the maximum changes from m to m', a = 2^(m − m'), W <- a·(W + (m − m')·l), l <- a·l
(Milakov & Gimelshein 2018, with W added). Then, in nats, entropy = ln 2·(log2 l − W/l).

`no_type_check` keeps the shape checker of the tests out of functions that Triton compiles.
"""

from typing import no_type_check

import triton
import triton.language as tl

from minibert.kernels.fused.primitives import INTERPRETED, NOTHING


@triton.jit
@no_type_check
def numbered(scores, member, MEMBERS: tl.constexpr):
    """The scores with `member` (below MEMBERS, a power of two) in place of their last bits."""
    if INTERPRETED:
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
            scores, 1, return_indices=True, return_indices_tie_break_left=INTERPRETED
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
    if INTERPRETED:
        return tile
    else:
        return tl.inline_asm_elementwise("", "=f,0", [tile], dtype=tl.float32, is_pure=True, pack=1)
