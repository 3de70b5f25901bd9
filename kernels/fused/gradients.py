"""Attention by Triton as an autograd function, whose backward is `backward.py`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

__all__ = ["attend_with_gradient", "double_check"]

_WITHOUT_GRADIENT = ("prefix", "soft_cap", "alibi_slopes", "sinks", "starts")
_INPUTS = ("query", "key", "value", "bias")
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

    Gradients reach query, key, value and bias; only those that are asked for are computed. O(N)
    memory. The gradient of a gradient is refused by torch.
    Raises AttentionError for what the backward does not take yet.
    """
    told = {name: getattr(options, name) for name in _WITHOUT_GRADIENT}
    told["window"] = None if options.window == (None, None) else options.window
    told["groups"] = True if key.shape[1] != query.shape[1] else None
    told["value_size"] = True if value.shape[-1] != query.shape[-1] else None
    told["d_head > 128"] = True if query.shape[-1] > 128 else None
    if beyond := [name for name, one in told.items() if one is not None]:
        raise AttentionError(
            f'impl="triton" has no gradient with {", ".join(beyond)}; impl="eager" has.'
        )
    names: list[str] = []
    fixed = {"causal": options.causal, "scale": options.scale}
    call = {"compute": compute, "options": fixed, "want": want}
    call |= {"names": names, "check": _double_check.get()}
    outputs = _Attention.apply(query, key, value, options.bias, options.lengths, options.mask, call)
    return dict(zip(names, outputs, strict=True))


class _Attention(torch.autograd.Function):
    """`names` of the call is filled with the names of the outputs, z and lse first."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        lengths: Tensor | None,
        mask: Tensor | None,
        call: dict[str, Any],
    ) -> tuple[Tensor, ...]:
        options = call["options"] | {"bias": bias, "lengths": lengths, "mask": mask}
        found = call["compute"](query, key, value, Options(**options), want=call["want"])
        call["names"].extend(["z", "lse", *(name for name in found if name not in ("z", "lse"))])
        outputs = tuple(found[name] for name in call["names"])
        ctx.options, ctx.check = call["options"], call["check"]
        ctx.save_for_backward(query, key, value, bias, lengths, mask, *outputs[:2])
        ctx.mark_non_differentiable(*outputs[2:])
        # Otherwise a loss that uses only z would make torch compute a gradient of lse, which is 0.
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, z_gradient: Tensor | None, lse_gradient: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        query, key, value, bias, lengths, mask, z, lse = ctx.saved_tensors
        wanted = [
            name for name, needed in zip(_INPUTS, ctx.needs_input_grad, strict=False) if needed
        ]
        z_gradient = torch.zeros_like(z) if z_gradient is None else z_gradient
        options = ctx.options | {"bias": bias, "lengths": lengths, "mask": mask}
        options["lse_gradient"] = lse_gradient
        found = backward(z_gradient, query, key, value, z, lse, wanted=wanted, **options)
        if ctx.check:
            check_gradients(found, z_gradient, query, key, value, **options)
        return *(found.get(name) for name in _INPUTS), None, None, None
