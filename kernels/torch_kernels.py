"""Attention by torch's own kernels: SDPA as torch picks it, its back ends by name, FlexAttention.

`sdpa` is what `auto` takes for z. "flash", "cudnn", "efficient" and "math" are its back ends, each
forced or refused by name, and "flex" is FlexAttention (Dong et al. 2024). The bench measures
against these; `auto` never takes them.

What torch 2.6 to 2.13 were seen to do, and the code below relies on or steers around:
- is_causal is aligned to the start, right for as many queries as keys only;
- a row without an allowed key gives z = 0 on a CPU, in every back end and dtype; other devices
  make no promise, so `sdpa` keeps such rows away from torch;
- the CPU's flash operator returns lse in float32 for the half types, and 0 for a dead row. It
  checks little: a boolean mask is refused, but a mask of another dtype, or vectors whose last axis
  is not contiguous, give wrong numbers in silence;
- on a CPU, with fewer keys than a vector register holds (16 in float32), a row whose scores are all
  NaN counts as a row without a key: z = 0, and lse = 0, by which `sdpa` knows it;
- of the back ends flash and cuDNN take no mask here; efficient and math take one as numbers added
  to the scores;
- on a GPU flash wants d_head in multiples of 8, and zeros behind change no score; efficient fills
  lse up to a multiple of 32 queries, and its mask must lie in memory in rows of a multiple of 16
  bytes; cuDNN's lse may have an axis of 1 at its end.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as library
from torch.nn.functional import pad, scaled_dot_product_attention

from minibert.errors import AttentionError
from minibert.kernels.allowed_keys import AllowedKeys, additive_mask, open_dead_rows
from minibert.kernels.call import Call, Outputs
from minibert.kernels.folding import sentence_by_sentence
from minibert.kernels.row_blocks import attend_in_blocks
from minibert.quantities import Bool, Float, Shaped

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
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
    want = {name: parameters for name, parameters in call.want.items() if name != "lse"}
    call = call.positively_scaled()
    bias = call.biases
    call = replace(call, bias=bias, alibi_slopes=None, want=want)
    others = (call.lengths, call.mask, bias, call.window, call.prefix)
    unmasked = all(one is None for one in others)
    triangle = call.causal and unmasked and call.query.shape[2] == call.key.shape[2]
    added, alive = _added(call)
    added = None if triangle else added
    lse: Tensor | None = None
    if not want and _flash_applies(call, added):
        vectors = (_contiguous(one) for one in (call.query, call.key, call.value))
        mask = None if added is None else _contiguous(added)
        z, lse = _flash_for_cpu(*vectors, is_causal=triangle, attn_mask=mask, scale=call.scale)  # type: ignore[misc]
        if alive is not None:
            lse = lse.masked_fill(~alive.squeeze(-1), -math.inf)
    else:
        z = fused_attention(
            call.query, call.key, call.value, mask=added, causal=triangle, scale=call.scale
        )
    # Right by chance or a lost NaN: the second pass tells.
    if lse is not None and not bool((lse == 0).any()):
        found = {"lse": lse}
    else:
        found = attend_in_blocks(call, with_z=False)
        z = z.masked_fill(found["lse"].isnan().unsqueeze(-1), math.nan)
    return {"z": z if alive is None else z.masked_fill(~alive, 0), **found}


def _added(
    call: Call, *, order: bool = True
) -> tuple[
    Float[Tensor, "#batch #head #query #key"] | None, Bool[Tensor, "#batch #head #query 1"] | None
]:
    """What is added to the scores, and which rows live; None for nothing and for all.

    Without `order` causal order is left to the kernel.
    """
    allowed = call.allowed.mask(call.query.shape[2], order=order)
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


@contextmanager
def forced(name: str) -> Iterator[None]:
    """torch's scaled_dot_product_attention runs this back end alone inside, or raises."""
    with sdpa_kernel([BACKENDS[name]]):
        yield


