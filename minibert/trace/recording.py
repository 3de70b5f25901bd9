"""A forward pass into a trace: every layer keeps what it computes, or what an edit made of it.

Place: `Model.trace` and `Trace.rerun` begin a trace; this fills in what it does not have yet.
"""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from minibert.trace.plan import Plan
from minibert.trace.steps import Visit, run_layer, unaffected

__all__ = ["record"]

_KEPT = frozenset({"query", "key", "value", "z", "resid_mid", "resid_post"})
_NOTHING = Plan(())
# Quantities, and the edits up to the next kept one that cut them off from its gradient.
_BEFORE_EDITS = tuple(
    (names, names | {after})
    for names, after in (
        (frozenset({"scores", "probs"}), "z"),
        (frozenset({"head_out", "attn_out"}), "resid_mid"),
        (frozenset({"mlp_pre", "mlp_post", "mlp_out"}), "resid_post"),
    )
)


def record(
    trace: Any,
    *,
    keep: Collection[str] = (),
    plan: Plan = _NOTHING,
    known: Mapping[str, Tensor] | None = None,
) -> None:
    """Compute the layers that a trace does not have yet, and its logits unless it has an `until`.

    Whoever shares the records of an earlier trace shares the work that was done for them; `known`
    is that trace's record of the first layer that is not shared, for the points before its edits.
    """
    trace.edited_from = plan.first_layer
    if trace.edited_from is None and "logits" in plan.names(None):
        trace.edited_from = trace.config.n_layers
    with torch.enable_grad() if trace.differentiable else nullcontext():
        _fill(trace, keep, plan, known)


def _fill(
    trace: Any, keep: Collection[str], plan: Plan, known: Mapping[str, Tensor] | None
) -> None:
    model, allowed = trace.model, trace.allowed
    if "embed" not in trace.kept:
        embed = model.body.embed(trace.inputs.ids, trace.inputs.segments)
        if trace.differentiable:
            # The graph begins here: nobody asked for the gradients of the embeddings' weights.
            embed = embed.detach().requires_grad_()
        trace.kept["embed"] = _edited(trace, plan, "embed", None, embed)
    start = len(trace.records)
    hidden = trace.records[-1]["resid_post"] if start else trace.kept["embed"]
    # Padding or nothing at all: only the two together need an explicit matrix.
    mask = None if allowed.tokens is None else allowed.rows()
    for index, layer in enumerate(model.body.layers[start : trace.until], start):
        kept: dict[str, Tensor] = {}
        if names := plan.names(index):
            earlier = known if index == start else None
            wanted = names.union(keep)
            if trace.differentiable:
                wanted |= _without_formula(names)
            kept |= unaffected(earlier or {}, wanted)
            visit = _visitor(trace, plan, index, kept, wanted)
            hidden = run_layer(layer, hidden, allowed, visit, wanted=wanted, known=earlier)
        else:
            hidden = layer(hidden, allowed, mask, kept, keep)
        trace.records.append(kept)
    if trace.until is None and "logits" not in trace.kept:
        logits = model.task_logits(model.body.final(hidden), trace.inputs)
        trace.kept["logits"] = _edited(trace, plan, "logits", None, logits)


def _without_formula(edited: frozenset[str]) -> frozenset[str]:
    """What has to be part of the graph beside these edits.

    The gradient of what comes before an edit does not follow from that of what comes after it.
    """
    found: frozenset[str] = frozenset()
    for names, edits in _BEFORE_EDITS:
        found |= names if edited & edits else frozenset()
    return found


def _visitor(
    trace: Any, plan: Plan, layer: int, kept: dict[str, Tensor], wanted: frozenset[str]
) -> Visit:
    edited = plan.names(layer)
    names = _KEPT | wanted
    if "head_out" in edited:
        # No longer what z gives.
        names |= {"attn_out"}

    def visit(name: str, value: Tensor) -> Tensor:
        if name in edited:
            value = _edited(trace, plan, name, layer, value)
        if name in names:
            kept[name] = value
        return value

    return visit


def _edited(trace: Any, plan: Plan, name: str, layer: int | None, value: Tensor) -> Tensor:
    value = plan.apply(name, layer, value)
    # A constant, too, is something that a number may be differentiated by.
    constant = trace.differentiable and not value.requires_grad
    return value.detach().requires_grad_() if constant else value
