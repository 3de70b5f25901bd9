"""Many edits of one input, side by side: each a sentence of a batch, each layer below them once.

Place: behind `Trace.rerun_each`, for whoever tries an edit at every head, layer or position.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.errors import EditError
from minibert.layers.heads import TokenHead, VocabularyHead
from minibert.quantities import QUANTITIES, Float
from minibert.trace.edit import as_point, index_in
from minibert.trace.plan import Plan
from minibert.trace.steps import Past, Visit, run_layer

if TYPE_CHECKING:
    from minibert.trace.read import Trace

__all__ = ["rerun_each"]

_KNOWN = frozenset({"query", "key", "value", "z", "resid_mid", "resid_post"})


def rerun_each(
    trace: "Trace",
    edits: Sequence[Mapping[Any, Any]],
    metric: Callable[[Tensor], Tensor],
    *,
    positions: Sequence[int] | None = None,
    batch: int = 64,
) -> Float[Tensor, "edit batch"]:
    """What `metric` makes of the logits after each edit; see `Trace.rerun_each`."""
    if trace.until is not None:
        raise EditError(f"Logits need every layer; this trace was made with until={trace.until}.")
    if isinstance(edits, str) or not isinstance(edits, Sequence) or not edits:
        raise EditError("edits: expected a list of at least one dictionary of edits.")
    if not callable(metric):
        raise EditError(f"metric is a {type(metric).__name__}; expected a function of logits.")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise EditError(f"batch={batch!r}: expected a whole number of at least 1.")
    plans = [Plan.of(edit, trace.config, trace.allowed, dtype=trace.model.dtype) for edit in edits]
    _check_positions(positions, plans, trace)
    if trace.edited_from is not None:
        # What the layers share is the pass without edits.
        trace = trace.rerun({})
    size = max(1, batch // trace.allowed.batch)
    chosen = None if positions is None else [p % trace.allowed.position for p in positions]
    results: dict[int, Tensor] = {}
    with tqdm(total=len(plans), disable=None, unit="edit", leave=False) as progress:
        for start, chunk in _chunks(plans, trace, size):
            variants = _Variants(trace, [plans[index] for index in chunk], start, chosen)
            parts = variants.logits().split(trace.allowed.batch)
            for index, part in zip(chunk, parts, strict=True):
                results[index] = _one_a_sentence(metric(part), trace.allowed.batch)
            progress.update(len(chunk))
    return torch.stack([results[index] for index in range(len(plans))])


def _chunks(
    plans: Sequence[Plan], trace: "Trace", size: int
) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Plans to run together, and the layer and position from which on they differ.

    Together only what starts at the same layer: a batch computes from its lowest on. In a causal
    model nothing changes before the first position that is edited either; those that start
    within a quarter of the text of each other share a batch, as one at a time is slower.
    """
    n_layers, length = trace.config.n_layers, trace.allowed.position
    span = length // 4
    starts = [
        (
            n_layers if plan.first_layer is None else plan.first_layer,
            plan.first_position if trace.config.causal else 0,
        )
        for plan in plans
    ]
    order = sorted(range(len(plans)), key=starts.__getitem__)
    while order:
        layer, position = starts[order[0]]
        chunk = [
            index
            for index in order[:size]
            if starts[index][0] == layer and starts[index][1] <= position + span
        ]
        order = order[len(chunk) :]
        yield (layer, position), chunk


def _check_positions(
    positions: Sequence[int] | None, plans: Sequence[Plan], trace: "Trace"
) -> None:
    if positions is None:
        return
    if as_point("logits", trace.config).of_text:
        raise EditError("These logits are of whole texts; leave positions out.")
    if any("logits" in plan.names(None) for plan in plans):
        raise EditError("An edit of logits needs all of them; leave positions out.")
    if isinstance(positions, str) or not isinstance(positions, Sequence) or not positions:
        raise EditError(f"positions={positions!r:.80}: expected a list of at least one.")
    for position in positions:
        index_in(position, trace.allowed.position, "position")


def _one_a_sentence(numbers: Any, count: int) -> Tensor:
    if not isinstance(numbers, Tensor) or numbers.shape != (count,):
        shape = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        raise EditError(
            f"metric: expected one number for each of {count} sentences, found {shape}."
        )
    return numbers


