"""The gradient of one number with respect to every quantity of a trace.

Autograd gives the gradients of what the forward pass kept (query, key, value, z and the streams)
in one backward pass, O(position) memory. Everything else has a formula here, as it has one in
formulas.py, and is computed from what is nearest when it is read: for one layer or one head alone.

A number may also be made of quantities that are computed when they are read, such as one cell of
probs. Then that direct part is seen by a hook on what was read, and added to the formula.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.config import Config
from minibert.layers.linear import linear_is_plain
from minibert.quantities import QUANTITIES, Float, Hidden, Logits
from minibert.trace.formulas import EVERYTHING, Place, cut
from minibert.trace.layer_view import LayerView, layer_quantity, place_of

__all__ = ["FORMULAS", "Found", "Gradients", "differentiate", "watch"]


@dataclass(frozen=True, eq=False)
class Found:
    """What one backward pass found: gradients by name, of the whole trace and of each layer."""

    kept: dict[str, Tensor]
    records: list[dict[str, Tensor]]
    direct: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    """What the number has of a quantity by itself, not by way of what is computed from it."""

    def add_direct(self, at: Place, name: str, gradient: Tensor) -> None:
        """Remember the direct part of a quantity that was read at this place."""
        size = list(gradient.shape)
        axes = QUANTITIES[name].axes
        if "head" in axes:
            size[axes.index("head")] = at.trace.config.n_heads
        if "query" in axes:
            size[axes.index("query")] = at.trace.allowed.position
        whole = self.direct.get((at.index, name))
        if whole is None:
            whole = self.direct[at.index, name] = gradient.new_zeros(size)
        cut(whole, name, at.heads, at.queries).add_(gradient)


class Gradients:
    """The gradient of a number by the names of a trace: `trace.grad[layer, head].probs`.

    Each quantity counts as a variable of its own: its gradient is how much the number grows with
    one entry of it when everything computed from it follows and nothing else does. So the
    gradient of probs, dz·valueᵀ, is there for masked entries too, as it would tell what attending
    there would do; that of scores is 0 there. Of an edited quantity it is the value after the
    edit that counts. Nothing here has a gradient of its own.
    """

    def __init__(self, trace: Any, found: Found) -> None:
        self.trace = trace
        self.found = found

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""
        return self.trace.config

    @property
    def embed(self) -> Hidden:
        """The gradient of what enters layer 0."""
        return self.found.kept["embed"]

    @property
    def logits(self) -> Logits:
        """The gradient of what the task head gives."""
        return self.found.kept["logits"]

    def __len__(self) -> int:
        return len(self.found.records)

    def __iter__(self) -> Iterator[LayerView]:
        return (self[layer] for layer in range(len(self)))

    def __repr__(self) -> str:
        return f"<gradients of {self.trace!r}>"

    def __getitem__(self, where: int | tuple[int, int]) -> LayerView:
        """The gradients of a layer, or of one head of a layer. Negative numbers count back."""
        return LayerView(self, *place_of(where, self.config))

    def stack(self, name: str) -> Float[Tensor, "layer batch *rest"]:
        """The gradients of one quantity of all layers, the layer axis in front."""
        layer_quantity(name)
        return torch.stack([getattr(layer, name) for layer in self])

    def read(
        self, name: str, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING
    ) -> Tensor:
        """A gradient in one layer, its head axis still there, cut to the heads and rows."""
        with torch.no_grad():
            values = Place(self.trace, layer, heads, queries)
            return GradientPlace(self.found, values)[name]


@dataclass(frozen=True)
class GradientPlace:
    """The gradients at one place of a trace, next to the quantities themselves."""

    found: Found
    values: Place

    def __getitem__(self, name: str) -> Tensor:
        heads, queries = self.values.heads, self.values.queries
        kept = self.found.records[self.values.index].get(name)
        if kept is not None:
            return cut(kept, name, heads, queries)
        gradient = FORMULAS[name](self)
        direct = self.found.direct.get((self.values.index, name))
        return gradient if direct is None else gradient + cut(direct, name, heads, queries)

    @property
    def layer(self) -> Any:
        """The layer's weights."""
        return self.values.layer

    @property
    def pre_norm(self) -> bool:
        """True where the stream is a plain sum, and no LayerNorm stands behind it."""
        return self.values.trace.config.pre_norm

    def resid_pre(self) -> Tensor:
        """That of what left the layer below, or of the embeddings."""
        if not self.values.index:
            return self.found.kept["embed"]
        below = replace(self.values, index=self.values.index - 1)
        return replace(self, values=below)["resid_post"]

    def probs(self) -> Tensor:
        """dz·valueᵀ."""
        rows = self["z"][:, :, self.values.queries]
        return rows @ self.values["value"].transpose(-2, -1)

    def scores(self) -> Tensor:
        """probs * (dprobs − sum over keys of probs * dprobs): back through the softmax."""
        probs = self.values["probs"]
        weighted = probs * self["probs"]
        return weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)

    def head_out(self) -> Tensor:
        """That of attn_out, which is a sum over heads."""
        heads = range(self.values.trace.config.n_heads)[self.values.heads]
        return self["attn_out"].unsqueeze(1).expand(-1, len(heads), -1, -1)

    def attn_out(self) -> Tensor:
        """dresid_mid back through the LayerNorm, if there is one."""
        gradient, values = self["resid_mid"], self.values
        if self.pre_norm:
            return gradient
        total = values["resid_pre"] + values["attn_out"]
        return _back_through(self.layer.after_attention, total, gradient)

    def mlp_out(self) -> Tensor:
        """dresid_post back through the LayerNorm, if there is one."""
        gradient, values = self["resid_post"], self.values
        if self.pre_norm:
            return gradient
        total = values["resid_mid"] + values["mlp_out"]
        return _back_through(self.layer.after_mlp, total, gradient)

    def mlp_post(self) -> Tensor:
        """dmlp_out·W_outᵀ."""
        gradient, down = self["mlp_out"], self.layer.mlp.down
        if linear_is_plain(down):
            return gradient @ down.weight
        return _back_through(down, self.values["mlp_post"], gradient)

    def mlp_pre(self) -> Tensor:
        """dmlp_post times the slope of the activation."""
        return _back_through(self.layer.mlp.post, self.values["mlp_pre"], self["mlp_post"])


