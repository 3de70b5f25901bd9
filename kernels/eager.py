"""Attention step by step in plain torch: any dtype, any device, differentiable.

Place: one of the implementations behind `minibert.kernels.api.attend`, and the explicit path of
the model, which calls the three functions below when scores or probs are wanted or edited.
"""

import torch
from torch import Tensor

from minibert.kernels.masks import additive_mask, allowed_keys, open_dead_rows
from minibert.kernels.requests import Want
from minibert.kernels.row_statistics import statistics_of_rows, wide
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "attention_probs", "attention_scores", "weighted_values"]


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
) -> dict[str, Tensor]:
    """z, lse, scores, probs and the wanted statistics; gradients reach every one of them.

    scores, probs and z are rounded to the dtype of the inputs, as torch does; lse and the
    statistics are computed from those scores in float32 (float64 for float64).
    """
    allowed = allowed_keys(query, key, lengths=lengths, mask=mask, causal=causal)
    scores = attention_scores(query, key, scale=scale)
    biased = scores if bias is None else scores + bias
    probs = attention_probs(biased, allowed)
    opened, alive = (None, None) if allowed is None else open_dead_rows(allowed)
    statistics = statistics_of_rows(
        biased.to(wide(biased.dtype)),
        allowed=opened,
        alive=alive,
        lengths=lengths,
        want=want,
        first=0,
        n_queries=query.shape[2],
    )
    z = weighted_values(probs, value)
    return {"z": z, "scores": scores, "probs": probs, **statistics}
