"""What one forward pass left, how it is recorded, and how one sentence is cut out of it.

`PassRecord` is the part of a trace that is data. `record` fills it: every layer keeps what it
computes, or what an edit made of it; `rerun` begins at the first layer that an edit reaches.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from minibert.errors import TraceError, check_index
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics, attend
from minibert.kernels.call import Want, parse_want
from minibert.kernels.registry import check_name
from minibert.layers.config import Config
from minibert.layers.evaluation import EVERYTHING, Evaluation, Rows
from minibert.layers.finite import check_computed
from minibert.layers.layer import Change, LayerPass, layer_quantities
from minibert.layers.linear import describe
from minibert.quantities import QUANTITIES
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens
from minibert.trace.edit import Places
from minibert.trace.identity import Unchanged
from minibert.trace.layer_view import AbsentError, Found, held_for_gradients, layer_quantity, watch
from minibert.trace.plan import Plan
from minibert.trace.run import TracedModel, behind_layers, embedded, kept_of, run_layers, unaffected


def check_keep(names: Collection[str], *, packed: bool = False) -> None:
    """Raise TraceError for a name that cannot be kept, and for any with packed sentences."""
    if packed and names:
        raise TraceError(
            "keep with packed=True: packed sentences have no matrix of all their tokens; read "
            "trace.text(i)[layer].probs, which is computed then."
        )
    # Arrays and tensors count as collections, of numbers.
    if not isinstance(names, list | tuple | set | frozenset | dict):
        raise TraceError(f'keep={names!r:.80}: expected names, as keep=("scores", "probs").')
    for name in names:
        if not isinstance(name, str) or name not in ("scores", "probs"):
            raise TraceError(
                f"keep={name!r}: only scores and probs can be kept on top of what a trace keeps "
                "by itself; everything else is computed when it is read."
            )


def check_grad(grad: bool, until: int | None, weights: Iterable[Tensor]) -> None:
    """Raise TraceError where a trace with gradients cannot be made."""
    if grad and until is not None:
        raise TraceError(f"grad=True with until={until}: gradients need every layer; drop until.")
    if grad and torch.is_inference_mode_enabled():
        raise TraceError(
            "grad=True inside torch.inference_mode(): nothing can be differentiated there. Use "
            "torch.no_grad() around the rest, or trace outside."
        )
    if grad and any(weight.is_inference() for weight in weights):
        raise TraceError(
            "grad=True, and weights of the model were made inside torch.inference_mode() (in "
            "a transformers model, say), so nothing can be differentiated through "
            "them. Load the model again outside of it."
        )


def asked(statistics: Iterable[object], allowed: AllowedKeys, impl: str) -> Evaluation:
    """The evaluation that gives these statistics; -1 in key_mass is a sentence's last token.

    The kernel is asked for every key that one of the sentences means; `key_columns` says which
    of them are whose. Raises AttentionError for what `minibert.attend` does not know either, and
    TraceError for a matrix and for a key that one of the sentences does not have.
    """
    check_name(impl)
    want = parse_want(statistics, n_keys=None)
    for name in ("scores", "probs"):
        if name in want:
            raise TraceError(f'statistics={name!r}: a matrix; ask for it as keep=("{name}",).')
    for name in ("key_sums", "pair_mass", "profile"):
        if name in want:
            raise TraceError(
                f"statistics={name!r}: a trace cannot have it, because it is not one number "
                "a token. Ask minibert.attend for it with the query, key and value of a layer."
            )
    if "key_mass" not in want:
        return Evaluation(allowed, impl, want)
    where = f'("key_mass", {want["key_mass"]}), text '
    chosen = [
        [
            check_index("key", key, length, TraceError, f"{where}{text}: ")
            for key in want["key_mass"]
        ]
        for text, length in enumerate(Places.of(allowed).lengths)
    ]
    keys = sorted({key for of_text in chosen for key in of_text})
    columns = tuple(tuple(keys.index(key) for key in of_text) for of_text in chosen)
    return Evaluation(allowed, impl, want | {"key_mass": tuple(keys)}, key_columns=columns)


def of_each_sentence(found: Statistics | None, evaluation: Evaluation) -> Statistics | None:
    """The statistics of a layer, key_mass with the columns that each sentence asked for."""
    if found is None or found.key_mass is None or evaluation.key_columns is None:
        return found
    mass, packed = found.key_mass, evaluation.allowed.packed
    columns = torch.tensor(evaluation.key_columns, device=mass.device)
    if packed is None:
        columns = columns[:, None, None]
    else:
        columns = columns.repeat_interleave(torch.tensor(packed, device=mass.device), 0)[None, None]
    columns = columns.expand(*mass.shape[:-1], columns.shape[-1])
    return replace(found, key_mass=mass.gather(-1, columns))


def of_one_sentence(evaluation: Evaluation, index: int) -> Want:
    """What the statistics of this sentence alone would be asked with."""
    want = evaluation.want
    if evaluation.key_columns is None:
        return want
    keys = tuple(want["key_mass"][column] for column in evaluation.key_columns[index])
    return want | {"key_mass": keys}


class PassRecord:
    """The model, its input, and by layer what the pass kept: the part of a trace that is data."""

    def __init__(
        self,
        model: TracedModel,
        inputs: Inputs,
        evaluation: Evaluation,
        *,
        until: int | None = None,
        grad: bool = False,
    ) -> None:
        self.model = model
        self.unchanged = Unchanged(model, model.body.layers)
        self.inputs = inputs
        self.evaluation = evaluation
        self.until = until
        self.edited_from: int | None = None
        self.differentiable = grad
        self.of_differentiable = False
        """True of one text of a batch whose trace can be differentiated."""
        self.collecting: Found | None = None
        self._found: Found | None = None
        self.records: list[dict[str, Tensor]] = []
        self.kept: dict[str, Tensor] = {}
        self.statistics: list[Statistics | None] = []
        self.stored_backends: dict[str, str] | None = None
        self._tokens: Tokens | None = inputs.tokens
        self.autocast = _autocast_dtype(inputs.ids.device.type)

    def as_made(self) -> AbstractContextManager[object]:
        """The torch.autocast of the pass, so that later reads give the numbers of that pass.

        Weights and what the pass kept may have different dtypes otherwise.
        """
        device = self.allowed.device.type
        now = _autocast_dtype(device)
        if now == self.autocast:
            return nullcontext()
        return torch.autocast(device, dtype=self.autocast or now, enabled=self.autocast is not None)

    @property
    def allowed(self) -> AllowedKeys:
        """Which keys each query may see, and the lengths of the sentences."""
        return self.evaluation.allowed

    def unchanged_model(self) -> TracedModel:
        """The model, to compute with. Raises TraceError where it is not as it was in this pass."""
        self.unchanged.check()
        return self.model

    @property
    def config(self) -> Config:
        """The model's sizes and choices."""
        return self.model.config

    @property
    def model_name(self) -> str:
        """What the model was loaded as."""
        return self.model.name

    @property
    def backends(self) -> dict[str, str]:
        """The implementation of attention, the linear back end, and the rule that chose it.

        The same back ends and input give the same bits.
        """
        if self.stored_backends is not None:
            return self.stored_backends
        linear = describe(self.model) if isinstance(self.model, nn.Module) else "unknown"
        return {"attention": self.evaluation.impl, "linear": linear}

    @property
    def tokens(self) -> Tokens:
        """What was read, as ids and as strings."""
        if self._tokens is None:
            self._tokens = self.inputs.as_tokens(self.model.tokenizer)
        return self._tokens

    def at(self, layer: int, heads: slice = EVERYTHING, queries: Rows = EVERYTHING) -> LayerPass:
        """The table of one layer, which is read lazily for some heads and rows."""
        known = dict(self.records[layer]) if layer < len(self.records) else {}
        if "resid_pre" not in known:
            known["resid_pre"] = (
                self.records[layer - 1]["resid_post"] if layer else self.kept["embed"]
            )
        module = self.model.body.layers[layer]
        return LayerPass(
            module,
            layer,
            self.evaluation,
            known=known,
            heads=heads,
            rows=queries,
            lazy=partial(self.unchanged.check, module),
        )

    def read(
        self, name: str, layer: int, heads: slice = EVERYTHING, queries: slice = EVERYTHING
    ) -> Tensor:
        """A quantity of one layer, its head axis still there, cut to the chosen heads and rows."""
        quantity = layer_quantity(name)
        if self.allowed.packed is not None and "query" in quantity.axes:
            raise TraceError(f"{name} of packed sentences: read trace.text(i)[layer, head].{name}.")
        at = self.at(layer, heads, queries)
        with self.as_made():
            value: Tensor = getattr(at, name)
        if name not in at.known:
            check_computed(value, f"{name} of layer {layer}")
        if self.differentiable:
            watch(self, at, quantity, value)
        return value

    def layer_statistics(self, layer: int) -> Statistics:
        """The statistics that the pass gave for a layer; `trace[layer].statistics` reads them."""
        found = self.statistics[layer] if layer < len(self.statistics) else None
        if found is None:
            raise AbsentError(
                f"Layer {layer} has no statistics: name them when tracing, as in "
                'model.trace(text, statistics=("entropy", "received")).'
            )
        return found