def flash(call: Call) -> Outputs:
    """z and lse by FlashAttention (Dao 2023), as torch ships it for this device."""
    call, causal = call.positively_scaled(), _triangle("flash", call)
    query, vectors = call.query, (call.query, call.key, call.value)
    if query.is_cpu:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        given = [_contiguous(one) for one in vectors]
        z, lse, *_ = _told("flash", operator, *given, is_causal=causal, scale=call.scale)
        return {"z": z, "lse": lse}
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise AttentionError(
            f'impl="flash" takes float16 and bfloat16 on {query.device.type} and the tensors are '
            f'{query.dtype}; impl="efficient" can.'
        )
    D = query.shape[-1]
    given = [pad(one, (0, -D % 8)) for one in vectors]
    operator = torch.ops.aten._scaled_dot_product_flash_attention
    z, lse, *_ = _told("flash", operator, *given, is_causal=causal, scale=call.scale)
    return {"z": z[..., :D], "lse": lse[:, :, : query.shape[2]]}


def cudnn(call: Call) -> Outputs:
    """z and lse by NVIDIA's cuDNN."""
    call, causal = call.positively_scaled(), _triangle("cudnn", call)
    operator, given = torch.ops.aten._scaled_dot_product_cudnn_attention, (None, True)
    vectors = (call.query, call.key, call.value)
    z, lse, *_ = _told("cudnn", operator, *vectors, *given, is_causal=causal, scale=call.scale)
    return {"z": z, "lse": lse.reshape(call.query.shape[:3])}


def efficient(call: Call) -> Outputs:
    """z and lse by xFormers' memory-efficient kernel (Rabe & Staats 2021)."""
    call = call.positively_scaled()
    (B, H, Q, _), K = call.query.shape, call.key.shape[2]
    triangle = call.causal and Q == K
    added, alive = _added(call, order=not triangle)
    if added is not None:
        added = pad(added.expand(B, H, Q, K), (0, -K % 16)).contiguous()[..., :K]
    operator, given = torch.ops.aten._scaled_dot_product_efficient_attention, (added, True)
    vectors = (call.query, call.key, call.value)
    z, lse, *_ = _told(
        "efficient", operator, *vectors, *given, is_causal=triangle, scale=call.scale
    )
    return _buried(z, lse[:, :, :Q], alive)


def math_backend(call: Call) -> Outputs:
    """z by torch's formula in steps; lse, which it does not give, by blocks of rows."""
    call = replace(call.positively_scaled(), want={})
    added, alive = _added(call)
    vectors = (call.query, call.key, call.value)
    with forced("math"):
        z = _told("math", scaled_dot_product_attention, *vectors, attn_mask=added, scale=call.scale)
    return _buried(z, attend_in_blocks(call, with_z=False)["lse"], alive)


def _buried(z: Tensor, lse: Tensor, alive: Tensor | None) -> Outputs:
    if alive is None:
        return {"z": z, "lse": lse}
    lse = lse.masked_fill(~alive.squeeze(-1), -math.inf)
    return {"z": z.masked_fill(~alive, 0), "lse": lse}


def _told(name: str, operator: Callable[..., Any], *tensors: Any, **options: Any) -> Any:
    """What torch's operator gives; its refusal as an AttentionError."""
    try:
        return operator(*tensors, **options)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise AttentionError(
            f'impl="{name}": torch refuses: {reason} Take another implementation; impl="sdpa" '
            "lets torch choose."
        ) from error


def _triangle(name: str, call: Call) -> bool:
    """causal as torch means it: a single query, at the end, sees every key."""
    Q, K = call.query.shape[2], call.key.shape[2]
    if call.causal and Q not in (1, K):
        raise AttentionError(
            f'impl="{name}" takes causal for as many queries as keys, and there are {Q} and {K}; '
            'impl="efficient" and impl="sdpa" can.'
        )
    return call.causal and Q > 1


@cache
def compiled_flex() -> Callable[..., Any]:
    """torch's flex_attention, compiled for the shapes that come; compiled once."""
    return torch.compile(library.flex_attention, dynamic=False)


