"""Attention by Triton as an autograd function, whose backward is `backward.py`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minibert.errors import AttentionError
from minibert.kernels.check.gradient_check import check_gradients
from minibert.kernels.fused.backward import backward
from minibert.kernels.fused.launch import Options
from minibert.kernels.requests import Want
from minibert.quantities import Float

__all__ = ["attend_with_gradient", "checked_backward", "checks", "double_check"]

_VECTORS = ("query", "key", "value")
#: The tensors among the options; bias and sinks may be trained.
_TENSORS = ("bias", "sinks", "lengths", "mask", "prefix", "alibi_slopes", "starts", "key_starts")
_double_check: ContextVar[bool] = ContextVar("double_check", default=False)


@contextmanager
def double_check() -> Iterator[None]:
    """Every backward of attention made in here is computed again, in float64, and compared.

    A gradient that rounding does not explain raises AttentionError with the place. N x N memory.
    """
    token = _double_check.set(True)
    try:
        yield
    finally:
        _double_check.reset(token)


def checks() -> bool:
    """Whether this is inside `double_check`."""
    return _double_check.get()


def attend_with_gradient(
    compute: Callable[..., dict[str, Tensor]],
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch key_head key d_head"],
    value: Float[Tensor, "batch key_head key d_value"],
    options: Options,
    *,
    want: Want,
) -> dict[str, Tensor]:
    """The result of `compute` for the same arguments; z and lse have gradients, statistics do not.

    Gradients reach query, key, value, bias and sinks; only those that are asked for are computed.
    O(N) memory. The gradient of a gradient is refused by torch.
    Raises AttentionError where alibi_slopes ask for a gradient.
    """
    if options.alibi_slopes is not None and options.alibi_slopes.requires_grad:
        raise AttentionError(
            'impl="triton" has no gradient for alibi_slopes; expected slopes that are not trained. '
            'Detach them, or use impl="eager".'
        )
    names: list[str] = []
    # Autograd keeps the tensors, and sees when one of them is changed before the backward.
    tensors = [getattr(options, name) for name in _TENSORS]
    nothing: dict[str, Any] = dict.fromkeys(_TENSORS)
    fixed = replace(options, **nothing)
    call = {"compute": compute, "options": fixed, "want": want}
    call |= {"names": names, "check": checks()}
    outputs = _Attention.apply(query, key, value, call, *tensors)
    return dict(zip(names, outputs, strict=True))


class _Attention(torch.autograd.Function):
    """`names` of the call is filled with the names of the outputs, z and lse first."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: dict[str, Any],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        options = replace(call["options"], **dict(zip(_TENSORS, tensors, strict=True)))
        found = call["compute"](query, key, value, options, want=call["want"])
        call["names"].extend(["z", "lse", *(name for name in found if name not in ("z", "lse"))])
        outputs = tuple(found[name] for name in call["names"])
        ctx.options, ctx.check = call["options"], call["check"]
        ctx.save_for_backward(query, key, value, *outputs[:2], *tensors)
        ctx.mark_non_differentiable(*outputs[2:])
        # Otherwise a loss that uses only z would make torch compute a gradient of lse, which is 0.
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, z_gradient: Tensor | None, lse_gradient: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        query, key, value, z, lse, *tensors = ctx.saved_tensors
        options = replace(ctx.options, **dict(zip(_TENSORS, tensors, strict=True)))
        names = (*_VECTORS, "", *_TENSORS)
        asked = zip(names, ctx.needs_input_grad, strict=True)
        z_gradient = torch.zeros_like(z) if z_gradient is None else z_gradient
        found = checked_backward(
            z_gradient, query, key, value, z, lse, options, lse_gradient=lse_gradient,
            wanted=[name for name, needed in asked if needed], check=ctx.check,
        )  # fmt: skip
        return tuple(found.get(name) for name in names)


def checked_backward(
    z_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    z: Tensor,
    lse: Tensor,
    options: Options,
    *,
    lse_gradient: Tensor | None,
    wanted: Iterable[str],
    check: bool,
) -> dict[str, Tensor]:
    """The gradients of what is `wanted`; with `check` compared with float64."""
    found = backward(
        z_gradient, query, key, value, z, lse, options, lse_gradient=lse_gradient, wanted=wanted
    )
    if check:
        told = _keywords(options) | {"lse_gradient": lse_gradient}
        check_gradients(found, z_gradient, query, key, value, **told)
    return found


def _keywords(options: Options) -> dict[str, Any]:
    """What the options say, in the keywords of `minibert.kernels.eager.attend`."""
    names = ("scale", "causal", "lengths", "mask", "bias", "prefix", "soft_cap")
    found = {name: getattr(options, name) for name in (*names, "alibi_slopes", "sinks")}
    if options.window != (None, None):
        found["window"] = options.window
    for name, starts in (("packed", options.starts), ("packed_keys", options.key_starts)):
        if starts is not None:
            found[name] = tuple(starts.diff().tolist())
    return {name: one for name, one in found.items() if one is not None}
