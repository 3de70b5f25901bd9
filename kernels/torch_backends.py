"""torch's own SDPA back ends, each under its name: "flash", "cudnn", "efficient" and "math".

They are never chosen by "auto"; the bench measures against them. torch's public function picks one
of them by rules of its own; here the one that was named runs, or an AttentionError says why it
cannot.

What torch 2.6 to 2.13 do, and the code below relies on or steers around:
- flash and cuDNN take no mask here; efficient and math take one as numbers added to the scores;
- is_causal is aligned to the start: for as many queries as keys only;
- flash wants d_head in multiples of 8, and zeros behind change no score;
- efficient fills lse up to a multiple of 32 queries, and its mask must lie in memory in rows of
  a multiple of 16 bytes; cuDNN's lse may have an axis of 1 at its end.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad

from minibert.errors import AttentionError
from minibert.kernels.blocks import Inputs
from minibert.kernels.masks import additive_mask, allowed_keys, open_dead_rows, positive_scale
from minibert.kernels.row_blocks import attend_in_blocks
from minibert.quantities import Bool, Float, Int

__all__ = ["BACKENDS", "cudnn", "efficient", "flash", "forced", "math_backend"]

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@contextmanager
def forced(name: str) -> Iterator[None]:
    """torch's scaled_dot_product_attention runs this back end alone inside, or raises."""
    with sdpa_kernel([BACKENDS[name]]):
        yield


def flash(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "batch head query d_head"], Float[Tensor, "batch head query"]]:
    """z and lse by FlashAttention (Dao 2023), as torch ships it for this device."""
    query, scale = positive_scale(query, scale)
    causal = _triangle("flash", query, key, causal)
    if query.is_cpu:
        vectors = [_contiguous(one) for one in (query, key, value)]
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        found = _told("flash", operator, *vectors, is_causal=causal, scale=scale)
        return found[0], found[1]
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise AttentionError(
            f'impl="flash" takes float16 and bfloat16 on {query.device.type} and the tensors are '
            f'{query.dtype}; impl="efficient" can.'
        )
    D = query.shape[-1]
    vectors = [pad(one, (0, -D % 8)) for one in (query, key, value)]
    operator = torch.ops.aten._scaled_dot_product_flash_attention
    z, lse, *_ = _told("flash", operator, *vectors, is_causal=causal, scale=scale)
    return z[..., :D], lse[:, :, : query.shape[2]]


def cudnn(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "batch head query d_head"], Float[Tensor, "batch head query"]]:
    """z and lse by NVIDIA's cuDNN."""
    query, scale = positive_scale(query, scale)
    causal = _triangle("cudnn", query, key, causal)
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    z, lse, *_ = _told(
        "cudnn", operator, query, key, value, None, True, is_causal=causal, scale=scale
    )
    return z, lse.reshape(query.shape[:3])


def efficient(
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
    """z and lse by xFormers' memory-efficient kernel (Rabe & Staats 2021)."""
    query, scale = positive_scale(query, scale)
    triangle = causal and query.shape[2] == key.shape[2]
    added, alive = _added(
        query, key, lengths=lengths, mask=mask, causal=causal and not triangle, bias=bias
    )
    if added is not None:
        K, shape = key.shape[2], (*query.shape[:3], key.shape[2])
        added = pad(added.expand(shape), (0, -K % 16)).contiguous()[..., :K]
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    z, lse, *_ = _told(
        "efficient", operator, query, key, value, added, True, is_causal=triangle, scale=scale
    )
    return _buried(z, lse[:, :, : query.shape[2]], alive)


def math_backend(
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
    """z by torch's formula in steps; lse, which it does not give, by blocks of rows."""
    query, scale = positive_scale(query, scale)
    added, alive = _added(query, key, lengths=lengths, mask=mask, causal=causal, bias=bias)
    with forced("math"):
        z = _told(
            "math",
            torch.nn.functional.scaled_dot_product_attention,
            *(query, key, value),
            attn_mask=added,
            scale=scale,
        )
    inputs = Inputs(query, key, scale, lengths=lengths, mask=mask, causal=causal, bias=bias)
    found = attend_in_blocks(inputs, None, want={})
    return _buried(z, found["lse"], alive)


def _added(
    query: Tensor,
    key: Tensor,
    *,
    lengths: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and which rows live; None for nothing and for all."""
    allowed = allowed_keys(query, key, lengths=lengths, mask=mask, causal=causal)
    if allowed is None:
        return bias, None
    opened, alive = open_dead_rows(allowed)
    added = additive_mask(opened, query.dtype)
    return (added if bias is None else added + bias), alive


def _buried(z: Tensor, lse: Tensor, alive: Tensor | None) -> tuple[Tensor, Tensor]:
    if alive is None:
        return z, lse
    return z.masked_fill(~alive, 0), lse.masked_fill(~alive.squeeze(-1), -math.inf)


def _told(name: str, operator: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
    """What torch's operator gives; its refusal as an AttentionError."""
    try:
        return operator(*tensors, **options)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise AttentionError(
            f'impl="{name}": torch refuses: {reason} Take another implementation; impl="sdpa" '
            "lets torch choose."
        ) from error


def _triangle(name: str, query: Tensor, key: Tensor, causal: bool) -> bool:
    """causal as torch means it: a single query, at the end, sees every key."""
    Q, K = query.shape[2], key.shape[2]
    if causal and Q not in (1, K):
        raise AttentionError(
            f'impl="{name}" takes causal for as many queries as keys, and there are {Q} and {K}; '
            'impl="efficient" and impl="sdpa" can.'
        )
    return causal and Q > 1


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
