"""Many edits of one input, side by side: each a sentence of a batch, each layer below them once.

An edit that writes what stands there already needs no pass. A prompt and its corrupted twin differ
in some tokens; in a causal model everything before the first of them is the same in both passes,
bit for bit, so a patch from there changes nothing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from tqdm import tqdm

from minibert.errors import EditError, whole_number
from minibert.layers.evaluation import Evaluation
from minibert.layers.finite import check_logits
from minibert.layers.layer import Change, LayerPass
from minibert.quantities import QUANTITIES, Bool, Float
from minibert.trace.edit import Edit, EditMapping, Places, Point, as_point
from minibert.trace.identity import Sources
from minibert.trace.plan import Plan, Reach
from minibert.trace.record import PassRecord, rerun
from minibert.trace.run import behind_layers, reads_single_positions, run_layers, unaffected

Same = Bool[Tensor, "batch position"]


def idle_plans(plans: Sequence[Plan], trace: PassRecord) -> list[int]:
    """The numbers of the plans of which every edit takes the values that the trace has."""
    known: dict[tuple[int, str, int], Same | None] = {}
    return [
        index
        for index, plan in enumerate(plans)
        if all(_is_idle(*entry, trace, known) for entry in plan.edits)
    ]


def _is_idle(
    point: Point,
    edit: Edit,
    reach: Reach,
    trace: PassRecord,
    known: dict[tuple[int, str, int], Same | None],
) -> bool:
    whole = point.layer is not None and point.heads is None and "position" in point.axes
    if not whole or edit.averages or not edit.traces or reach.positions is None:
        return False
    key = (id(edit.traces[0]), point.name, point.layer or 0)
    if key not in known:
        known[key] = _same(point, trace, edit.traces[0].value_at(point))
    same = known[key]
    return same is not None and all(
        bool(same[sentence, list(positions)].all())
        for sentence, positions in zip(reach.sentences, reach.positions, strict=True)
    )


def _same(point: Point, trace: PassRecord, theirs: Tensor) -> Same | None:
    """Where both have the same numbers; None where the shapes differ."""
    ours = trace.read(point.name, point.layer or 0)
    if ours.shape != theirs.shape:
        return None
    equal = (ours == theirs.to(ours.device)).movedim(point.axes.index("position"), 1)
    return equal.flatten(2).all(-1)


Metric = Callable[[Tensor], Tensor]
Held = Callable[[int, int], Collection[str]]
"""What stays as the trace has it in a layer, of edits that begin at the second of two layers."""


def rerun_each(
    trace: PassRecord,
    edits: Sequence[EditMapping],
    metric: Metric,
    *,
    positions: Sequence[int] | None = None,
    batch: int = 64,
    held: Held = lambda layer, first: (),
) -> Float[Tensor, "edit batch"]:
    """The result of `metric` on the logits after each edit; see `Trace.rerun_each`."""
    if trace.until is not None:
        raise EditError(f"Logits need every layer; this trace was made with until={trace.until}.")
    if isinstance(edits, str) or not isinstance(edits, Sequence) or not edits:
        raise EditError("edits: expected a list of at least one dictionary of edits.")
    if not callable(metric):
        raise EditError(f"metric is a {type(metric).__name__}; expected a function of logits.")
    batch = whole_number("batch", batch, EditError, least=1)
    if trace.allowed.packed is not None:
        raise EditError("Packed sentences are not swept; trace them without packed=True.")
    dtype = trace.kept["embed"].dtype
    config, allowed = trace.config, trace.allowed
    sources = Sources(trace.unchanged_model())
    plans = [Plan.of(edit, config, allowed, dtype=dtype, sources=sources) for edit in edits]
    chosen = _chosen(positions, plans, trace)
    if trace.edited_from is not None:
        # What the layers share is the pass without edits.
        trace = rerun(trace, Plan())
    size = max(1, batch // trace.allowed.batch)
    # An edit cuts the graph, whatever it writes.
    idle = [] if trace.differentiable else idle_plans(plans, trace)
    results: dict[int, Tensor] = {}
    if idle:
        clean = _Variants(trace, [Plan()], config.n_layers, chosen).logits()
        results = dict.fromkeys(idle, measured(metric, clean, _lengths(trace, chosen)))
    with tqdm(total=len(plans), disable=None, unit="edit", leave=False) as progress:
        progress.update(len(idle))
        for layer, chunk in _chunks(plans, config.n_layers, size, idle):
            variants = _Variants(trace, [plans[index] for index in chunk], layer, chosen, held)
            parts = variants.logits().split(trace.allowed.batch)
            for index, part in zip(chunk, parts, strict=True):
                results[index] = measured(metric, part, _lengths(trace, chosen))
            progress.update(len(chunk))
    return torch.stack([results[index] for index in range(len(plans))])


def read_each(
    trace: PassRecord,
    edits: Sequence[EditMapping],
    points: Sequence[Point],
    *,
    batch: int = 64,
    held: Held = lambda layer, first: (),
) -> list[dict[Point, Tensor]]:
    """What stands at some points of layers after each edit; only what these read is computed."""
    config, allowed = trace.config, trace.allowed
    dtype, sources = trace.kept["embed"].dtype, Sources(trace.unchanged_model())
    plans = [Plan.of(edit, config, allowed, dtype=dtype, sources=sources) for edit in edits]
    found: dict[int, dict[Point, Tensor]] = {}
    for layer, chunk in _chunks(plans, config.n_layers, max(1, batch // allowed.batch), ()):
        variants = _Variants(trace, [plans[index] for index in chunk], layer, None, held)
        for point, values in variants.values(points).items():
            for index, value in zip(chunk, values.split(allowed.batch), strict=True):
                found.setdefault(index, {})[point] = value
    return [found[index] for index in range(len(plans))]


class OwnLogits(Tensor):
    """Logits of whole sentences without padding, which is what a metric is called with.

    Whatever is computed from them is of this type again, and has no padding either.
    """


@runtime_checkable
class KnowsSentences(Protocol):
    """A metric that reads something else in each sentence, such as the right answer."""

    def of_sentences(self, logits: OwnLogits, sentences: Sequence[int]) -> Tensor:
        """One number for each of these sentences of the batch."""


def called(metric: Metric, logits: Tensor, sentences: Sequence[int]) -> Tensor:
    """What the metric makes of logits without padding, of these sentences of the batch."""
    own = logits.as_subclass(OwnLogits)
    if isinstance(metric, KnowsSentences):
        numbers = metric.of_sentences(own, sentences)
    else:
        numbers = metric(own)
    return _one_a_sentence(numbers, len(logits))


def measured(metric: Metric, logits: Tensor, lengths: Sequence[int] | None) -> Tensor:
    """One number a sentence; sentences of different lengths go to the metric one by one."""
    if lengths is None or len(set(lengths)) == 1:
        whole = logits if lengths is None else logits[:, : lengths[0]]
        return called(metric, whole, range(len(logits)))
    each = [
        called(metric, row[None, :length], (number,))
        for number, (row, length) in enumerate(zip(logits, lengths, strict=True))
    ]
    return torch.cat(each)


def _lengths(trace: PassRecord, chosen: list[list[int]] | None) -> tuple[int, ...] | None:
    """How many rows of logits each sentence has; None where there is one row a sentence."""
    if as_point("logits", trace.config).of_text:
        return None
    if chosen is not None:
        return tuple(map(len, chosen))
    return Places.of(trace.allowed).lengths


def _chunks(
    plans: Sequence[Plan], n_layers: int, size: int, idle: Collection[int]
) -> Iterator[tuple[int, list[int]]]:
    """Plans to run together but for idle ones, and the layer that they differ from on.

    Together only what starts at the same layer: a batch computes from its lowest on.
    """
    starts = [n_layers if plan.first_layer is None else plan.first_layer for plan in plans]
    order = sorted(set(range(len(plans))).difference(idle), key=starts.__getitem__)
    for layer, group in groupby(order, key=starts.__getitem__):
        same = list(group)
        for first in range(0, len(same), size):
            yield layer, same[first : first + size]


def _chosen(
    positions: Sequence[int] | None, plans: Sequence[Plan], trace: PassRecord
) -> list[list[int]] | None:
    """The positions of each sentence whose logits are read; None for all."""
    if positions is None:
        return None
    if as_point("logits", trace.config).of_text:
        raise EditError("These logits are of whole texts; leave positions out.")
    if any("logits" in plan.names(None) for plan in plans):
        raise EditError("An edit of logits needs all of them; leave positions out.")
    if isinstance(positions, str) or not isinstance(positions, Sequence) or not positions:
        raise EditError(f"positions={positions!r:.80}: expected a list of at least one.")
    places = Places.of(trace.allowed)
    return [
        # The metric may want one of them twice.
        [places.positions(sentence, one, "position", EditError)[0] for one in positions]
        for sentence in range(trace.allowed.batch)
    ]


def _one_a_sentence(numbers: Tensor, count: int) -> Tensor:
    if not isinstance(numbers, Tensor) or numbers.shape != (count,):
        shape = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        raise EditError(f"metric: expected one number for each of {count} sentences, not {shape}.")
    return numbers.as_subclass(Tensor)


class _Variants:
    """One input several times in a batch, each time with its own plan."""

    def __init__(
        self,
        trace: PassRecord,
        plans: Sequence[Plan],
        layer: int,
        chosen: list[list[int]] | None,
        held: Held = lambda layer, first: (),
    ) -> None:
        self.trace, self.plans, self.count = trace, plans, len(plans)
        self.layer, self.chosen, self.held = layer, chosen, held
        self.rows: list[int] | None = None
        behind = self.names(None) - {"embed"}
        if (
            chosen is not None
            and not behind
            and reads_single_positions(trace.unchanged_model().head)
        ):
            # Every position that is read by any sentence has to be computed.
            self.rows = sorted(set().union(*chosen))
        allowed = trace.allowed
        lengths = None if allowed.lengths is None else allowed.lengths * self.count
        allowed = replace(allowed, lengths=lengths, batch=allowed.batch * self.count)
        self.evaluation = Evaluation(allowed, trace.evaluation.impl)

    def repeat(self, value: Tensor) -> Tensor:
        """The batch again for every variant; of one sentence that costs no memory."""
        if value.shape[0] == 1:
            return value.expand(self.count, *value.shape[1:])
        return value.repeat(self.count, *[1] * (value.dim() - 1))

    def logits(self) -> Tensor:
        """The logits of every variant, at the positions that were asked for."""
        trace, body = self.trace, self.trace.unchanged_model().body
        if self.layer == trace.config.n_layers:
            hidden = self.repeat(trace.records[-1]["resid_post"])
            return self._head(hidden if self.rows is None else hidden[:, self.rows])
        hidden = self.repeat(trace.read("resid_pre", self.layer))
        if self.edits_embed:
            hidden = self.apply("embed", None, hidden)
        hidden = run_layers(
            body,
            hidden,
            self.evaluation,
            start=self.layer,
            edits=self.edits,
            known=self.known,
            rows=self.rows,
        )
        return self._head(hidden)

    def values(self, points: Sequence[Point]) -> dict[Point, Tensor]:
        """What stands at some points, all of layers from the first edited one on."""
        body, found = self.trace.unchanged_model().body, dict[Point, Tensor]()
        last = max(point.layer or 0 for point in points)

        def read(at: LayerPass) -> None:
            for point in points:
                if point.layer == at.index:
                    # Of queries, keys and values a pass would compute all three.
                    alone = LayerPass(
                        body.layers[at.index],
                        at.index,
                        self.evaluation,
                        known=at.known,
                        edits=at.edits,
                        lazy=lambda: None,
                    )
                    found[point] = getattr(alone, point.name)

        hidden = run_layers(
            body,
            self.repeat(self.trace.read("resid_pre", self.layer)),
            self.evaluation,
            start=self.layer,
            stop=last,
            edits=self.edits,
            known=self.known,
            visit=read,
        )
        known = {**self.known(last), "resid_pre": hidden}
        read(
            LayerPass(body.layers[last], last, self.evaluation, known=known, edits=self.edits(last))
        )
        return found

    @property
    def edits_embed(self) -> bool:
        """True where a variant changes what enters layer 0."""
        return any("embed" in plan.names(None) for plan in self.plans)

    def edits(self, layer: int) -> dict[str, Change]:
        """What is done to the quantities of a layer."""
        return {name: partial(self.apply, name, layer) for name in self.names(layer)}

    def names(self, layer: int | None) -> frozenset[str]:
        """What any of the variants edits in a layer."""
        return frozenset().union(*[plan.names(layer) for plan in self.plans])

    def known(self, layer: int) -> dict[str, Tensor]:
        """What the trace has of a layer, where that stays or the first edit changes it."""
        trace = self.trace
        found = {name: trace.read(name, layer) for name in self.held(layer, self.layer)}
        if layer == self.layer and not self.edits_embed:
            record = unaffected(trace.records[layer], self.names(layer), trace.config, layer)
            # A matrix that was kept would have z computed by other formulas.
            vectors = {name for name in record if "position" in QUANTITIES[name].axes}
            found |= {name: record[name] for name in vectors}
        return {name: self.repeat(value) for name, value in found.items()}

    def apply(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        """A quantity with each variant's edits in its sentences."""
        parts = zip(self.plans, value.split(self.trace.allowed.batch), strict=True)
        return torch.cat([plan.apply(name, layer, part) for plan, part in parts])

    def _head(self, hidden: Tensor) -> Tensor:
        model, inputs, chosen = self.trace.unchanged_model(), self.trace.inputs, self.chosen
        if self.rows is not None and chosen is not None:
            # Most of the work of a small batch is this product with the whole vocabulary.
            hidden, ids = self._at_chosen(hidden, self.rows)
            final = model.body.final(hidden)
            logits = final if model.head is None else model.head(final, None, ids, None)
            check_logits(logits)
            return logits
        repeated = replace(
            inputs,
            ids=self.repeat(inputs.ids),
            mask=None if inputs.mask is None else self.repeat(inputs.mask),
            segments=None if inputs.segments is None else self.repeat(inputs.segments),
            tokens=None,
        )
        changes = {name: partial(self.apply, name, None) for name in self.names(None) - {"embed"}}
        found = behind_layers(model, hidden, repeated, self.evaluation.allowed, changes)
        logits = found["logits"]
        if chosen is None:
            return logits
        return self._at_chosen(logits, range(logits.shape[1]))[0]

    def _at_chosen(self, rows: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The rows that each sentence chose among those at these positions, and their ids."""
        assert self.chosen is not None
        place = {position: number for number, position in enumerate(positions)}
        device = rows.device
        index = torch.tensor([[place[p] for p in each] for each in self.chosen], device=device)
        ids = self.trace.inputs.ids.gather(1, torch.tensor(self.chosen, device=device))
        sentences = torch.arange(len(rows), device=device)[:, None]
        return rows[sentences, self.repeat(index)], self.repeat(ids)
