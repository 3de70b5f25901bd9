"""Which key each query may look at: lengths, mask and causal order as one boolean mask."""

import math

import torch
from torch import Tensor

from minibert.quantities import Bool, Float, Int

__all__ = [
    "Window",
    "additive_mask",
    "allowed_keys",
    "near_keys",
    "open_dead_rows",
    "positive_scale",
    "wide",
    "with_alibi",
]

#: Keys before and after its own position that a query may see; None: as many as there are.
Window = tuple[int | None, int | None]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of lse and statistics: float64 for float64, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def allowed_keys(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    window: Window | None = None,
    prefix: Int[Tensor, " batch"] | None = None,
) -> Bool[Tensor, "#batch #head #query #key"] | None:
    """True where attention is allowed by everything given; None when everything is allowed.

    Positions are aligned to the end: query i stands at position K − Q + i.
    """
    (Q, K), device = (query.shape[2], key.shape[2]), query.device
    allowed = mask
    if lengths is not None:
        real = torch.arange(K, device=device) < lengths[:, None, None, None]
        allowed = real if allowed is None else allowed & real
    # A single query at the end sees every key.
    if (causal and Q > 1) or window is not None:
        positions = torch.arange(K - Q, K, device=device)[:, None]
        near = near_keys(positions, K, causal=causal, window=window, prefix=prefix)
        if near is not None:
            allowed = near if allowed is None else allowed & near
    return allowed


def near_keys(
    positions: Int[Tensor, "... query 1"],
    n_keys: int,
    *,
    causal: bool,
    window: Window | None,
    prefix: Int[Tensor, " batch"] | None = None,
) -> Bool[Tensor, "#batch 1 query key"] | None:
    """True where a query at its position may look by causal order, window and prefix; None: all.

    A window (before, after) lets a query at p see the keys p − before … p + after (Beltagy et al.
    2020, section 3.1; Jiang et al. 2023, section 2). The keys of a prefix are seen in spite of
    causal order, by queries whose window they are in (Raffel et al. 2020, section 3.2.1).
    """
    keys = torch.arange(n_keys, device=positions.device)
    near: Tensor | None = None
    if causal:
        near = keys <= positions
        if prefix is not None:
            near = near | (keys < prefix[:, None, None, None])
    before, after = window or (None, None)
    if before is not None:
        inside = keys >= positions - before
        near = inside if near is None else near & inside
    if after is not None and (prefix is not None or not causal):
        inside = keys <= positions + after
        near = inside if near is None else near & inside
    return near if near is None or near.ndim == 4 else near[None, None]


def with_alibi(
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    ends: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "#batch #head #query #key"] | None:
    """The bias and −slope · |position of the query − position of the key| (Press et al. 2022).

    `ends` are the keys that each sentence's queries are aligned to the end of; None: all keys.
    """
    if alibi_slopes is None:
        return bias
    (Q, K), device = (query.shape[2], key.shape[2]), query.device
    positions = torch.arange(K - Q, K, device=device)[:, None]
    if ends is not None:
        positions = positions + (ends - K)[:, None, None, None]
    distance = (positions - torch.arange(K, device=device)).abs()
    slopes = alibi_slopes if alibi_slopes.ndim == 2 else alibi_slopes[None]
    added = (-slopes.to(wide(query.dtype))[..., None, None] * distance).to(query.dtype)
    return added if bias is None else added + bias


def open_dead_rows(
    allowed: Bool[Tensor, "#batch #head #query #key"],
) -> tuple[Bool[Tensor, "#batch #head #query #key"], Bool[Tensor, "#batch #head #query 1"] | None]:
    """The mask with its dead rows opened, and which rows live; None when all are seen to.

    A row without an allowed key has no softmax: −inf throughout gives NaN, forward and backward.
    Whoever computes lets such a row see everything and puts 0 (lse: −inf) in its place at the end.
    """
    # amax over bytes is some 20 x faster than any() over booleans.
    alive = allowed.view(torch.uint8).amax(dim=-1, keepdim=True).bool()
    # In a graph no number is looked at.
    if not torch.compiler.is_compiling() and bool(alive.all()):
        return allowed, None
    return allowed | ~alive, alive


def additive_mask(
    allowed: Bool[Tensor, "#batch #head #query #key"], dtype: torch.dtype
) -> Float[Tensor, "#batch #head #query #key"]:
    """What is added to the scores: 0 where allowed, −inf elsewhere, in `dtype`."""
    return torch.where(allowed, 0.0, -math.inf).to(dtype)


def positive_scale(
    query: Float[Tensor, "batch head query d_head"], scale: float
) -> tuple[Float[Tensor, "batch head query d_head"], float]:
    """A query and a scale above 0 that give the same scores.

    torch's kernels mask before they scale: −inf times a scale of 0 or below is no mask.
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale < 0 else (query * 0, 1.0)