class _Variants:
    """The same input several times in a batch, each with its own plan."""

    def __init__(
        self,
        trace: "Trace",
        plans: Sequence[Plan],
        start: tuple[int, int],
        positions: list[int] | None,
    ) -> None:
        self.trace, self.plans, self.count = trace, plans, len(plans)
        allowed = trace.allowed
        lengths = None if allowed.lengths is None else allowed.lengths * self.count
        self.allowed = replace(allowed, lengths=lengths, batch=allowed.batch * self.count)
        self.layer, self.first = start
        self.rows: list[int] | None = None
        if positions is not None and _reads_single_positions(trace.model.head):
            # Every position that is read has to be computed.
            self.first = min(self.first, *positions)
            self.rows = [position - self.first for position in positions]
        self.positions = positions

    def repeat(self, value: Tensor) -> Tensor:
        """The batch again for every variant; of one sentence that costs no memory."""
        if value.shape[0] == 1:
            return value.expand(self.count, *value.shape[1:])
        return value.repeat(self.count, *[1] * (value.dim() - 1))

    def logits(self) -> Tensor:
        """The logits of every variant, at the positions that were asked for."""
        trace = self.trace
        layers = trace.model.body.layers
        if self.layer == len(layers):
            hidden = self.repeat(trace[-1].resid_post)[:, self.first :]
            return self._head(hidden if self.rows is None else hidden[:, self.rows])
        stream = trace[self.layer].resid_pre
        edits_embed = any("embed" in plan.names(None) for plan in self.plans)
        hidden = self.repeat(stream)[:, self.first :]
        if edits_embed:
            hidden = self.apply("embed", None, hidden)
        for index, layer in enumerate(layers[self.layer :], self.layer):
            names = frozenset().union(*[plan.names(index) for plan in self.plans])
            hidden = run_layer(
                layer,
                hidden,
                self.allowed,
                self.visitor(index, names),
                wanted=names,
                known=None if edits_embed or index > self.layer else self.known(index),
                past=self.past(index),
                rows=self.rows if index == len(layers) - 1 else None,
            )
        return self._head(hidden)

    def known(self, layer: int) -> dict[str, Tensor]:
        """What the trace has of a layer, from the first position that changes on."""
        record = self.trace.records[layer]
        axes = {name: QUANTITIES[name].axes.index("position") for name in record if name in _KNOWN}
        return {
            name: self.repeat(record[name]).narrow(
                axis, self.first, self.trace.allowed.position - self.first
            )
            for name, axis in axes.items()
        }

    def past(self, layer: int) -> Past | None:
        """key and value of the positions before the first that changes."""
        if not self.first:
            return None
        record = self.trace.records[layer]
        return Past(*(self.repeat(record[name])[:, :, : self.first] for name in ("key", "value")))

    def visitor(self, layer: int, names: frozenset[str]) -> Visit:
        """Applies each variant's edits to its part of the batch."""
        return lambda name, value: self.apply(name, layer, value) if name in names else value

    def apply(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        """A quantity with each variant's edits in its sentences."""
        if not any(name in plan.names(layer) for plan in self.plans):
            return value
        axes = QUANTITIES[name].axes
        axis = axes.index("query" if "query" in axes else "position")
        before = value.new_zeros(()).expand(
            *value.shape[:axis], self.first, *value.shape[axis + 1 :]
        )
        # Edits name positions of the whole text, and touch none of those before the first.
        whole = torch.cat((before, value), axis) if self.first else value
        parts = zip(self.plans, whole.split(self.trace.allowed.batch), strict=True)
        changed = torch.cat([plan.apply(name, layer, part) for plan, part in parts])
        return changed.narrow(axis, self.first, value.shape[axis]) if self.first else changed

    def _head(self, hidden: Tensor) -> Tensor:
        model, inputs = self.trace.model, self.trace.inputs
        if self.rows is not None:
            # Most of the work of a small batch is this product with the whole vocabulary.
            hidden, ids = model.body.final(hidden), self.repeat(inputs.ids)[:, self.positions]
            return hidden if model.head is None else model.head(hidden, None, ids, None)
        if self.first:
            before = self.repeat(self.trace[-1].resid_post)[:, : self.first]
            hidden = torch.cat((before, hidden), dim=1)
        repeated = replace(
            inputs,
            ids=self.repeat(inputs.ids),
            mask=None if inputs.mask is None else self.repeat(inputs.mask),
            segments=None if inputs.segments is None else self.repeat(inputs.segments),
            tokens=None,
        )
        logits = model.task_logits(model.body.final(hidden), repeated)
        if "logits" in frozenset().union(*[plan.names(None) for plan in self.plans]):
            return self._edited_logits(logits)
        return logits if self.positions is None else logits[:, self.positions]

    def _edited_logits(self, logits: Tensor) -> Tensor:
        parts = zip(self.plans, logits.split(self.trace.allowed.batch), strict=True)
        return torch.cat([plan.apply("logits", None, part) for plan, part in parts])


def _reads_single_positions(head: Any) -> bool:
    return head is None or isinstance(head, VocabularyHead | TokenHead)