def _autocast_dtype(device: str) -> torch.dtype | None:
    """What torch.autocast multiplies in now; None where it is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


Record = TypeVar("Record", bound=PassRecord)


def record(
    trace: PassRecord,
    *,
    keep: Collection[str] = (),
    plan: Plan | None = None,
    known: Mapping[str, Tensor] | None = None,
) -> None:
    """Compute the layers that a trace does not have yet, and its logits unless it has an `until`.

    Code that shares the records of an earlier trace shares the work that was done for them; `known`
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
    """Run the same input with the edits of a plan; the layers below the first edit are shared."""
    again = type(trace)(
        trace.unchanged_model(),
        trace.inputs,
        trace.evaluation,
        until=trace.until,
        grad=trace.differentiable,
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
    model, evaluation = trace.unchanged_model(), trace.evaluation
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
        known=lambda layer: (
            {}
            if known is None or layer > start
            else unaffected(known, plan.names(start) | keep_in(start), trace.config, start)
        ),
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
    """Raise TraceError for statistics of attention that an edit changes after the kernel."""
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


def text_of(trace: Record, index: int) -> Record:
    """The trace of one sentence of a batch, padded or packed; views of what is there.

    The statistic map of a sentence shorter than the batch is computed again.
    """
    places = Places.of(trace.allowed)
    index = check_index("text", index, len(places.lengths))
    length = places.lengths[index]
    row, where = places.index(index, range(length))
    span = slice(where[0], where[0] + length)
    tokens = trace.tokens[index]
    allowed = AllowedKeys(1, length, trace.allowed.device, trace.allowed.causal)
    again = type(trace)(
        trace.model,
        Inputs(tokens.ids, None, tokens.segments, tokens),
        Evaluation(allowed, trace.evaluation.impl, of_one_sentence(trace.evaluation, index)),
        until=trace.until,
    )
    again.edited_from, again.autocast = trace.edited_from, trace.autocast
    again.of_differentiable = trace.differentiable or trace.of_differentiable
    again.unchanged = trace.unchanged
    again.records = [
        {name: _cut(value, QUANTITIES[name].axes, row, span) for name, value in kept.items()}
        for kept in trace.records
    ]
    again.statistics = [
        None if found is None else _cut_statistics(found, row, span) for found in trace.statistics
    ]
    for name, value in trace.kept.items():
        of_text = name == "logits" and value.shape[:2] != trace.kept["embed"].shape[:2]
        of_text = of_text or name == "pooled"
        axes = ("batch",) if of_text else ("batch", "position")
        again.kept[name] = _cut(value, axes, index if of_text else row, span)
    if "map" in trace.evaluation.want and length != trace.allowed.position:
        _map_alone(again)
    return again


def _map_alone(text: PassRecord) -> None:
    """Compute the map again, whose blocks are cut by the length of the longest sentence."""
    want = (("map", *text.evaluation.want["map"]),)
    for layer, found in enumerate(text.statistics):
        if found is not None:
            query, key = (text.read(name, layer).detach() for name in ("query", "key"))
            options = text.config.attend_options(layer)
            alone = attend(query, key, key, impl=text.evaluation.impl, want=want, **options)
            assert alone.statistics is not None
            text.statistics[layer] = replace(found, map=alone.statistics.map)


def _cut(value: Tensor, axes: tuple[str, ...], row: int, span: slice) -> Tensor:
    index = {"batch": slice(row, row + 1), "position": span, "query": span, "key": span}
    return value[tuple(index.get(axis, slice(None)) for axis in axes)]


def _cut_statistics(found: Statistics, row: int, span: slice) -> Statistics:
    axes = {"received": ("batch", "head", "key"), "map": ("batch",)}
    return Statistics(
        **{
            name: None
            if value is None
            else _cut(value, axes.get(name, ("batch", "head", "query")), row, span)
            for name, value in vars(found).items()
        }
    )
