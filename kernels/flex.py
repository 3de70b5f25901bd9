"""FlexAttention: torch's attention with a mask and a bias written as Python functions.

It is never chosen by "auto". On CUDA it is compiled into one fused kernel; elsewhere torch runs its
formula in steps, right and slow.

Source: Dong et al. 2024, "Flex Attention".
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as library

from minibert.errors import AttentionError
from minibert.quantities import Bool, Float, Int

__all__ = ["attend", "block_mask", "compiled"]


@cache
def compiled() -> Callable[..., Any]:
    """torch's flex_attention, compiled for the shapes that come; compiled once."""
    return torch.compile(library.flex_attention, dynamic=False)


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
) -> tuple[Float[Tensor, "batch head query d_head"], Float[Tensor, "batch head query"]]:
    """z and lse by FlexAttention; the mask of blocks is made anew for each call."""
    options: dict[str, Any] = {"scale": scale}
    if lengths is not None or mask is not None or causal:
        options["block_mask"] = block_mask(query, key, lengths=lengths, mask=mask, causal=causal)
    if bias is not None:
        added = bias.expand(*query.shape[:3], key.shape[2])
        options["score_mod"] = lambda score, b, h, q, k: score + added[b, h, q, k]
    z, lse = _called(compiled() if query.is_cuda else _uncompiled, query, key, value, options)
    dead = lse == -math.inf
    return z.masked_fill(dead.unsqueeze(-1), 0), lse


def block_mask(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
) -> Any:
    """torch's BlockMask of these options: blocks that nobody may see are left out."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    # Lambdas: torch looks at how many arguments they take, and traces them.
    rules: list[Callable[..., Tensor]] = []
    if causal:
        rules.append(lambda b, h, q, k: k <= q + (K - Q))
    if lengths is not None:
        rules.append(lambda b, h, q, k: k < lengths[b])
    if mask is not None:
        everywhere = mask.expand(B, H, Q, K)
        rules.append(lambda b, h, q, k: everywhere[b, h, q, k])
    allowed = library.and_masks(*rules)
    sentences = None if lengths is None and mask is None else B
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
