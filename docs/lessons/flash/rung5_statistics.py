"""Rung 5: statistics in the same pass, with the helpers of the real kernel.

`fold_scores` (kernels/fused/fold.py) is the online softmax of rung 4 with one sum more:
with t = s − m in base 2, W = sum 2^t·t. Then entropy = ln 2·(log2 l − W/l), and no score is read
again. Largest score, largest prob and argmax come from the maximum that is there anyway.

minibert check docs/lessons/flash/rung5_statistics.py:attention
"""

import torch
import triton
import triton.language as tl

from minibert.kernels.fused.fold import fold_scores, key_of_best, no_best
from minibert.kernels.fused.primitives import LN2, LOG2E, NOTHING, block_offsets, load_rows

TILE = 64


@triton.jit
def kernel(
    query, key, value, lengths, z, lse, row_max, max_prob, entropy, argmax,
    H, N, CAUSAL: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """z and statistics of a tile of queries."""
    first, head = tl.program_id(0) * TILE, tl.program_id(1)
    start = head.to(tl.int64) * N
    rows, offsets = first + tl.arange(0, TILE), block_offsets(D, TILE, D)
    n_real = N if lengths is None else tl.load(lengths + head // H).to(tl.int32)
    here = (start + first) * D
    query_tile = load_rows(query + here, offsets, N - first, D, TILE, D, True)
    largest, best = tl.full([TILE], NOTHING, tl.float32), no_best("exact", TILE)
    # Four parts of each sum: as many threads hold a row of a tile, and none waits for another.
    total, product = tl.zeros([TILE, 4], tl.float32), tl.zeros([TILE, 4], tl.float32)
    mixed = tl.zeros([TILE, D], tl.float32)
    for left in range(0, min(N, first + TILE) if CAUSAL else N, TILE):
        there = (start + left) * D
        key_tile = load_rows(key + there, offsets, N - left, D, TILE, D, True)
        value_tile = load_rows(value + there, offsets, N - left, D, TILE, D, True)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision="ieee")
        keys = left + tl.arange(0, TILE)
        allowed = (keys[None, :] < n_real) & ((keys[None, :] <= rows[:, None]) | (not CAUSAL))
        scores = tl.where(allowed, scores * (LOG2E / D**0.5), NOTHING)
        weights, shrink, largest, total, product, best = fold_scores(
            scores, 1.0, left, largest, total, product, best, True, "exact"
        )
        weights = weights.to(value_tile.dtype)
        mixed = mixed * shrink[:, None] + tl.dot(weights, value_tile, input_precision="ieee")
    alive, inside, at = largest > 0.5 * NOTHING, rows < N, start + rows
    total, product = tl.sum(total, 1), tl.sum(product, 1)
    nats = tl.maximum((tl.log2(total) - product / total) * LN2, 0.0)
    result = tl.where(alive[:, None], mixed / total[:, None], 0.0).to(z.dtype.element_ty)
    tl.store(z + here + offsets, result, mask=inside[:, None])
    nowhere = float("-inf")
    tl.store(lse + at, tl.where(alive, (largest + tl.log2(total)) * LN2, nowhere), mask=inside)
    tl.store(row_max + at, tl.where(alive, largest * LN2, nowhere), mask=inside)
    tl.store(max_prob + at, tl.where(alive, 1.0 / total, 0.0), mask=inside)
    tl.store(entropy + at, tl.where(alive, nats, 0.0), mask=inside)
    tl.store(argmax + at, tl.where(alive, key_of_best(best, "exact", TILE), -1), mask=inside)


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: it lays out memory and launches. d_head is a power of two."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    B, H, N, D = query.shape
    names = ("lse", "row_max", "max_prob", "entropy")
    found = {"z": torch.empty_like(query)}
    found |= {name: query.new_empty((B, H, N), dtype=torch.float32) for name in names}
    found["argmax"] = query.new_empty((B, H, N), dtype=torch.int64)
    kernel[(triton.cdiv(N, TILE), B * H)](
        query, key, value, lengths, *found.values(), H, N, causal, D, TILE
    )
    return found
