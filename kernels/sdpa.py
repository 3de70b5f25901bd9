"""Attention through torch's fused `scaled_dot_product_attention`: fast, without an N x N tensor.

What torch 2.6 and 2.13 were seen to do, and the code below relies on or steers around:
- is_causal is aligned to the start, right for as many queries as keys only;
- a row without an allowed key gives z = 0 on a CPU, in every back end and dtype; other devices
  make no promise, so `attend` keeps such rows away from torch;
- the CPU's flash operator returns lse in float32 for the half types, and 0 for a dead row. It
  checks little: a boolean mask is refused, but a mask of another dtype, or vectors whose last axis
  is not contiguous, give wrong numbers in silence;
- on a CPU, with fewer keys than a vector register holds (16 in float32), a row whose scores are all
  NaN counts as a row without a key: z = 0, and lse = 0, by which `attend` knows it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.blocks import Inputs
from minibert.kernels.call import Call
from minibert.kernels.folding import keywords
from minibert.kernels.masks import (
    Window,
    additive_mask,
    allowed_keys,
    open_dead_rows,
    positive_scale,
    with_alibi,
)
from minibert.kernels.packing import sentence_by_sentence
from minibert.kernels.requests import Want
from minibert.kernels.row_blocks import attend_in_blocks
from minibert.quantities import Bool, Float, Int, Shaped

__all__ = ["SDPA_OPTIONS", "attend", "fused_attention", "of_call", "packed_attention", "plain"]

#: The options and shapes that `attend` takes.
SDPA_OPTIONS = frozenset(
    {"lengths", "mask", "causal", "scale", "bias", "want", "packed", "packed_keys", "window"}
    | {"prefix", "alibi_slopes", "groups", "value_size"}
)
# Rows of a block where only the keys of a window are read.
_ROWS = 256
#: The private operator that also returns lse; None in a torch that has dropped it.
_flash_for_cpu = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def fused_attention(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    mask: Shaped[Tensor, "#batch #head #query #key"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch head query d_value"]:
    """z = softmax(scale · query · keyᵀ, masked) · value, by the kernel torch picks, unchecked.

    `causal` is only right for as many queries as keys (torch aligns it to the start) and cannot
    be combined with `mask`. A row without an allowed key gives z = 0. So, on a CPU and with few
    keys, does a row whose scores are all NaN, for instance by a NaN in its query: that inputs are
    finite is for the caller to check, as looking costs more than 1 % of the pass. `attend` looks.
    """
    groups = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups
    )


def of_call(call: Call) -> dict[str, Tensor]:
    """z alone by `plain` where nothing else is wanted; otherwise what `attend` gives."""
    if not call.want:
        return {"z": plain(call)}
    return attend(call.query, call.key, call.value, **keywords(call, SDPA_OPTIONS))


def plain(call: Call) -> Float[Tensor, "batch head query d_value"]:
    """z alone: `fused_attention`, sentence by sentence where they are packed."""
    query, key, value, allowed = call.query, call.key, call.value, call.allowed
    special = call.bias is not None or call.alibi_slopes is not None or call.scale <= 0
    if allowed.packed is not None:
        special = special or allowed.window is not None or allowed.prefix is not None
        special = special or allowed.packed_keys is not None
    if special:
        return attend(query, key, value, **keywords(call, SDPA_OPTIONS))["z"]
    if allowed.packed is not None:
        lengths, causal = allowed.packed, allowed.causal
        return packed_attention(query, key, value, lengths=lengths, causal=causal, scale=call.scale)
    n_queries = query.shape[2]
    if allowed.window is not None and _is_narrow(allowed, n_queries):
        return _in_window(query, key, value, allowed, call.scale)
    # A branch, and no "and": where sizes are symbols, torch takes no symbol for is_causal.
    triangle = allowed.triangle if n_queries == key.shape[2] else False
    mask = None if triangle else allowed.mask(n_queries)
    return fused_attention(query, key, value, mask=mask, causal=triangle, scale=call.scale)


def _is_narrow(allowed: AllowedKeys, n_queries: int) -> bool:
    """True where few of the keys are seen by any query, and rows can be taken block by block."""
    before, after = allowed.window or (None, None)
    if before is None or (after is None and not allowed.causal) or torch.compiler.is_compiling():
        return False
    unmasked = allowed.given is None and allowed.prefix is None and allowed.queries is None
    square = n_queries == allowed.position
    return unmasked and square and n_queries >= 2 * max(_ROWS, before + 1 + (after or 0))


def _in_window(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    allowed: AllowedKeys,
    scale: float,
) -> Float[Tensor, "batch head query d_value"]:
    """z by blocks of rows, each with the keys that they may see: no N x N mask."""
    before, after = allowed.window or (None, None)
    ahead = 0 if allowed.causal else after
    assert before is not None
    assert ahead is not None
    n, parts = allowed.position, []
    positions = torch.arange(n, device=allowed.device)
    for start in range(0, n, _ROWS):
        rows = slice(start, min(start + _ROWS, n))
        seen = slice(max(0, start - before), min(n, rows.stop + ahead))
        distance = (positions[seen] - positions[rows, None])[None, None]
        mask = (distance >= -before) & (distance <= ahead)
        if allowed.tokens is not None:
            mask = mask & allowed.tokens[:, None, None, seen]
        vectors = query[:, :, rows], key[:, :, seen], value[:, :, seen]
        parts.append(fused_attention(*vectors, mask=mask, scale=scale))
    return torch.cat(parts, dim=2)


def packed_attention(
    query: Float[Tensor, "1 head token d_head"],
    key: Float[Tensor, "1 kv_head token d_head"],
    value: Float[Tensor, "1 kv_head token d_value"],
    *,
    lengths: Sequence[int],
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "1 head token d_head"]:
    """z of sentences that lie one after the other, each attending to itself alone.

    `lengths` are their tokens, all of them together. The same as `fused_attention` sentence by
    sentence, and no key of padding is ever read.
    """
    vectors = [each.split(list(lengths), dim=2) for each in (query, key, value)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
        parts = [
            fused_attention(*one, causal=causal, scale=scale) for one in zip(*vectors, strict=True)
        ]
        return torch.cat(parts, dim=2)
    z = query.new_empty((*query.shape[:3], value.shape[3]))
    for *one, one_z in zip(*vectors, z.split(list(lengths), dim=2), strict=True):
        one_z.copy_(fused_attention(*one, causal=causal, scale=scale))
    return z


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
    want: Want,
    packed: Sequence[int] | None = None,
    packed_keys: Sequence[int] | None = None,
    window: Window | None = None,
    prefix: Int[Tensor, " sentence"] | None = None,
    alibi_slopes: Float[Tensor, "*#batch head"] | None = None,
) -> dict[str, Tensor]:
    """z in one fused pass; lse from the same pass on a CPU, otherwise by blocks of rows.

    Statistics take a second pass by blocks of rows, and so does lse where the fused pass may have
    lost a NaN. Gradients reach z and nothing else: lse is detached.
    """
    if packed is not None:
        options: dict[str, Any] = {"causal": causal, "window": window, "scale": scale}
        options |= {"packed": packed, "packed_keys": packed_keys, "prefix": prefix}
        options["alibi_slopes"] = alibi_slopes
        return sentence_by_sentence(attend, query, key, value, want=want, **options)
    want = {name: parameters for name, parameters in want.items() if name != "lse"}
    query, scale = positive_scale(query, scale)
    bias = with_alibi(bias, alibi_slopes, query, key)
    masks: dict[str, Any] = {"lengths": lengths, "mask": mask}
    masks |= {"causal": causal, "window": window, "prefix": prefix}
    unmasked = all(one is None for one in (lengths, mask, bias, window, prefix))
    triangle = causal and unmasked and query.shape[2] == key.shape[2]
    allowed = allowed_keys(query, key, **masks)
    opened, alive = (None, None) if allowed is None else open_dead_rows(allowed)
    added = None if triangle else _added_to_scores(opened, bias, query.dtype)
    lse: Tensor | None = None
    if not want and _flash_applies(query, key, value, added):
        z, lse = _flash_for_cpu(  # type: ignore[misc]
            *(_contiguous(vectors) for vectors in (query, key, value)),
            is_causal=triangle,
            attn_mask=None if added is None else _contiguous(added),
            scale=scale,
        )
        if alive is not None:
            lse = lse.masked_fill(~alive.squeeze(-1), -math.inf)
    else:
        z = fused_attention(query, key, value, mask=added, causal=triangle, scale=scale)
    # Right by chance or a lost NaN: the second pass tells.
    if lse is not None and not bool((lse == 0).any()):
        found = {"lse": lse}
    else:
        inputs = Inputs(query, key, scale, bias=bias, **masks)
        found = attend_in_blocks(inputs, None, want)
        z = z.masked_fill(found["lse"].isnan().unsqueeze(-1), math.nan)
    return {"z": z if alive is None else z.masked_fill(~alive, 0), **found}


def _added_to_scores(
    allowed: Bool[Tensor, "#batch #head #query #key"] | None,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "#batch #head #query #key"] | None:
    if allowed is None:
        return bias
    added = additive_mask(allowed, dtype)
    return added if bias is None else added + bias


def _flash_applies(query: Tensor, key: Tensor, value: Tensor, added: Tensor | None) -> bool:
    if _flash_for_cpu is None or not query.is_cpu or query.shape[3] != value.shape[3]:
        return False
    # Its lse would look differentiable and its mask has no gradient: training takes the public way.
    tensors = (query, key, value) if added is None else (query, key, value, added)
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
