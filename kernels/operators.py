"""Attention as one operator of torch, for implementations that torch.compile cannot look into.

In a compiled function such a call is one node of the graph: the shapes of its outputs are known,
and what it does is not traced. Gradients do not flow through it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Call
from minibert.kernels.folding import keywords
from minibert.kernels.outputs import empty_outputs, named_outputs
from minibert.kernels.registry import implementations
from minibert.kernels.requests import TENSORS, Want

__all__ = ["call_operator", "has_operator"]

#: Tensors that a call may have, in the order in which the operator takes them.
_OF_CALL = ("bias", "alibi_slopes", "sinks")
_OF_KEYS = ("given", "prefix", "ends")
#: For no limit in a window: lists of an operator hold numbers alone.
_NONE = -1
_OPTIONAL = (*_OF_CALL, *_OF_KEYS, "lengths", *sorted(TENSORS))


def has_operator(call: Call) -> bool:
    """Whether the call can be one node of a graph: no gradient, and all queries in order."""
    gradient = torch.is_grad_enabled() and call.requires_grad
    return not gradient and call.allowed.queries is None


def call_operator(name: str, call: Call) -> dict[str, Tensor]:
    """z and what the call wants, of an implementation that takes the call as it is."""
    keys, want = call.allowed, call.want
    optional = {one: getattr(call, one) for one in _OF_CALL}
    optional |= {one: getattr(keys, one) for one in _OF_KEYS}
    optional |= {"lengths": keys.length_tensor} | {one: want.get(one) for one in TENSORS}
    tensors = [optional[one] for one in _OPTIONAL]
    window = keys.window and [_NONE if one is None else one for one in keys.window]
    numbers = (call.scale, call.soft_cap, keys.causal, window, keys.packed, keys.packed_keys)
    found = _attention(call.query, call.key, call.value, tensors, name, _text(want), *numbers)
    return dict(zip(("z", *want), found, strict=True))


@torch.library.custom_op("minibert::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tensors: Sequence[Tensor | None],
    name: str,
    wanted: str,
    scale: float,
    soft_cap: float | None,
    causal: bool,
    window: Sequence[int] | None,
    packed: Sequence[int] | None,
    packed_keys: Sequence[int] | None,
) -> list[Tensor]:
    numbers = (scale, soft_cap, causal, window, packed, packed_keys)
    call = _call((query, key, value), tensors, wanted, numbers)
    chosen = implementations()[name]
    if chosen.of_call is not None:
        found = chosen.of_call(call)
    else:
        arguments = keywords(call, chosen.options)
        found = named_outputs(chosen.fn(query, key, value, **arguments), name)
    # No output of an operator may share memory with another one.
    return [found[one].clone() for one in ("z", *call.want)]


@_attention.register_fake
def _shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tensors: Sequence[Tensor | None],
    name: str,
    wanted: str,
    *numbers: Any,
) -> list[Tensor]:
    return empty_outputs(_call((query, key, value), tensors, wanted, numbers))


def _text(want: Want) -> str:
    """Names and numbers as one text: lists of both are nothing that an operator takes."""
    parts = []
    for name, given in want.items():
        numbers = () if name in TENSORS else given
        parts.append(",".join([name, *[str(number) for number in numbers]]))
    return " ".join(parts)


def _call(
    vectors: tuple[Tensor, Tensor, Tensor],
    tensors: Sequence[Tensor | None],
    wanted: str,
    numbers: tuple[Any, ...],
) -> Call:
    query, key, value = vectors
    scale, soft_cap, causal, window, packed, packed_keys = numbers
    optional = dict(zip(_OPTIONAL, tensors, strict=True))
    want: Want = {}
    for part in wanted.split():
        name, *given = part.split(",")
        want[name] = optional[name] if name in TENSORS else tuple(map(int, given))
    before, after = window or (_NONE, _NONE)
    allowed = AllowedKeys(
        query.shape[0],
        key.shape[2],
        query.device,
        causal,
        packed=packed and tuple(packed),
        given=optional["given"],
        window=window and (None if before == _NONE else before, None if after == _NONE else after),
        prefix=optional["prefix"],
        packed_keys=packed_keys and tuple(packed_keys),
        ends=optional["ends"],
        on_device=optional["lengths"],
    )
    bias, slopes, sinks = (optional[one] for one in _OF_CALL)
    changes: dict[str, Any] = {"soft_cap": soft_cap, "alibi_slopes": slopes, "sinks": sinks}
    return Call(query, key, value, scale, allowed, bias, want, **changes)
