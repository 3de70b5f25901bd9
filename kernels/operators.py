"""Attention as one operator of torch, for implementations that torch.compile cannot look into.

In a compiled function such a call is one node of the graph: the shapes of its outputs are known,
and what it does is not traced. Where the implementation has a `backward`, gradients are another
node; they reach query, key, value, bias and sinks through z and lse.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import TENSORS, Call, Outputs, Want
from minibert.kernels.checks import empty_outputs
from minibert.kernels.registry import Implementation, implementations

#: What may be trained, and the other tensors in the order in which the operator takes them.
_VECTORS, _TRAINED = ("query", "key", "value"), ("bias", "sinks")
_OF_KEYS = ("given", "prefix", "ends")
_OTHERS = ("alibi_slopes", *_OF_KEYS, "lengths", *sorted(TENSORS))
#: For no limit in a window: lists of an operator hold numbers alone.
_NONE = -1


def has_operator(chosen: Implementation, call: Call) -> bool:
    """Whether the call can be one node of a graph: gradients have a node, all queries in order."""
    if torch.is_grad_enabled() and call.requires_grad:
        slopes = call.alibi_slopes
        if chosen.backward is None or (slopes is not None and slopes.requires_grad):
            return False
    return call.allowed.queries is None


def call_operator(name: str, call: Call) -> Outputs:
    """z and what the call wants, of an implementation that takes the call as it is."""
    keys, asked = call.allowed, call.want
    gradient = torch.is_grad_enabled() and call.requires_grad
    # The backward reads lse.
    want = asked | {"lse": ()} if gradient else asked
    optional: dict[str, Tensor | None] = {"alibi_slopes": call.alibi_slopes}
    optional |= {one: getattr(keys, one) for one in _OF_KEYS}
    optional |= {"lengths": keys.length_tensor} | {one: want.get(one) for one in TENSORS}
    others = [optional[one] for one in _OTHERS]
    window = keys.window and [_NONE if one is None else one for one in keys.window]
    numbers = (call.scale, call.soft_cap, keys.causal, window, keys.packed, keys.packed_keys)
    vectors = (call.query, call.key, call.value)
    outputs = _attention(*vectors, call.bias, call.sinks, others, name, _text(want), *numbers)
    found = dict(zip(("z", *want), outputs, strict=True))
    return {
        name: one if name in ("z", "lse") or not gradient else one.detach()
        for name, one in found.items()
        if name == "z" or name in asked
    }


@torch.library.custom_op("minibert::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    others: Sequence[Tensor | None],
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
    call = _call((query, key, value, bias, sinks), others, wanted, numbers)
    found = implementations()[name].fn(call)
    # No output of an operator may share memory with another one, and all lie as `_shapes` says.
    return [found[one].clone(memory_format=torch.contiguous_format) for one in ("z", *call.want)]


@_attention.register_fake
def _shapes(*given: Any) -> list[Tensor]:
    vectors, (others, _, wanted), numbers = given[:5], given[5:8], given[8:]
    return empty_outputs(_call(vectors, others, wanted, numbers))


@torch.library.custom_op("minibert::attention_gradients", mutates_args=())
def _gradients(
    z_gradient: Tensor,
    lse_gradient: Tensor,
    z: Tensor,
    lse: Tensor,
    asked: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    others: Sequence[Tensor | None],
    name: str,
    scale: float,
    soft_cap: float | None,
    causal: bool,
    window: Sequence[int] | None,
    packed: Sequence[int] | None,
    packed_keys: Sequence[int] | None,
) -> list[Tensor]:
    numbers = (scale, soft_cap, causal, window, packed, packed_keys)
    call = _call((query, key, value, bias, sinks), others, "", numbers)
    chosen = implementations()[name]
    assert chosen.backward is not None
    found = chosen.backward(
        call, z_gradient, z, lse, lse_gradient=lse_gradient, wanted=asked.split()
    )
    return [found[one].contiguous() for one in asked.split()]


@_gradients.register_fake
def _gradient_shapes(*given: Any) -> list[Tensor]:
    asked, tensors = given[4], dict(zip((*_VECTORS, *_TRAINED), given[5:10], strict=True))
    return [tensors[one].new_empty(tensors[one].shape) for one in asked.split()]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Keeps the inputs, z and lse for the backward."""
    tensors, others, (ctx.name, wanted) = inputs[:5], inputs[5], inputs[6:8]
    ctx.lse = ("z", *(part.split(",")[0] for part in wanted.split())).index("lse")
    kept = (*tensors, *others)
    ctx.there, ctx.numbers = [one is not None for one in kept], inputs[8:]
    ctx.save_for_backward(output[0], output[ctx.lse], *(one for one in kept if one is not None))


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    """The gradients of what needs one, in the order of the operator's arguments."""
    z, lse, *saved = ctx.saved_tensors
    left = iter(saved)
    kept = [next(left) if there else None for there in ctx.there]
    tensors, others = kept[:5], kept[5:]
    names = (*_VECTORS, *_TRAINED)
    asked = [name for name, needed in zip(names, ctx.needs_input_grad, strict=False) if needed]
    given = (gradients[0], gradients[ctx.lse], z, lse, " ".join(asked))
    found = dict(
        zip(asked, _gradients(*given, *tensors, others, ctx.name, *ctx.numbers), strict=True)
    )
    # torch looks into a list of tensors alone, and wants as many gradients as it saw tensors.
    of_others = [None] * len(others) if all(ctx.there[5:]) else None
    return (*(found.get(name) for name in names), of_others, None, None, *[None] * 6)


_attention.register_autograd(_backward, setup_context=_keep)


def _text(want: Want) -> str:
    """Names and numbers as one text: lists of both are nothing that an operator takes."""
    parts = []
    for name, given in want.items():
        numbers = () if name in TENSORS else given
        parts.append(",".join([name, *[str(number) for number in numbers]]))
    return " ".join(parts)


def _call(
    tensors: Sequence[Any], others: Sequence[Tensor | None], wanted: str, numbers: tuple[Any, ...]
) -> Call:
    query, key, value, bias, sinks = tensors
    scale, soft_cap, causal, window, packed, packed_keys = numbers
    optional = dict(zip(_OTHERS, others, strict=True))
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
    changes: dict[str, Any] = {"soft_cap": soft_cap, "sinks": sinks}
    changes["alibi_slopes"] = optional["alibi_slopes"]
    return Call(query, key, value, scale, allowed, bias, want, **changes)
