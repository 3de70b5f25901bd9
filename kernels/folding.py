"""A call in another form, for implementations that do not take it as it is.

Lengths, causal order, a window and a prefix become a mask; ALiBi a bias; fewer key heads are
repeated; pages are put one after the other; packed sentences are padded.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.call import Call
from minibert.kernels.masks import with_alibi
from minibert.kernels.packing import padded
from minibert.quantities import Float, Int

__all__ = ["folded", "gathered", "keywords", "padded_call", "reads_packed", "repeated"]


def folded(call: Call, taken: frozenset[str]) -> Call:
    """The call for an implementation with these options: only the mask is left to `keywords`."""
    if call.pages is not None and "pages" not in taken:
        call = gathered(call)
    if "groups" in call.asks and "groups" not in taken:
        heads = call.query.shape[1]
        key, value = repeated(call.key, heads), repeated(call.value, heads)
        call = replace(call, key=key, value=value)
    # Whoever takes ALiBi counts positions from the end of all keys.
    alibi = "alibi_slopes" in taken and call.allowed.aligned
    if call.alibi_slopes is not None and not alibi:
        ends = call.allowed.ends
        bias = with_alibi(call.bias, call.alibi_slopes, call.query, call.key, ends=ends)
        call = replace(call, bias=bias, alibi_slopes=None)
    return call


def keywords(call: Call, taken: frozenset[str]) -> dict[str, Any]:
    """The options of a folded call, in the form that an implementation takes."""
    options, keys = call.options(), call.allowed
    # A prefix is seen in spite of causal order: both are in the mask, or neither.
    ordered = "causal" in taken and ("prefix" in taken or "prefix" not in keys.options)
    apart = {
        "lengths": "lengths" in taken or "lengths" not in keys.options,
        "order": ordered or "causal" not in keys.options,
        "window": "window" in taken or "window" not in keys.options,
    }
    if "mask" in taken and not all(apart.values()):
        told = {name: not said for name, said in apart.items()}
        options["mask"] = keys.mask(call.query.shape[2], **told)
        if not apart["order"]:
            options |= {"causal": False, "prefix": None}
    return {name: options[name] for name in options if name in taken}


def repeated(
    vectors: Float[Tensor, "batch kv_head key size"], heads: int
) -> Float[Tensor, "batch head key size"]:
    """Each head as many times, one after the other, as there are query heads for it."""
    return vectors.repeat_interleave(heads // vectors.shape[1], dim=1)


def gathered(call: Call) -> Call:
    """The keys and values of each sentence's pages, one after the other."""
    pages, lengths = call.pages, call.allowed.length_tensor
    assert pages is not None
    assert lengths is not None
    key, value = (_gathered(one, pages, lengths) for one in (call.key, call.value))
    # As a mask: beside lengths, as many queries as keys would count as padded self-attention.
    real = (torch.arange(key.shape[2], device=key.device) < lengths[:, None])[:, None, None]
    given = real if call.allowed.given is None else call.allowed.given & real
    allowed = replace(
        call.allowed, position=key.shape[2], ends=lengths, lengths=None, on_device=None, given=given
    )
    return replace(call, key=key, value=value, allowed=allowed, pages=None)


def _gathered(
    vectors: Float[Tensor, "n_pages kv_head slot size"],
    pages: Int[Tensor, "batch page"],
    lengths: Int[Tensor, " batch"],
) -> Float[Tensor, "batch kv_head key size"]:
    # What lies beyond a length is not read: it may name no page, and hold NaN.
    slots = vectors.shape[2]
    used = torch.arange(pages.shape[1], device=pages.device) * slots < lengths[:, None]
    found = vectors[torch.where(used, pages, 0).long()]  # batch page kv_head slot size
    found = found.transpose(1, 2).flatten(2, 3)
    real = torch.arange(found.shape[2], device=pages.device) < lengths[:, None]
    return torch.where(real[:, None, :, None], found, 0)


def reads_packed(asked: frozenset[str], taken: frozenset[str]) -> bool:
    """Whether packed sentences are handed on as they are.

    Not where something else becomes a mask or a bias, which packed sentences do not have.
    """
    return "packed" in taken and asked - taken <= {"groups"}


def padded_call(call: Call) -> Call:
    """Packed sentences as a batch, a sentence a row."""
    queries = call.allowed.packed
    assert queries is not None
    keys = call.allowed.packed_keys or queries
    query = padded(call.query, queries)
    key, value = padded(call.key, keys), padded(call.value, keys)
    return replace(call, query=query, key=key, value=value, allowed=call.allowed.padded)
