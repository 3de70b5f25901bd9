"""Attention step by step in plain torch: any dtype, any device, differentiable.

A model calls the three functions below where scores or probs are edited.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.call import Call
from minibert.kernels.masks import additive_mask, allowed_keys, open_dead_rows
from minibert.kernels.packing import sentence_by_sentence
from minibert.kernels.requests import Want
from minibert.kernels.row_statistics import statistics_of_rows, wide
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "attention_probs", "attention_scores", "of_call", "weighted_values"]


def attention_scores(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    *,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """The scaled dot products, before any mask: scores = scale · query · keyᵀ.

    Source: Vaswani et al. 2017, equation 1, where scale is 1/sqrt(d_head).
    """
    # Scaling the query touches d_head columns and not key many, and keeps float16 from overflowing.
    return torch.matmul(query * scale, key.transpose(-2, -1))


def attention_probs(
    scores: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
) -> Float[Tensor, "batch head query key"]:
    """The softmax of the allowed scores of each row: rows sum to 1, masked cells are exactly 0.

    probs = exp(scores − max) / sum(exp(scores − max)), maximum and sum over the allowed keys.
    A row without an allowed key is all zeros. `mask` is True where attention is allowed.
    `scores` is left as it is.
    """
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
    value: Float[Tensor, "batch head key d_head"],
) -> Float[Tensor, "batch head query d_head"]:
    """The mean of the values, weighted by the probabilities: z = probs · value."""
    return torch.matmul(probs, value)


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    want: Want,
    packed: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """z, lse, scores, probs and the wanted statistics; gradients reach every one of them.

    scores, probs and z are rounded to the dtype of the inputs, as torch does; lse and the
    statistics are computed from those scores in float32 (float64 for float64).
    """
    if packed is not None:
        vectors = (query, key, value)
        options: dict[str, Any] = {"want": want, "causal": causal, "scale": scale}
        return sentence_by_sentence(attend, *vectors, packed=packed, **options)
    allowed = allowed_keys(query, key, lengths=lengths, mask=mask, causal=causal)
    want = want | {"lse": ()}
    return _attend(query, key, value, allowed, lengths=lengths, scale=scale, bias=bias, want=want)


def of_call(call: Call) -> dict[str, Tensor]:
    """The same for a call, whose mask all layers share; lse and statistics only when wanted."""
    keys, vectors = call.allowed, (call.query, call.key, call.value)
    options: dict[str, Any] = {"scale": call.scale, "want": call.want}
    if keys.packed is not None:
        options["causal"] = keys.causal
        return sentence_by_sentence(attend, *vectors, packed=keys.packed, **options)
    allowed = keys.mask(call.query.shape[2])
    return _attend(*vectors, allowed, lengths=keys.length_tensor, bias=call.bias, **options)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    lengths: Tensor | None,
    scale: float,
    bias: Tensor | None,
    want: Want,
) -> dict[str, Tensor]:
    scores = attention_scores(query, key, scale=scale)
    biased = scores if bias is None else scores + bias
    probs = attention_probs(biased, allowed)
    found = {"z": weighted_values(probs, value), "scores": scores, "probs": probs}
    if want.keys() <= found.keys():
        return found
    opened, alive = (None, None) if allowed is None else open_dead_rows(allowed)
    return found | statistics_of_rows(
        biased.to(wide(biased.dtype)),
        allowed=opened,
        alive=alive,
        lengths=lengths,
        want=want,
        first=0,
        n_queries=query.shape[2],
    )
