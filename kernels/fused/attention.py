"""The implementation "triton": attention and its statistics in fused kernels, O(N) memory.

`forward.py`, followed by `columns.py` for what is summed over queries and by `strongest.py` for the
largest weights. Where an input requires
gradients the call is an autograd function, whose backward is `backward.py`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minibert.errors import AttentionError
from minibert.kernels.call import Call, Outputs, most_ranks
from minibert.kernels.fused.backward import backward
from minibert.kernels.fused.columns import received_and_map
from minibert.kernels.fused.forward import forward
from minibert.kernels.fused.strongest import strongest


def attend(call: Call) -> Outputs:
    """z, lse and every wanted statistic, without a matrix of probs.

    With `argmax` of 16-bit inputs the last bits of a score hold its column: scores closer than 63
    last places of float32, some 4e-6 of them, may tie, and row_max and max_prob err by as much.
    Offsets, keys and argmax of packed sentences count from the first token of each.
    Gradients reach query, key, value and sinks through z and lse, in O(N) memory; statistics
    have none, and only those that are asked for are computed. The gradient of a gradient is refused
    by torch.
    Raises AttentionError when the map of packed sentences is wanted, as there is none of several,
    and where a bias or alibi_slopes ask for a gradient.
    """
    if call.packed is not None and "map" in call.want:
        raise AttentionError(
            'packed sentences: "map" is wanted, but each sentence would have its own; '
            "ask for it sentence by sentence."
        )
    if not (torch.is_grad_enabled() and call.requires_grad):
        return _attend(call)
    for name, one in (("bias", call.bias), ("alibi_slopes", call.alibi_slopes)):
        if one is not None and one.requires_grad:
            raise AttentionError(
                f'impl="triton" has no gradient for {name}; expected one that is not trained. '
                'Detach it, or use impl="eager".'
            )
    tensors = call.tensors
    # Autograd keeps the tensors; what is kept beside them knows their shapes alone.
    shapes: dict[str, Any] = {n: torch.empty_like(x, device="meta") for n, x in tensors.items()}
    told = _Told(replace(call, **shapes), tuple(tensors))
    outputs = _Attention.apply(told, *tensors.values())
    return dict(zip(told.outputs, outputs, strict=True))


def _attend(call: Call) -> Outputs:
    found = forward(call)
    if "received" in call.want or "map" in call.want:
        found |= received_and_map(call, lse=found["lse"])
    if most_ranks(call.want):
        found |= strongest(call, lse=found["lse"])
    return found


class _Told:
    """What autograd passes on as it is: the call without its tensors, and their names."""

    def __init__(self, call: Call, names: tuple[str, ...]) -> None:
        self.call, self.names = call, names
        #: The names of the outputs, z and lse first, once they are known.
        self.outputs: tuple[str, ...] = ()

    def with_tensors(self, tensors: Iterable[Tensor]) -> Call:
        """The call with its tensors."""
        given: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        return replace(self.call, **given)


class _Attention(torch.autograd.Function):
    """`_attend` of a call in parts."""

    @staticmethod
    def forward(ctx: Any, told: _Told, *tensors: Tensor) -> tuple[Tensor, ...]:
        call = told.with_tensors(tensors)
        found = _attend(call)
        told.outputs = ("z", "lse", *(name for name in found if name not in ("z", "lse")))
        outputs = tuple(found[name] for name in told.outputs)
        # Autograd sees when one of these is changed before the backward.
        beside = [one for one in (call.lengths, call.mask, call.prefix) if one is not None]
        ctx.told = told
        ctx.save_for_backward(*outputs[:2], *tensors, *beside)
        ctx.mark_non_differentiable(*outputs[2:])
        # Otherwise a loss that uses only z would make torch compute a gradient of lse, which is 0.
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, z_gradient: Tensor | None, lse_gradient: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        told, (z, lse, *tensors) = ctx.told, ctx.saved_tensors
        call = told.with_tensors(tensors[: len(told.names)])
        asked = zip(told.names, ctx.needs_input_grad[1:], strict=True)
        z_gradient = torch.zeros_like(z) if z_gradient is None else z_gradient
        wanted = [name for name, needed in asked if needed]
        found = backward(call, z_gradient, z, lse, lse_gradient=lse_gradient, wanted=wanted)
        return (None, *(found.get(name) for name in told.names))
