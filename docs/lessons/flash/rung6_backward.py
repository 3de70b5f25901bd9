"""Rung 6: the backward. Probs are computed again, tile by tile, from lse alone.

With P = exp(s − lse) and δ = sum dz·z − d lse of each query (Dao 2023, algorithm 2):

    dP = dz·valueᵀ       dS = P ∘ (dP − δ)
    d value = Pᵀ·dz      d key = dSᵀ·query / sqrt(d_head)      d query = dS·key / sqrt(d_head)

minibert check docs/lessons/flash/rung6_backward.py:attention
"""

import torch
import triton
import triton.language as tl
from rung5_statistics import attention as forward

from minibert.kernels.fused.primitives import LOG2E, block_offsets, load_rows

TILE = 64


@triton.jit
def rows_at(vectors, start, first, N, D: tl.constexpr, TILE: tl.constexpr):
    """A tile of vectors of one head, from its row `first` on; 0 beyond the last row."""
    offsets = block_offsets(D, TILE, D)
    return load_rows(vectors + (start + first) * D, offsets, N - first, D, TILE, D, True)


@triton.jit
def store_at(vectors, start, first, tile, N, D: tl.constexpr, TILE: tl.constexpr):
    """Writes a tile of vectors."""
    inside = (first + tl.arange(0, TILE) < N)[:, None]
    there = vectors + (start + first) * D + block_offsets(D, TILE, D)
    tl.store(there, tile.to(vectors.dtype.element_ty), mask=inside)


@triton.jit
def probs_and_d_scores(
    query_tile, dz_tile, key_tile, value_tile, lse, delta, start, first, left, n_real, N,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """P and dS of a tile, (query, key)."""
    TILE: tl.constexpr = query_tile.shape[0]
    rows, keys = first + tl.arange(0, TILE), left + tl.arange(0, TILE)
    allowed = (keys[None, :] < n_real) & ((keys[None, :] <= rows[:, None]) | (not CAUSAL))
    lse_rows = tl.load(lse + start + rows, mask=rows < N, other=0.0)[:, None]
    delta_rows = tl.load(delta + start + rows, mask=rows < N, other=0.0)[:, None]
    scores = tl.dot(query_tile, tl.trans(key_tile), input_precision="ieee")
    exponent = (scores / query_tile.shape[1] ** 0.5 - lse_rows) * LOG2E
    probs = tl.where(allowed, tl.exp2(exponent), 0.0)
    d_probs = tl.dot(dz_tile, tl.trans(value_tile), input_precision="ieee")
    return probs, probs * (d_probs - delta_rows)


@triton.jit
def key_kernel(
    query, key, value, dz, lse, delta, lengths, d_key, d_value, H, N,
    CAUSAL: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """d key and d value of a tile of keys, which stays; the queries come by."""
    left, head = tl.program_id(0) * TILE, tl.program_id(1)
    start = head.to(tl.int64) * N
    n_real = N if lengths is None else tl.load(lengths + head // H).to(tl.int32)
    key_tile, value_tile = (
        rows_at(key, start, left, N, D, TILE),
        rows_at(value, start, left, N, D, TILE),
    )
    by_key, by_value = tl.zeros([TILE, D], tl.float32), tl.zeros([TILE, D], tl.float32)
    for first in range(left if CAUSAL else 0, N, TILE):
        query_tile, dz_tile = (
            rows_at(query, start, first, N, D, TILE),
            rows_at(dz, start, first, N, D, TILE),
        )
        probs, d_scores = probs_and_d_scores(
            query_tile, dz_tile, key_tile, value_tile, lse, delta, start, first, left, n_real, N,
            CAUSAL,
        )  # fmt: skip
        by_value += tl.dot(tl.trans(probs.to(dz_tile.dtype)), dz_tile, input_precision="ieee")
        d_scores = tl.trans(d_scores.to(query_tile.dtype))
        by_key += tl.dot(d_scores, query_tile, input_precision="ieee")
    store_at(d_key, start, left, by_key / D**0.5, N, D, TILE)
    store_at(d_value, start, left, by_value, N, D, TILE)


@triton.jit
def query_kernel(
    query, key, value, dz, lse, delta, lengths, d_query, H, N,
    CAUSAL: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """d query of a tile of queries, which stays; the keys come by, as in the forward."""
    first, head = tl.program_id(0) * TILE, tl.program_id(1)
    start = head.to(tl.int64) * N
    n_real = N if lengths is None else tl.load(lengths + head // H).to(tl.int32)
    query_tile, dz_tile = (
        rows_at(query, start, first, N, D, TILE),
        rows_at(dz, start, first, N, D, TILE),
    )
    by_query = tl.zeros([TILE, D], tl.float32)
    for left in range(0, min(N, first + TILE) if CAUSAL else N, TILE):
        key_tile, value_tile = (
            rows_at(key, start, left, N, D, TILE),
            rows_at(value, start, left, N, D, TILE),
        )
        _, d_scores = probs_and_d_scores(
            query_tile, dz_tile, key_tile, value_tile, lse, delta, start, first, left, n_real, N,
            CAUSAL,
        )  # fmt: skip
        by_query += tl.dot(d_scores.to(key_tile.dtype), key_tile, input_precision="ieee")
    store_at(d_query, start, first, by_query / D**0.5, N, D, TILE)


class Attention(torch.autograd.Function):
    """z and lse with their gradients; what is kept for the backward is O(N)."""

    @staticmethod
    def forward(ctx, query, key, value, lengths, causal):
        found = forward(query, key, value, lengths, causal)
        ctx.save_for_backward(query, key, value, lengths, found["z"], found["lse"])
        ctx.causal = causal
        return found["z"], found["lse"]

    @staticmethod
    def backward(ctx, dz, d_lse):
        *vectors, lengths, z, lse = ctx.saved_tensors
        B, H, N, D = z.shape
        query, key, value, dz = (one.contiguous() for one in (*vectors, dz))
        delta = (dz.float() * z.float()).sum(-1) - d_lse
        d_query, d_key, d_value = (torch.empty_like(one) for one in (query, key, value))
        given, grid = (query, key, value, dz, lse, delta, lengths), (triton.cdiv(N, TILE), B * H)
        key_kernel[grid](*given, d_key, d_value, H, N, ctx.causal, D, TILE)
        query_kernel[grid](*given, d_query, H, N, ctx.causal, D, TILE)
        return d_query, d_key, d_value, None, None


def attention(query, key, value, lengths, causal):
    """What `minibert check` calls; where query, key or value require gradients, z has them."""
    z, lse = Attention.apply(query, key, value, lengths, causal)
    return {"z": z, "lse": lse}
