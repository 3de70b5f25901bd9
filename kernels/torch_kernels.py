"""Attention by torch's own kernels: SDPA as torch picks it, which is what `auto` takes for z.

Behaviour of torch 2.6 to 2.13 that the code below relies on or avoids:
- is_causal is aligned to the start, right for as many queries as keys only;
- a row without an allowed key gives z = 0 on a CPU, in every back end and dtype; other devices
  make no promise, so `sdpa` keeps such rows away from torch;
- the CPU's flash operator returns lse in float32 for the half types, and 0 for a dead row. It
  checks little: a boolean mask is refused, but a mask of another dtype, or vectors whose last axis
  is not contiguous, give wrong numbers in silence;
- on a CPU, with fewer keys than a vector register holds (16 in float32), a row whose scores are all
  NaN counts as a row without a key: z = 0, and lse = 0, by which `sdpa` knows it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minibert.kernels.allowed_keys import AllowedKeys, additive_mask, open_dead_rows
from minibert.kernels.call import Call, Outputs
from minibert.kernels.folding import sentence_by_sentence
from minibert.kernels.row_blocks import attend_in_blocks
from minibert.quantities import Bool, Float, Shaped

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
    finite is for the caller to check, as looking costs more than 1 % of the pass. `sdpa` looks.
    """
    groups = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups
    )


def sdpa(call: Call) -> Outputs:
    """z in one fused pass; lse from the same pass on a CPU, otherwise by blocks of rows.

    Statistics take a second pass by blocks of rows, and so does lse where the fused pass may have
    lost a NaN; where nothing is wanted beside z, nobody looks. Gradients reach z and nothing else:
    lse is detached.
    """
    special = call.bias is not None or call.alibi_slopes is not None or call.scale <= 0
    keys = call.allowed
    if keys.packed is not None:
        others = (keys.window, keys.prefix, keys.packed_keys)
        special = special or any(one is not None for one in others)
    if not call.want and not special:
        return {"z": _plain(call)}
    if keys.packed is not None:
        return sentence_by_sentence(_sdpa_with_lse, call)
    return _sdpa_with_lse(call)


def _plain(call: Call) -> Float[Tensor, "batch head query d_value"]:
    """z alone: `fused_attention`, sentence by sentence where they are packed."""
    query, key, value, allowed = call.query, call.key, call.value, call.allowed
    if allowed.packed is not None:
        lengths, causal = allowed.packed, allowed.causal
        return packed_attention(query, key, value, lengths=lengths, causal=causal, scale=call.scale)
    n_queries = query.shape[2]
    if allowed.window is not None and _is_narrow(allowed, n_queries):
        return _in_window(call)
    # A branch, and no "and": where sizes are symbols, torch takes no symbol for is_causal.
    triangle = allowed.triangle if n_queries == key.shape[2] else False
    mask = None if triangle else call.seen
    return fused_attention(query, key, value, mask=mask, causal=triangle, scale=call.scale)


def _is_narrow(allowed: AllowedKeys, n_queries: int) -> bool:
    """True where few of the keys are seen by any query, and rows can be taken block by block."""
    before, after = allowed.window or (None, None)
    if before is None or (after is None and not allowed.causal) or torch.compiler.is_compiling():
        return False
    unmasked = allowed.given is None and allowed.prefix is None and allowed.queries is None
    square = n_queries == allowed.position
    return unmasked and square and n_queries >= 2 * max(_ROWS, before + 1 + (after or 0))


def _in_window(call: Call) -> Float[Tensor, "batch head query d_value"]:
    """z by blocks of rows, each with the keys that they may see: no N x N mask."""
    allowed = call.allowed
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
        vectors = call.query[:, :, rows], call.key[:, :, seen], call.value[:, :, seen]
        parts.append(fused_attention(*vectors, mask=mask, scale=call.scale))
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


def _sdpa_with_lse(call: Call) -> Outputs:
    asked = call.want
    want = {name: parameters for name, parameters in asked.items() if name != "lse"}
    call = call.positively_scaled()
    bias = call.biases
    call = replace(call, bias=bias, alibi_slopes=None, want=want)
    others = (call.lengths, call.mask, bias, call.window, call.prefix)
    unmasked = all(one is None for one in others)
    triangle = call.causal and unmasked and call.query.shape[2] == call.key.shape[2]
    added, alive = _added(call)
    added = None if triangle else added
    lse: Tensor | None = None
    if "lse" in asked and not want and _flash_applies(call, added):
        vectors = (_contiguous(one) for one in (call.query, call.key, call.value))
        mask = None if added is None else _contiguous(added)
        z, lse = _flash_for_cpu(*vectors, is_causal=triangle, attn_mask=mask, scale=call.scale)  # type: ignore[misc]
        if alive is not None:
            lse = lse.masked_fill(~alive.squeeze(-1), -math.inf)
    else:
        z = fused_attention(
            call.query, call.key, call.value, mask=added, causal=triangle, scale=call.scale
        )
    if not asked:
        return {"z": z if alive is None else z.masked_fill(~alive, 0)}
    # Right by chance or a lost NaN: the second pass tells.
    if lse is not None and not bool((lse == 0).any()):
        found = {"lse": lse}
    else:
        found = attend_in_blocks(call, with_z=False)
        z = z.masked_fill(found["lse"].isnan().unsqueeze(-1), math.nan)
    return {"z": z if alive is None else z.masked_fill(~alive, 0), **found}


def _added(
    call: Call,
) -> tuple[
    Float[Tensor, "#batch #head #query #key"] | None, Bool[Tensor, "#batch #head #query 1"] | None
]:
    """What is added to the scores, and which rows live; None for nothing and for all."""
    allowed = call.allowed.mask(call.query.shape[2])
    if allowed is None:
        return call.bias, None
    opened, alive = open_dead_rows(allowed)
    added = additive_mask(opened, call.query.dtype)
    return (added if call.bias is None else added + call.bias), alive


def _flash_applies(call: Call, added: Tensor | None) -> bool:
    query, key, value = call.query, call.key, call.value
    if _flash_for_cpu is None or not query.is_cpu or query.shape[3] != value.shape[3]:
        return False
    # Its lse would look differentiable and its mask has no gradient: training takes the public way.
    tensors = (query, key, value) if added is None else (query, key, value, added)
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
