"""FlexAttention: torch's attention with a mask and a bias written as Python functions.

It is never chosen by "auto". On CUDA it is compiled into one fused kernel; elsewhere torch runs its
formula in steps, right and slow.

Source: Dong et al. 2024, "Flex Attention".
"""

import math
import warnings
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as library

from minibert.errors import AttentionError
from minibert.kernels.masks import Window
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "block_mask", "compiled"]


@cache
def compiled() -> Callable[..., Any]:
    """torch's flex_attention, compiled for the shapes that come; compiled once."""
    return torch.compile(library.flex_attention, dynamic=False)


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    window: Window | None = None,
    prefix: Int[Tensor, " batch"] | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> tuple[Float[Tensor, "batch head query d_value"], Float[Tensor, "batch head query"]]:
    """z and lse by FlexAttention; the mask of blocks is made anew for each call."""
    options: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
    rules: dict[str, Any] = {"lengths": lengths, "mask": mask, "causal": causal}
    rules |= {"window": window, "prefix": prefix}
    if any(rule is not None and rule is not False for rule in rules.values()):
        options["block_mask"] = block_mask(query, key, **rules)
    options["score_mod"] = score_change(
        query, key, soft_cap=soft_cap, bias=bias, alibi_slopes=alibi_slopes
    )
    z, lse = _called(compiled() if query.is_cuda else _uncompiled, query, key, value, options)
    dead = lse == -math.inf
    z = z.masked_fill(dead.unsqueeze(-1), 0)
    if sinks is None:
        return z, lse
    with_sink = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    return z * (lse - with_sink).exp().unsqueeze(-1).to(z.dtype), with_sink


def score_change(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    soft_cap: float | None,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None,
) -> Callable[..., Tensor] | None:
    """What torch does to each score: soft cap, bias and ALiBi, in this order; None for nothing."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    changes: list[Callable[..., Tensor]] = []
    if soft_cap is not None:
        changes.append(lambda score, b, h, q, k: soft_cap * torch.tanh(score / soft_cap))
    if bias is not None:
        added = bias.expand(B, H, Q, K)
        changes.append(lambda score, b, h, q, k: score + added[b, h, q, k])
    if alibi_slopes is not None:
        slopes = alibi_slopes.expand(B, H)
        changes.append(lambda score, b, h, q, k: score - slopes[b, h] * abs(q + (K - Q) - k))
    return reduce(_after, changes) if changes else None


def _after(first: Callable[..., Tensor], second: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # A loop over both would be a side effect to torch, which traces this.
    return lambda score, b, h, q, k: second(first(score, b, h, q, k), b, h, q, k)


def block_mask(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    window: Window | None = None,
    prefix: Int[Tensor, " batch"] | None = None,
) -> Any:
    """torch's BlockMask of these options: blocks that nobody may see are left out."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    # Lambdas: torch looks at how many arguments they take, and traces them.
    rules: list[Callable[..., Tensor]] = []
    if prefix is not None:
        first_keys = prefix
        rules.append(lambda b, h, q, k: (k <= q + (K - Q)) | (k < first_keys[b]))
    elif causal:
        rules.append(lambda b, h, q, k: k <= q + (K - Q))
    before, after = window or (None, None)
    if before is not None:
        rules.append(lambda b, h, q, k: k >= q + (K - Q) - before)
    if after is not None:
        rules.append(lambda b, h, q, k: k <= q + (K - Q) + after)
    if lengths is not None:
        rules.append(lambda b, h, q, k: k < lengths[b])
    if mask is not None:
        everywhere = mask.expand(B, H, Q, K)
        rules.append(lambda b, h, q, k: everywhere[b, h, q, k])
    allowed = library.and_masks(*rules)
    sentences = B if any(one is not None for one in (lengths, mask, prefix)) else None
    heads = None if mask is None else H
    return library.create_block_mask(allowed, sentences, heads, Q, K, device=str(query.device))


def _uncompiled(*tensors: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        # It says that uncompiled is slow; on a CPU that is what was asked for.
        warnings.simplefilter("ignore")
        attention: Callable[..., Any] = library.flex_attention
        return attention(*tensors, **options)


def _called(
    attention: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    request = getattr(library, "AuxRequest", None)
    try:
        if request is None:
            z, lse = attention(query, key, value, return_lse=True, **options)
            return z, lse
        z, others = attention(query, key, value, return_aux=request(lse=True), **options)
        return z, others.lse
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise AttentionError(
            f'impl="flex": torch refuses: {reason} Take another implementation, impl="sdpa".'
        ) from error
