"""A forward pass into a trace: every layer keeps what it computes, or what an edit made of it."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from minibert.errors import TraceError
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer import layer_quantities
from minibert.layers.layer_pass import Change, LayerPass
from minibert.trace.asked_statistics import of_each_sentence
from minibert.trace.gradients import held_for_gradients
from minibert.trace.pass_record import PassRecord
from minibert.trace.plan import Plan
from minibert.trace.run import behind_layers, embedded, kept_of, run_layers, unaffected

__all__ = ["record", "rerun"]

Record = TypeVar("Record", bound=PassRecord)


def record(
    trace: PassRecord,
    *,
    keep: Collection[str] = (),
    plan: Plan | None = None,
    known: Mapping[str, Tensor] | None = None,
) -> None:
    """Compute the layers that a trace does not have yet, and its logits unless it has an `until`.

    Whoever shares the records of an earlier trace shares the work that was done for them; `known`
    is that trace's record of the first layer that is not shared.
    """
    plan = Plan() if plan is None else plan
    _check_statistics(trace.evaluation, plan)
    _check_gradients(trace, plan)
    trace.edited_from = plan.first_layer
    if trace.edited_from is None and plan.edits:
        trace.edited_from = trace.config.n_layers
    with torch.enable_grad() if trace.differentiable else nullcontext():
        _fill(trace, frozenset(keep), plan, known)


def rerun(trace: Record, plan: Plan, *, keep: Collection[str] = ()) -> Record:
    """The same input with the edits of a plan; the layers below the first edit are shared."""
    again = type(trace)(
        trace.model, trace.inputs, trace.evaluation, until=trace.until, grad=trace.differentiable
    )
    again._tokens = trace._tokens
    # Only what no edit has reached, of this trace or the next, is the same in both.
    intact = len(trace.records) if trace.edited_from is None else trace.edited_from
    first = intact if plan.first_layer is None else min(intact, plan.first_layer)
    if "embed" not in plan.names(None) and trace.edited_from != 0:
        again.kept["embed"] = trace.kept["embed"]
        again.records.extend(trace.records[:first])
        again.statistics.extend(trace.statistics[:first])
    same = "embed" in again.kept and first < intact
    again.autocast = trace.autocast
    with trace.as_made():
        record(again, keep=keep, plan=plan, known=trace.records[first] if same else None)
    return again


def _fill(
    trace: PassRecord, keep: frozenset[str], plan: Plan, known: Mapping[str, Tensor] | None
) -> None:
    model, evaluation = trace.model, trace.evaluation
    if "embed" not in trace.kept:
        embed = embedded(model.body, trace.inputs, evaluation.allowed)
        if trace.differentiable:
            # The graph begins here: nobody asked for the gradients of the embeddings' weights.
            embed = embed.detach().requires_grad_()
        trace.kept["embed"] = _edited(trace, plan, "embed", None)(embed)
    start = len(trace.records)
    order = layer_quantities(trace.config)
    kept = [name for name, quantity in order.items() if quantity.kept]
    if evaluation.allowed.packed is not None and not trace.differentiable:
        # Of many texts few are read; the rest of a layer is computed again for those.
        kept = ["resid_post"]

    def visit(at: LayerPass) -> None:
        trace.records.append(kept_of(at, order, kept))
        trace.statistics.append(of_each_sentence(at.statistics, evaluation))

    def keep_in(layer: int) -> frozenset[str]:
        held = held_for_gradients(trace.config, layer, plan.names(layer))
        return keep | held if trace.differentiable else keep

    hidden = run_layers(
        model.body,
        trace.records[-1]["resid_post"] if start else trace.kept["embed"],
        evaluation,
        start=start,
        stop=trace.until,
        edits=lambda layer: {name: _edited(trace, plan, name, layer) for name in plan.names(layer)},
        keep=keep_in,
        known=None
        if known is None
        else unaffected(known, plan.names(start) | keep_in(start), trace.config),
        visit=visit,
    )
    if trace.until is None and "logits" not in trace.kept:
        names = plan.names(None) - {"embed"}
        if trace.differentiable:
            names |= {"final_norm_scale", "pooled"} - trace.config.absent_quantities
        if evaluation.allowed.packed is not None:
            # It is one of each sentence, and they share a row.
            names -= {"pooled"}
        changes = {name: _edited(trace, plan, name, None) for name in names}
        found = behind_layers(model, hidden, trace.inputs, evaluation.allowed, changes)
        trace.kept |= found


def _edited(trace: PassRecord, plan: Plan, name: str, layer: int | None) -> Change:
    """What changes a quantity: its edits, and a beginning of the graph where they cut it off."""

    def change(value: Tensor) -> Tensor:
        value = plan.apply(name, layer, value)
        # A constant, too, is something that a number may be differentiated by.
        constant = trace.differentiable and not value.requires_grad
        return value.detach().requires_grad_() if constant else value

    return change


def _check_statistics(evaluation: Evaluation, plan: Plan) -> None:
    """Raise TraceError for statistics of attention that an edit changes behind the kernel."""
    for point, *_ in plan.edits if evaluation.want else ():
        if point.name in ("scores", "probs"):
            raise TraceError(
                f"statistics are of attention as query and key give it, and {point} is edited. "
                f"Trace without statistics and read {point.name} of that layer."
            )


def _check_gradients(trace: PassRecord, plan: Plan) -> None:
    """Raise TraceError where gradients would need a matrix that packed sentences do not have."""
    for point, *_ in plan.edits if trace.differentiable else ():
        if trace.allowed.packed is not None and point.name == "z":
            raise TraceError(
                f"grad=True with packed=True and an edit of {point}: its gradients need scores and "
                "probs, which packed sentences do not have. Trace without packed=True."
            )
