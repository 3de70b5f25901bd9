"""Attention step by step in plain torch: any dtype, any device, differentiable.

A model calls the three functions below where scores or probs are edited.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.call import Call
from minibert.kernels.masks import (
    Window,
    additive_mask,
    allowed_keys,
    open_dead_rows,
    wide,
    with_alibi,
)
from minibert.kernels.packing import sentence_by_sentence
from minibert.kernels.requests import Want
from minibert.kernels.row_statistics import statistics_of_rows
from minibert.quantities import Bool, Float, Int

__all__ = [
    "attend",
    "attention_probs",
    "attention_scores",
    "of_call",
    "soft_capped",
    "weighted_values",
]


def attention_scores(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """The scaled dot products, before any mask: scores = scale · query · keyᵀ.

    Source: Vaswani et al. 2017, equation 1, where scale is 1/sqrt(d_head).
    """
    # Scaling the query touches d_head columns and not key many, and keeps float16 from overflowing.
    return _by_groups(query * scale, key.transpose(-2, -1))


def soft_capped(scores: Float[Tensor, "*axes"], cap: float | None) -> Float[Tensor, "*axes"]:
    """cap · tanh(scores / cap), or the scores themselves (Gemma Team 2024, section 2)."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def attention_probs(
    scores: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The softmax of the allowed scores of each row: rows sum to 1, masked cells are exactly 0.

    probs = exp(scores − max) / sum(exp(scores − max)), maximum and sum over the allowed keys.
    A row without an allowed key is all zeros. `mask` is True where attention is allowed.
    With sinks each row has one more logit, which takes its share and is left out.
    `scores` is left as it is.
    """
    if sinks is not None:
        masked = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([masked, sink], dim=-1), dim=-1)[..., :-1]
    if mask is None:
        return torch.softmax(scores, dim=-1)
    opened, alive = open_dead_rows(mask)
    masked = scores + additive_mask(opened, scores.dtype)
    if masked.requires_grad or not masked.is_cpu:
        probs = torch.softmax(masked, dim=-1)
    else:
        # In place: a second fresh tensor of this size costs more than the softmax itself.
        probs = torch.softmax(masked, dim=-1, out=masked)
    return probs if alive is None else probs * alive


def weighted_values(
    probs: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch kv_head key d_head"],
) -> Float[Tensor, "batch head query d_head"]:
    """The mean of the values, weighted by the probabilities: z = probs · value."""
    return _by_groups(probs, value)


def _by_groups(
    rows: Float[Tensor, "batch head query inner"], columns: Float[Tensor, "batch kv_head inner out"]
) -> Float[Tensor, "batch head query out"]:
    """The products of each head's rows with what it reads; nothing is repeated for a group."""
    heads, kv_heads = rows.shape[1], columns.shape[1]
    if heads == kv_heads:
        return torch.matmul(rows, columns)
    grouped = rows.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    return torch.matmul(grouped, columns).unflatten(2, (heads // kv_heads, -1)).flatten(1, 2)


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_value"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    want: Want,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    window: Window | None = None,
    prefix: Int[Tensor, " sentence"] | None = None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None,
    soft_cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> dict[str, Tensor]:
    """z, lse, scores, probs and the wanted statistics; gradients reach every one of them.

    scores, probs and z are rounded to the dtype of the inputs, as torch does; lse and the
    statistics are computed from those scores in float32 (float64 for float64).
    """
    if packed is not None:
        options: dict[str, Any] = {"causal": causal, "window": window, "scale": scale}
        options |= {"soft_cap": soft_cap, "sinks": sinks, "prefix": prefix}
        options["alibi_slopes"] = alibi_slopes
        options |= {"packed": packed, "packed_keys": packed_keys, "want": want}
        return sentence_by_sentence(attend, query, key, value, **options)
    allowed = allowed_keys(
        query, key, lengths=lengths, mask=mask, causal=causal, window=window, prefix=prefix
    )
    bias = with_alibi(bias, alibi_slopes, query, key)
    shape: dict[str, Any] = {"scale": scale, "soft_cap": soft_cap, "bias": bias, "sinks": sinks}
    return _attend(query, key, value, allowed, lengths=lengths, want=want | {"lse": ()}, **shape)


def of_call(call: Call) -> dict[str, Tensor]:
    """The same for a call, whose mask all layers share; lse and statistics only when wanted."""
    keys, vectors = call.allowed, (call.query, call.key, call.value)
    options: dict[str, Any] = {"scale": call.scale, "soft_cap": call.soft_cap, "sinks": call.sinks}
    if keys.packed is not None:
        options |= {"causal": keys.causal, "window": keys.window, "prefix": keys.prefix}
        options |= {"packed": keys.packed, "packed_keys": keys.packed_keys, "want": call.want}
        options["alibi_slopes"] = call.alibi_slopes
        return sentence_by_sentence(attend, *vectors, **options)
    bias = with_alibi(call.bias, call.alibi_slopes, call.query, call.key)
    options |= {"bias": bias, "want": call.want, "lengths": keys.length_tensor}
    return _attend(*vectors, keys.mask(call.query.shape[2]), **options)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    lengths: Tensor | None,
    want: Want,
    scale: float,
    soft_cap: float | None,
    bias: Tensor | None,
    sinks: Tensor | None,
) -> dict[str, Tensor]:
    scores = attention_scores(query, key, scale=scale)
    shaped = soft_capped(scores, soft_cap)
    shaped = shaped if bias is None else shaped + bias
    probs = attention_probs(shaped, allowed, sinks)
    found = {"z": weighted_values(probs, value), "scores": scores, "probs": probs}
    if want.keys() <= found.keys():
        return found
    opened, alive = (None, None) if allowed is None else open_dead_rows(allowed)
    return found | statistics_of_rows(
        shaped.to(wide(shaped.dtype)),
        allowed=opened,
        alive=alive,
        lengths=lengths,
        want=want,
        first=0,
        n_queries=query.shape[2],
        sinks=sinks,
    )
