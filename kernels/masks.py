"""Which key each query may look at: lengths, mask and causal order as one boolean mask."""

import math

import torch
from torch import Tensor

from minibert.quantities import Bool, Float, Int

__all__ = ["additive_mask", "allowed_keys", "open_dead_rows", "positive_scale"]


def allowed_keys(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
) -> Bool[Tensor, "#batch #head #query #key"] | None:
    """True where attention is allowed by everything given; None when everything is allowed.

    causal is aligned to the end: query i stands at position K − Q + i and sees keys up to there.
    """
    (Q, K), device = (query.shape[2], key.shape[2]), query.device
    allowed = mask
    if lengths is not None:
        real = torch.arange(K, device=device) < lengths[:, None, None, None]
        allowed = real if allowed is None else allowed & real
    # A single query at the end sees every key.
    if causal and Q > 1:
        past = torch.ones(1, 1, Q, K, dtype=torch.bool, device=device).tril(K - Q)
        allowed = past if allowed is None else allowed & past
    return allowed


def open_dead_rows(
    allowed: Bool[Tensor, "#batch #head #query #key"],
) -> tuple[Bool[Tensor, "#batch #head #query #key"], Bool[Tensor, "#batch #head #query 1"] | None]:
    """The mask with its dead rows opened, and which rows live; None when all do.

    A row without an allowed key has no softmax: −inf throughout gives NaN, forward and backward.
    Whoever computes lets such a row see everything and puts 0 (lse: −inf) in its place at the end.
    """
    # amax over bytes is some 20 x faster than any() over booleans.
    alive = allowed.view(torch.uint8).amax(dim=-1, keepdim=True).bool()
    if bool(alive.all()):
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
