"""Attention as one operator of torch, so that `torch.compile` has one graph around it.

What an implementation does inside is not traced: Triton's kernels are launched, and the others run
as they do without a compiler. Source: torch's custom operators, `torch.library.custom_op`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Call
from minibert.kernels.outputs import promised_outputs
from minibert.kernels.requests import TENSORS, Want
from minibert.kernels.validation import check_lengths

__all__ = ["as_operator"]

#: The tensors of a call whose gradients flow, then those that have none.
_LEAVES = ("query", "key", "value", "bias", "alibi_slopes", "sinks")
_OTHERS = ("pages", "given", "prefix", "on_device", "ends", "key_sums", "pair_mass")


def as_operator(call: Call, impl: str) -> dict[str, Tensor]:
    """What `compute` gives for the call, z first, by one node of the graph that is compiled."""
    keys, want = call.allowed, call.want
    leaves = [getattr(call, name) for name in _LEAVES]
    others = [call.pages, keys.given, keys.prefix, keys.on_device, keys.ends]
    others += [want.get(name) for name in TENSORS]
    numbers: list[int] = []
    for name, parameters in want.items():
        parameters = () if name in TENSORS else parameters
        numbers += [len(parameters), *parameters]
    # An empty list would count as one of tensors.
    numbers.append(0)
    told = [keys.batch, keys.position, int(keys.causal), *_listed(keys.lengths)]
    for places in (keys.packed, keys.packed_keys, keys.queries):
        told += _listed(places)
    told += [-1 if one is None else one for one in keys.window or (-1, -1)]
    soft_cap = 0.0 if call.soft_cap is None else call.soft_cap
    found = torch.ops.minibert.attention(
        *leaves, others, [call.scale, soft_cap], told, numbers, ",".join(want), impl
    )
    return dict(zip(("z", *(name for name in want if name != "z")), found, strict=True))


def _listed(numbers: Sequence[int] | None) -> list[int]:
    """How many there are, and they; −1 for None."""
    return [-1] if numbers is None else [len(numbers), *numbers]


def _taken(numbers: list[int]) -> tuple[int, ...] | None:
    """The reverse of `_listed`, taken from the front."""
    count = numbers.pop(0)
    return None if count < 0 else tuple(numbers.pop(0) for _ in range(count))


def _call(
    tensors: Sequence[Tensor | None],
    scales: Sequence[float],
    told: Sequence[int],
    numbers: Sequence[int],
    names: str,
) -> Call:
    """The call that `as_operator` took apart."""
    given = dict(zip((*_LEAVES, *_OTHERS), tensors, strict=True))
    left, parameters = list(told), list(numbers)
    want: Want = {}
    for name in filter(None, names.split(",")):
        want[name] = _taken(parameters)
        if name in TENSORS:
            want[name] = given[name]
    query, key, value = (given[name] for name in _LEAVES[:3])
    assert query is not None
    assert key is not None
    assert value is not None
    batch, position, causal = (left.pop(0) for _ in range(3))
    lengths, packed, packed_keys, queries = (_taken(left) for _ in range(4))
    before, after = (None if one < 0 else one for one in left)
    keys = AllowedKeys(
        batch=batch,
        position=position,
        device=query.device,
        causal=bool(causal),
        lengths=lengths,
        packed=packed,
        packed_keys=packed_keys,
        queries=queries,
        window=None if before is None and after is None else (before, after),
        given=given["given"],
        prefix=given["prefix"],
        on_device=given["on_device"],
        ends=given["ends"],
    )
    options: dict[str, Any] = {n: given[n] for n in ("bias", "alibi_slopes", "sinks", "pages")}
    soft_cap = scales[1] or None
    return Call(query, key, value, scales[0], keys, want=want, soft_cap=soft_cap, **options)


def _outputs(call: Call, impl: str) -> list[Tensor]:
    """z and what is wanted. Raises AttentionError for lengths that cannot be, read only now."""
    from minibert.kernels.compute import compute

    keys = call.allowed
    if keys.on_device is not None and keys.on_device.is_cpu:
        check_lengths(keys.on_device, keys.batch, keys.position)
        known = replace(keys, lengths=tuple(keys.on_device.tolist()), on_device=None)
        call = replace(call, allowed=known)
    found = compute(call, impl)
    named: Mapping[str, Tensor | None] = vars(found)
    if found.statistics is not None:
        named = {**named, **vars(found.statistics)}
    chosen = [named[name] for name in ("z", *call.want)]
    return [one for one in chosen if one is not None]


# The types of an operator are read from its annotations, which know Optional alone.
@torch.library.custom_op("minibert::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Optional[Tensor],  # noqa: UP045
    alibi_slopes: Optional[Tensor],  # noqa: UP045
    sinks: Optional[Tensor],  # noqa: UP045
    others: Sequence[Optional[Tensor]],  # noqa: UP045
    scales: Sequence[float],
    told: Sequence[int],
    numbers: Sequence[int],
    names: str,
    impl: str,
) -> list[Tensor]:
    tensors = [query, key, value, bias, alibi_slopes, sinks, *others]
    with torch.no_grad():
        found = _outputs(_call(tensors, scales, told, numbers, names), impl)
    # Whoever compiles the rest counts on the strides that `_shapes` gives.
    return [one.contiguous() for one in found]


@_attention.register_fake
def _shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    others: Sequence[Tensor | None],
    scales: Sequence[float],
    told: Sequence[int],
    numbers: Sequence[int],
    names: str,
    impl: str,
) -> list[Tensor]:
    tensors = [query, key, value, bias, alibi_slopes, sinks, *others]
    call = _call(tensors, scales, told, numbers, names)
    return [
        call.query.new_empty(shape, dtype=dtype)
        for shape, dtype in promised_outputs(call, ("z", *call.want))
    ]


@torch.library.custom_op("minibert::attention_gradients", mutates_args=())
def _gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Optional[Tensor],  # noqa: UP045
    alibi_slopes: Optional[Tensor],  # noqa: UP045
    sinks: Optional[Tensor],  # noqa: UP045
    others: Sequence[Optional[Tensor]],  # noqa: UP045
    scales: Sequence[float],
    told: Sequence[int],
    numbers: Sequence[int],
    names: str,
    impl: str,
    given: Sequence[Optional[Tensor]],  # noqa: UP045
    needed: Sequence[bool],
) -> list[Tensor]:
    """The gradients of the leaves that are `needed`; the forward is computed once more."""
    given_leaves = (query, key, value, bias, alibi_slopes, sinks)
    # Below an operator torch records nothing, unless it is told to.
    recording = torch._C._SetExcludeDispatchKeyGuard(
        torch._C.DispatchKey.AutogradFunctionality, False
    )
    with recording, torch.enable_grad():
        leaves = [
            None if one is None else one.detach().requires_grad_(need)
            for one, need in zip(given_leaves, needed, strict=True)
        ]
        call = _call([*leaves, *others], scales, told, numbers, names)
        found = zip(_outputs(call, impl), given, strict=True)
        flowing = [(one, by) for one, by in found if by is not None and one.requires_grad]
        asked = [one for one in leaves if one is not None and one.requires_grad]
        outputs, by = [one for one, _ in flowing], [one for _, one in flowing]
        got = torch.autograd.grad(outputs, asked, by, allow_unused=True, materialize_grads=True)
    return [one.contiguous().clone() for one in got]


@_gradients.register_fake
def _gradient_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    others: Sequence[Tensor | None],
    scales: Sequence[float],
    told: Sequence[int],
    numbers: Sequence[int],
    names: str,
    impl: str,
    given: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor]:
    leaves = zip((query, key, value, bias, alibi_slopes, sinks), needed, strict=True)
    return [
        torch.empty(one.shape, dtype=one.dtype, device=one.device)
        for one, need in leaves
        if need and one is not None
    ]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *leaves, others, scales, told, numbers, names, impl = inputs
    ctx.options = (scales, told, numbers, names, impl)
    ctx.there = [one is not None for one in (*leaves, *others)]
    ctx.save_for_backward(*(one for one in (*leaves, *others) if one is not None))


def _backward(ctx: Any, given: list[Tensor | None]) -> tuple[Any, ...]:
    saved = iter(ctx.saved_tensors)
    tensors = [next(saved) if there else None for there in ctx.there]
    leaves, others = tensors[: len(_LEAVES)], tensors[len(_LEAVES) :]
    needed = [bool(one) for one in ctx.needs_input_grad[: len(_LEAVES)]]
    flowing = [None if one is None or not one.is_floating_point() else one for one in given]
    got = iter(
        torch.ops.minibert.attention_gradients(*leaves, others, *ctx.options, flowing, needed)
    )
    found = [next(got) if need else None for need in needed]
    # torch counts a list as tensors only where all of it are.
    of_others = None if any(one is None for one in others) else [None] * len(others)
    return *found, of_others, *[None] * len(ctx.options)


_attention.register_autograd(_backward, setup_context=_keep)
