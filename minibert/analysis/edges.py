"""What every patch would change, estimated from one gradient: of quantities, and of edges.

To patch a value a with the value a' of another text moves the metric by about (a' − a) · dm/da, its
first order. The gradient has this for all places at once, where a sweep of patches needs a forward
pass for each. It misses what is far from linear: a head that only moves a softmax from nearly 1 is
estimated too small. Confirm what is found by patching (`patch_heads`, `path_patching`).

attribution_patching   what patching a quantity would change, at each layer, head and position
edge_attribution       what patching one edge alone would change, for all edges at once
faithfulness           the metric with nothing but a circuit of edges, or with all but it

A sender is who writes to the stream: embed, a head, an MLP. A receiver is what reads it: the query,
key or value of a head, an MLP, or the logits. Each receiver is given a stream of its own, made of
the same outputs but for the senders whose edges are patched: of these it reads what they wrote in
the corrupt text. Norms follow, and so does everything after the receiver. Where a model norms the
sum after a block (BERT) or what a block wrote (Gemma 2), these norms are part of the edge.

How far a stream goes over to the corrupt outputs is one number an edge, 0 in the clean pass. What
is estimated is the derivative of the metric by that number, (corrupt − clean output of the sender)
· (gradient at what the receiver reads), so one backward pass gives all edges. `path_patching` with
`freeze_mlps=True` measures the same for one sender and its receivers.

Sources: Nanda 2023, "Attribution patching: activation patching at industrial scale"; Syed, Rager
and Conmy 2023, "Attribution patching outperforms automated circuit discovery"
(EAP); Hanna, Pezzelle and Belinkov 2024, "Have faith in faithfulness" (with integrated gradients,
EAP-IG); Marks et al. 2024, "Sparse feature circuits", section 3 (faithfulness and completeness).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_callable,
    check_choice,
    check_pair,
    check_unedited,
    listed,
    real_tokens,
)
from minibert.analysis.metrics import Metric, numbers_of
from minibert.analysis.patching import Key, standard_error
from minibert.analysis.stream import Component
from minibert.errors import EditError, whole_number
from minibert.layers.config import Config
from minibert.layers.evaluation import Evaluation
from minibert.layers.linear import held
from minibert.quantities import QUANTITIES, Bool, Float
from minibert.result import Place, Result, sourced
from minibert.trace.edit import as_point
from minibert.trace.layer_view import Gradients, differentiate
from minibert.trace.plan import Plan
from minibert.trace.read import Trace
from minibert.trace.record import check_grad, record

# What the senders of one block wrote, in the order of the data: embed, heads 0, mlp 0, heads 1, ...
Outputs = list[Float[Tensor, "sender batch position d_model"]]
Positions = Sequence[int] | None


def senders_of(config: Config) -> tuple[Component, ...]:
    """Everything that writes to the stream, in the order of the data."""
    found = [Component("embed")]
    for layer in range(config.n_layers):
        found += [Component("head", layer, head) for head in range(config.n_heads)]
        found += [Component("mlp", layer)] * (config.d_mlp > 0)
    return tuple(found)


def receivers_of(config: Config) -> tuple[Component, ...]:
    """Everything that reads the stream, in the order of the data."""
    found, keys = list[Component](), config.n_kv_heads
    for layer in range(config.n_layers):
        for name, count in (("query", config.n_heads), ("key", keys), ("value", keys)):
            found += [Component(name, layer, head) for head in range(count)]
        found += [Component("mlp", layer)] * (config.d_mlp > 0)
    return (*found, Component("logits"))


def _blocks_below(config: Config, receiver: Component) -> int:
    """How many blocks of `Outputs` stand in front of a receiver."""
    if receiver.layer is None:
        return 1 + 2 * config.n_layers
    beside = receiver.kind == "mlp" and not config.parallel
    return 1 + 2 * receiver.layer + beside


def edges_of(config: Config) -> Bool[Tensor, "sender receiver"]:
    """True where the receiver reads what the sender wrote."""
    block = [0]
    for layer in range(config.n_layers):
        block += [1 + 2 * layer] * config.n_heads + [2 + 2 * layer] * (config.d_mlp > 0)
    below = [_blocks_below(config, receiver) for receiver in receivers_of(config)]
    return torch.tensor(block)[:, None] < torch.tensor(below)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EdgeEstimates(Result[Tensor]):
    """What patching each edge would change, (batch, sender, receiver); nan where there is no edge.

    The metric after the patch less that of the clean text, for each pair of texts.
    """

    @property
    def mean(self) -> Float[Tensor, "sender receiver"]:
        """The mean over the pairs of texts."""
        return self.values.mean(0)

    @property
    def standard_error(self) -> Float[Tensor, "sender receiver"]:
        """The standard error of the mean over the pairs. Raises EditError for a single pair."""
        return standard_error(self.values[None])[0]

    def shown(self) -> Result[Tensor]:
        """The mean."""
        names = "sender receiver"
        return Result(self.mean, names, self.title, self.unit, self.labels, signed=True)

    def largest(self, count: int = 5) -> list[tuple[Place | float, ...]]:
        """The edges that would change most: (sender, receiver, mean change)."""
        return Result(self.mean, "sender receiver", labels=self.labels).largest(count)

    def circuit(self, count: int) -> Bool[Tensor, "sender receiver"]:
        """The `count` edges whose mean is largest, whatever its sign.

        Raises EditError for more edges than there are.
        """
        sizes = self.mean.abs().nan_to_num(-1.0)
        edges = int((sizes >= 0).sum())
        count = whole_number("count", count, EditError, least=0, most=edges)
        kept = torch.zeros_like(sizes, dtype=torch.bool)
        kept.view(-1)[sizes.flatten().topk(count).indices] = True
        return kept


@sourced
def edge_attribution(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    steps: int = 1,
    positions: Positions = None,
    other_model: bool = False,
) -> EdgeEstimates:
    """What patching each edge alone would change, to first order (EAP).

    (corrupt − clean output of the sender) · gradient of the metric by what the receiver reads.
    With `steps` above 1 the gradient is the mean of that many passes, whose embeddings lie on the
    straight way from the corrupt text to the clean one, (k / steps) of it for k = 1 ... steps
    (EAP-IG). `metric` is given logits and returns one number a sentence; `positions` are those of
    the logits that it reads.

    It costs `steps` forward and backward passes, in which each head's query, key and value are
    computed from streams of their own: receivers x positions x d_model numbers a layer.

    Raises EditError for texts of different lengths and for traces of two models unless
    `other_model`, and TraceError for a clean trace that was made with edits.
    """
    _check(clean, corrupt, metric, other_model=other_model)
    steps = whole_number("steps", steps, EditError, least=1)
    away = edges_of(clean.config)[None].to(clean.embed).repeat(clean.allowed.batch, 1, 1) * 0
    total = torch.zeros_like(away)
    with torch.no_grad():
        theirs, ours = _outputs(corrupt), _outputs(clean)
        moved = [one - other for one, other in zip(theirs, ours, strict=True)]
    for step in range(1, steps + 1):
        embed = torch.lerp(corrupt.embed.detach(), clean.embed.detach(), step / steps)
        with torch.enable_grad():
            away = away.detach().requires_grad_()
            again = _Apart(clean, away, theirs, moved).run(embed)
            number = numbers_of(metric, again, positions).sum()
        total += torch.autograd.grad(number, away)[0]
    values = (total / steps).masked_fill(~edges_of(clean.config).to(total.device), torch.nan)
    return EdgeEstimates(
        values,
        "batch sender receiver",
        title="Patching edges" + f", {steps} steps" * (steps > 1),
        unit="estimated change",
        labels=_labels(clean.config),
        signed=True,
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Faithfulness(Result[Tensor]):
    """How much of the metric circuits keep, (kind, count) for each number of edges.

    (m(C) − m(∅)) / (m(M) − m(∅)) with the mean m over the texts: C has the clean values of its
    edges and the corrupt ones of all others, ∅ is the corrupt text and M the clean one. "circuit"
    is the faithfulness of C, 1 where it does all that the model does; "complement" is that of
    everything else, 0 where the circuit is complete.

    metrics   the metric itself, (kind, count, batch)
    """

    metrics: Float[Tensor, "kind count batch"]
    clean: Float[Tensor, " batch"]
    corrupt: Float[Tensor, " batch"]


@sourced
@torch.no_grad()
def faithfulness(
    edges: EdgeEstimates,
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    counts: Sequence[int],
    positions: Positions = None,
    other_model: bool = False,
) -> Faithfulness:
    """How much of the metric the strongest edges keep, for each number of edges in `counts`.

    The texts may be others than those that the edges were found on. It costs two forward passes a
    count, each receiver with a stream of its own.

    Raises EditError as `edge_attribution`, for more edges than there are, and where both texts have
    the same metric; TraceError for a clean trace that was made with edits.
    """
    _check(clean, corrupt, metric, other_model=other_model)
    wanted = listed(counts, "counts", EditError, "numbers of edges, as [10, 100]")
    circuits = [edges.circuit(count) for count in wanted]
    theirs = _outputs(corrupt)
    ends = [numbers_of(metric, trace, positions) for trace in (clean, corrupt)]
    way = (ends[0] - ends[1]).mean()
    if not circuits or way == 0:
        raise EditError("faithfulness: expected a count, and two texts that differ in the metric.")
    rows = []
    for kept in circuits:
        for away in (~kept, kept):
            own = away.to(clean.embed).expand(clean.allowed.batch, -1, -1)
            rows.append(numbers_of(metric, _Apart(clean, own, theirs).run(), positions))
    metrics = torch.stack(rows).unflatten(0, (-1, 2)).transpose(0, 1)
    return Faithfulness(
        (metrics.mean(-1) - ends[1].mean()) / way,
        "kind count",
        title="Faithfulness of circuits",
        unit="share of the metric",
        labels={"kind": ("circuit", "complement"), "count": [int(count) for count in wanted]},
        metrics=metrics,
        clean=ends[0],
        corrupt=ends[1],
    )


def _check(clean: Trace, corrupt: Trace, metric: Metric, *, other_model: bool) -> None:
    check_pair(clean, corrupt, "corrupt", other_model=other_model)
    check_unedited(clean)
    check_callable(metric, "metric", EditError)
    real_tokens(clean)


def _labels(config: Config) -> Mapping[str, Sequence[Place]]:
    return {"sender": senders_of(config), "receiver": receivers_of(config)}


def _outputs(trace: Trace) -> Outputs:
    """What every sender of a trace wrote."""
    found = [trace.embed.detach()[None]]
    for at in trace:
        wrote = at.mlp_out.detach()[None] if trace.config.d_mlp else _nothing(trace)
        found += [at.head_out.detach().transpose(0, 1), wrote]
    return found


def _nothing(trace: Trace) -> Float[Tensor, "0 batch position d_model"]:
    """What the MLP of a layer without one wrote."""
    return trace.embed.detach()[None][:0]


class _Apart:
    """One pass of the clean text in which every receiver reads a stream of its own.

    away    how far each edge goes over to the corrupt text: 0 clean, 1 corrupt
    theirs  what the senders wrote in the corrupt text
    moved   what is added times `away`; by default `theirs` less what is written in this pass
    """

    def __init__(
        self,
        clean: Trace,
        away: Float[Tensor, "batch sender receiver"],
        theirs: Outputs,
        moved: Outputs | None = None,
    ) -> None:
        self.clean, self.away, self.theirs, self.moved = clean, away, theirs, moved
        self.layers, self.config = clean.unchanged_model().body.layers, clean.config
        self.senders = senders_of(self.config)
        self.receivers = receivers_of(self.config)
        self.written: dict[int, Tensor] = {}

    def run(self, embed: Tensor | None = None) -> Trace:
        """The pass, with other embeddings where they are given."""
        edits: dict[Key, object] = {
            "embed": lambda own: self._note(0, own if embed is None else embed)
        }
        for layer, weights in enumerate(self.layers):
            for name in ("query", "key", "value"):
                edits[f"{name}_input", layer] = partial(self._of_heads, name, layer)
            edits["z", layer] = partial(self._note_heads, layer)
            if (mlp := weights.mlp) is None:
                self.written[2 + 2 * layer] = _nothing(self.clean)
                continue
            edits["mlp_pre", layer] = partial(self._of_mlp, layer, mlp.up)
            if mlp.gate is not None:
                edits["mlp_gate", layer] = partial(self._of_mlp, layer, mlp.gate)
            edits["mlp_out", layer] = partial(self._note, 2 + 2 * layer)
        logits = [len(self.receivers) - 1]
        edits["resid_post", len(self.layers) - 1] = lambda _: self._streams(logits)[0]
        return self.clean.rerun(edits)

    def _note(self, block: int, value: Tensor) -> Tensor:
        self.written[block] = value[None]
        return value

    def _note_heads(self, layer: int, z: Tensor) -> Tensor:
        self.written[1 + 2 * layer] = self.layers[layer].attention.head_out(z).transpose(0, 1)
        return z

    def _of_heads(self, name: str, layer: int, _: Tensor) -> Float[Tensor, "batch head position d"]:
        own = [n for n, r in enumerate(self.receivers) if (r.kind, r.layer) == (name, layer)]
        return self.layers[layer].attention_input(self._streams(own)).transpose(0, 1)

    def _of_mlp(
        self, layer: int, project: Callable[[Tensor], Tensor], _: Tensor
    ) -> Float[Tensor, "batch position d_mlp"]:
        own = [n for n, r in enumerate(self.receivers) if r == f"mlp {layer}"]
        return project(self.layers[layer].mlp_input(self._streams(own)[0]))

    def _streams(self, receivers: list[int]) -> Float[Tensor, "receiver batch position d_model"]:
        """What these receivers of one point of the stream read."""
        first, x = 0, torch.empty(0)
        for block in range(_blocks_below(self.config, self.receivers[receivers[0]])):
            written, layer = self.written[block], self.layers[max(block - 1, 0) // 2]
            moved = self.theirs[block] - written if self.moved is None else self.moved[block]
            away = self.away[:, first : first + len(written), receivers]
            wrote = written.sum(0) + torch.einsum("bsr,sbpm->rbpm", away, moved)
            first += len(written)
            if not block:
                x = wrote
            elif block % 2:
                bias = layer.attention.b_O
                x = layer.added("attention", x, wrote if bias is None else wrote + bias)
            else:
                x = layer.added("mlp", x, wrote)
        return x


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PatchEstimates(Result[Tensor]):
    """What patching one quantity would change, (layer, batch, head, position).

    The axis of heads is there for quantities that have it; that of keys and values counts
    key-value heads. Padding has 0. The tokens are those of the clean sentences.
    """

    @property
    def total(self) -> Float[Tensor, "layer batch *head"]:
        """The estimate for a patch at all positions together: the sum over them."""
        return self.values.sum(-1)

    @property
    def mean(self) -> Float[Tensor, "layer *head"]:
        """The total, the mean over the pairs of texts."""
        return self.total.mean(1)

    @property
    def standard_error(self) -> Float[Tensor, "layer *head"]:
        """The standard error of the mean over the pairs. Raises EditError for a single pair."""
        return standard_error(self.total)

    def shown(self) -> Result[Tensor]:
        """The total of each head, or without heads every position."""
        if "head" not in self.axes:
            return self
        return Result(self.total, "layer batch head", self.title, self.unit, signed=True)


@sourced
def attribution_patching(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    quantities: Sequence[str] = ("z",),
    at: str = "clean",
    other_model: bool = False,
) -> dict[str, PatchEstimates]:
    """(corrupt value − clean value) · d metric / d value of each quantity, by its name.

    What `patch_heads(clean, corrupt, metric).change` measures, to first order. `metric` is given
    logits and returns one number a sentence; `quantities` are those of a layer with positions: z,
    query, key, value, resid_pre, resid_mid, resid_post, attn_out, mlp_out and others. Sentence i of
    one trace is paired with sentence i of the other, which has the same length. The gradient is
    taken `at` the clean or the corrupt text.

    It costs one backward pass, and one more forward pass unless the trace that the gradient is
    taken at was made with `grad=True`; the gradients that such a trace holds stay as they are.

    Raises EditError for quantities without positions, for texts of different lengths and for traces
    of two models unless `other_model`, and TraceError where the metric does not depend on the
    logits by a gradient.
    """
    check_pair(clean, corrupt, "corrupt", other_model=other_model)
    check_callable(metric, "metric", EditError)
    check_choice(at, "at", ("clean", "corrupt"))
    names = _checked(clean, quantities)
    here = _differentiable(clean if at == "clean" else corrupt)
    with torch.enable_grad():
        total = numbers_of(metric, here).sum()
    gradients = Gradients(here, differentiate(here, total))
    with torch.no_grad():
        return {name: _estimates(name, clean, corrupt, gradients) for name in names}


def _estimates(name: str, clean: Trace, corrupt: Trace, gradients: Gradients) -> PatchEstimates:
    layers = []
    for layer in range(clean.config.n_layers):
        moved = corrupt.read(name, layer).detach() - clean.read(name, layer).detach()
        layers.append((moved * gradients.read(name, layer)).sum(-1))
    values = torch.stack(layers)  # layer batch *head position
    for sentence, length in enumerate(real_tokens(clean)):
        values[:, sentence, ..., length:] = 0
    return PatchEstimates(
        values,
        f"layer batch{' head' * (values.dim() == 4)} position",
        title=f"Patching {name}",
        unit="estimated change",
        tokens=clean.tokens.strings,
        signed=True,
    )


def _checked(trace: Trace, quantities: Sequence[str]) -> tuple[str, ...]:
    names = listed(quantities, "quantities", EditError, 'names of quantities, as ("z", "mlp_out")')
    if not names:
        raise EditError('quantities: expected at least one name, as ("z",).')
    for name in names:
        if not isinstance(name, str) or name not in QUANTITIES:
            raise EditError(f"quantities: {name!r:.80} is not a quantity; z and mlp_out are.")
        quantity = QUANTITIES[name]
        if not quantity.per_layer or "position" not in quantity.axes:
            raise EditError(
                f"quantities: {name} has no layers or no positions; z, query, key, value, "
                "resid_pre, mlp_out and others have."
            )
        # A quantity that this model lacks is refused in its own words.
        as_point((name, 0), trace.config)
    return tuple(names)


def _differentiable(trace: Trace) -> Trace:
    """The trace, or the same pass again with a graph."""
    if trace.differentiable:
        return trace
    check_unedited(trace)
    check_grad(True, None, held(trace.unchanged_model().body))
    evaluation = Evaluation(trace.allowed, trace.evaluation.impl)
    again = Trace(trace.unchanged_model(), trace.inputs, evaluation, until=trace.until, grad=True)
    again.autocast = trace.autocast
    with trace.as_made():
        record(again, keep=(), plan=Plan())
    return again