FORMULAS: dict[str, Callable[[GradientPlace], Tensor]] = {
    "resid_pre": GradientPlace.resid_pre,
    "scores": GradientPlace.scores,
    "probs": GradientPlace.probs,
    "head_out": GradientPlace.head_out,
    "attn_out": GradientPlace.attn_out,
    "mlp_pre": GradientPlace.mlp_pre,
    "mlp_post": GradientPlace.mlp_post,
    "mlp_out": GradientPlace.mlp_out,
}


def watch(at: Place, name: str, value: Tensor) -> None:
    """Have the direct part of a quantity seen, if a number is made of what was read here."""
    kept = at.trace.records[at.index]
    if not value.requires_grad or name == "resid_pre" or name in kept:
        return

    def remember(gradient: Tensor) -> None:
        if at.trace.collecting is not None:
            at.trace.collecting.add_direct(at, name, gradient)

    value.register_hook(remember)


def differentiate(trace: Any, scalar: Tensor) -> Found:
    """The gradients of a number with respect to what a trace kept, 0 where it does not depend.

    Raises TraceError for what is no number, or does not come from this trace.
    """
    _check(trace, scalar)
    places: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = [
        (kept, {}) for kept in (trace.kept, *trace.records)
    ]
    variables = [
        (found, name, value)
        for kept, found in places
        for name, value in kept.items()
        if value.requires_grad
    ]
    whole, *records = (found for _, found in places)
    trace.collecting = result = Found(whole, records)
    try:
        gradients = _backward(scalar, [value for _, _, value in variables])
    finally:
        trace.collecting = None
    for (found, name, value), gradient in zip(variables, gradients, strict=True):
        found[name] = torch.zeros_like(value) if gradient is None else gradient
    return result


def _backward(scalar: Tensor, variables: list[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        # Retained: the next number's gradients come from the same pass.
        gradients = torch.autograd.grad(scalar, variables, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TraceError(
            "This trace's graph was freed by another backward(). Trace again, and use "
            "trace.backward alone, or backward(retain_graph=True) before it."
        ) from error
    if all(gradient is None for gradient in gradients):
        raise TraceError(
            "This number does not come from this trace: compute it from trace.logits or from "
            "other quantities of the same trace."
        )
    return gradients


def _check(trace: Any, scalar: Any) -> None:
    if not trace.differentiable:
        raise TraceError("This trace has no gradients: make it with model.trace(..., grad=True).")
    if not isinstance(scalar, Tensor):
        raise TraceError(
            f"backward({type(scalar).__name__}): expected a tensor of one number, computed from "
            "this trace, such as trace.logits[0, -1, token]; .item() cuts the connection."
        )
    if scalar.numel() != 1:
        raise TraceError(
            f"backward: expected one number, found shape {tuple(scalar.shape)}. Pick an entry, or "
            "sum over several: sentences of a batch do not mix."
        )
    # A view that was made without gradients says that it requires one, and has no history.
    if not scalar.requires_grad or (scalar.grad_fn is None and scalar._is_view()):
        raise TraceError(
            f"backward: this number ({scalar.dtype}) has no connection to a trace: it was computed "
            "under torch.no_grad(), detached, or is no floating-point number."
        )


def _back_through(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of x, given that of function(x)."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        [result] = torch.autograd.grad(function(x), [x], gradient)
    return result