def flex(call: Call) -> Outputs:
    """z and lse by FlexAttention; the mask of blocks is made anew for each call.

    On CUDA it is compiled into one fused kernel; elsewhere torch runs its formula in steps, right
    and slow.
    """
    query, request = call.query, getattr(library, "AuxRequest", None)
    options: dict[str, Any] = {"scale": call.scale, "score_mod": _score_change(call)}
    options["enable_gqa"] = query.shape[1] != call.key.shape[1]
    options |= {"return_lse": True} if request is None else {"return_aux": request(lse=True)}
    rules = _rules(call)
    if rules:
        options["block_mask"] = _block_mask(call, rules)
    attention = compiled_flex() if query.is_cuda else _uncompiled
    z, others = _told("flex", attention, query, call.key, call.value, **options)
    lse = others if request is None else others.lse
    z = z.masked_fill((lse == -math.inf).unsqueeze(-1), 0)
    if call.sinks is None:
        return {"z": z, "lse": lse}
    with_sink = torch.logaddexp(lse, call.sinks.to(lse.dtype)[:, None])
    return {"z": z * (lse - with_sink).exp().unsqueeze(-1).to(z.dtype), "lse": with_sink}


def _score_change(call: Call) -> Callable[..., Tensor] | None:
    """What torch does to each score: soft cap, bias and ALiBi, in this order; None for nothing."""
    (B, H, Q, _), K = call.query.shape, call.key.shape[2]
    changes: list[Callable[..., Tensor]] = []
    if call.soft_cap is not None:
        cap = call.soft_cap
        changes.append(lambda score, b, h, q, k: cap * torch.tanh(score / cap))
    if call.bias is not None:
        added = call.bias.expand(B, H, Q, K)
        changes.append(lambda score, b, h, q, k: score + added[b, h, q, k])
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.expand(B, H)
        changes.append(lambda score, b, h, q, k: score - slopes[b, h] * abs(q + (K - Q) - k))
    return reduce(_after, changes) if changes else None


def _after(first: Callable[..., Tensor], second: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # A loop over both would be a side effect to torch, which traces this.
    return lambda score, b, h, q, k: second(first(score, b, h, q, k), b, h, q, k)


def _rules(call: Call) -> list[Callable[..., Tensor]]:
    """What must be true of a query and a key that it sees, as functions that torch traces."""
    (B, H, Q, _), K = call.query.shape, call.key.shape[2]
    prefix, lengths, mask = call.prefix, call.lengths, call.mask
    # Lambdas: torch looks at how many arguments they take, and traces them.
    rules: list[Callable[..., Tensor]] = []
    if prefix is not None:
        rules.append(lambda b, h, q, k: (k <= q + (K - Q)) | (k < prefix[b]))
    elif call.causal:
        rules.append(lambda b, h, q, k: k <= q + (K - Q))
    before, after = call.window or (None, None)
    if before is not None:
        rules.append(lambda b, h, q, k: k >= q + (K - Q) - before)
    if after is not None:
        rules.append(lambda b, h, q, k: k <= q + (K - Q) + after)
    if lengths is not None:
        rules.append(lambda b, h, q, k: k < lengths[b])
    if mask is not None:
        everywhere = mask.expand(B, H, Q, K)
        rules.append(lambda b, h, q, k: everywhere[b, h, q, k])
    return rules


def _block_mask(call: Call, rules: list[Callable[..., Tensor]]) -> library.BlockMask:
    """torch's BlockMask of these rules: blocks that nobody may see are left out."""
    (B, H, Q, _), K = call.query.shape, call.key.shape[2]
    mask = call.mask
    sentences = B if any(one is not None for one in (call.lengths, mask, call.prefix)) else None
    allowed, device = library.and_masks(*rules), str(call.query.device)
    return library.create_block_mask(allowed, sentences, None if mask is None else H, Q, K, device)


def _uncompiled(*tensors: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        # It says that uncompiled is slow; on a CPU that is what was asked for.
        warnings.simplefilter("ignore")
        attention: Callable[..., Any] = library.flex_attention
        return attention(*tensors, **options)
