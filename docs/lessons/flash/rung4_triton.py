"""Rung 4: the same tiles in Triton. One program has 64 queries of one head.

Scores are in base 2, because a GPU has an instruction for 2^x. On a CPU the file runs in Triton's
interpreter, on a GPU the same file is compiled.

minibert check docs/lessons/flash/rung4_triton.py:attention
"""

import torch
import triton
import triton.language as tl

TILE = 64
LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(-1e30)


@triton.jit
def kernel(
    query,
    key,
    value,
    lengths,
    z,
    lse,
    H,
    N,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
):
    """z and lse of a tile of queries."""
    first, head = tl.program_id(0) * TILE, tl.program_id(1)
    rows, columns = first + tl.arange(0, TILE), tl.arange(0, D)
    start = head.to(tl.int64) * N
    here = (start + rows[:, None]) * D + columns
    query_tile = tl.load(query + here, mask=rows[:, None] < N, other=0.0)
    n_real = N if lengths is None else tl.load(lengths + head // H).to(tl.int32)
    largest, total = tl.full([TILE], NOTHING, tl.float32), tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, D], tl.float32)
    for left in range(0, min(N, first + TILE) if CAUSAL else N, TILE):
        keys = left + tl.arange(0, TILE)
        there = (start + keys[:, None]) * D + columns
        key_tile = tl.load(key + there, mask=keys[:, None] < N, other=0.0)
        value_tile = tl.load(value + there, mask=keys[:, None] < N, other=0.0)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision="ieee")
        allowed = (keys[None, :] < n_real) & ((keys[None, :] <= rows[:, None]) | (not CAUSAL))
        scores = tl.where(allowed, scores * (LOG2E / D**0.5), NOTHING)
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.where(allowed, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(value_tile.dtype)
        mixed = mixed * shrink[:, None] + tl.dot(weights, value_tile, input_precision="ieee")
        largest = higher
    result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(z + here, result.to(z.dtype.element_ty), mask=rows[:, None] < N)
    tl.store(lse + start + rows, (largest + tl.log2(total)) * LN2, mask=rows < N)


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls: it lays out memory and launches. d_head is a power of two."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    B, H, N, D = query.shape
    z, lse = torch.empty_like(query), query.new_empty((B, H, N), dtype=torch.float32)
    kernel[(triton.cdiv(N, TILE), B * H)](query, key, value, lengths, z, lse, H, N, causal, D, TILE)
    return {"z": z, "lse": lse}
