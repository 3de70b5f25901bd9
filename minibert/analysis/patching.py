"""An edit at every place of a model, and what it does to a metric of the logits.

ablate_heads, patch_heads, patch_positions
    each place takes a value of another text, or none (Vig et al. 2020, "Investigating gender bias
    in language models using causal mediation analysis"; Zhang and Nanda 2024, "Towards best
    practices of activation patching")
path_patching
    what a head does by way of some other heads alone (Wang et al. 2022, "Interpretability in the
    wild", appendix B, with MLPs recomputed; Goldowsky-Dill et al. 2023, "Localizing model behavior
    with path patching")
causal_tracing
    which state brings back an answer that noise took away (Meng et al. 2022, "Locating and editing
    factual associations in GPT", section 2.1 and appendix B.1)
attention_knockout
    what the answer loses where tokens may not look at others (Geva et al. 2023, "Dissecting recall
    of factual associations in auto-regressive language models", section 5)

All of it takes a batch of texts, or of pairs: sentence i of one trace goes with sentence i of the
other, which has the same length and is of the same model, unless `other_model`. The work is done by
`Trace.rerun_each`. Traces of attached models are taken too, except by path_patching and
causal_tracing; an attached model runs one edit at a time, whatever `batch` is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    Aligned,
    Each,
    aligned_positions,
    check_callable,
    check_choice,
    check_pair,
    check_unedited,
    listed,
    positions_each,
    real_tokens,
)
from minibert.analysis.metrics import Metric, numbers_of, of_sentence
from minibert.attached.read import AttachedTrace
from minibert.errors import EditError, check_flag, whole_number
from minibert.layers.config import Config
from minibert.layers.readers import reached
from minibert.quantities import QUANTITIES, Float
from minibert.result import Place, Result, sourced
from minibert.trace.edit import Chosen, Edit, Point, as_point, hide, indices_of, noise, zero
from minibert.trace.edit import replace as replaced_by
from minibert.trace.read import Trace
from minibert.trace.sweep import read_each, rerun_each

Traced = Trace | AttachedTrace
# Whose trace it is was checked once, for all places.
taken = partial(replaced_by, other_model=True)

Key = str | tuple[Any, ...]
Edits = Mapping[Key, Edit | list[Edit]]
Positions = Sequence[int] | None
Pair = tuple[Each, Each]
"""Queries, and the keys that they may not look at."""
Blocked = Mapping[str, Pair | Sequence[Pair]]
Places = tuple[tuple[int, ...], ...]

RESTORED = ("resid_post", "attn_out", "mlp_out")
_SENDERS = ("z", "mlp_out")
_RECEIVERS = ("query", "key", "value", "mlp_pre", "mlp_gate", "logits")
# The groups of tokens of Meng et al., in the order of the text.
_KINDS = (
    "first subject token",
    "middle subject tokens",
    "last subject token",
    "first token after",
    "further tokens",
    "last token",
)
_UNIT = "change of the metric"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Effects(Result[Tensor]):
    """The metric after an edit at every place, (layer, batch, ...), and what it was before.

    clean     the metric of each text whose pass was edited
    patched   the metric of each text that values came from; None where nothing came from a text
    """

    clean: Float[Tensor, " batch"]
    patched: Float[Tensor, " batch"] | None = None

    @property
    def change(self) -> Float[Tensor, "layer batch *place"]:
        """How much each edit moved the metric of each text."""
        return self.values - self._by_text(self.clean)

    @property
    def relative(self) -> Float[Tensor, "layer batch *place"]:
        """The change as a share of the clean metric: −1 where all of it is lost."""
        return self.change / self._by_text(self.clean)

    @property
    def mean(self) -> Float[Tensor, "layer *place"]:
        """The change, the mean over the texts."""
        return self.change.mean(1)

    @property
    def standard_error(self) -> Float[Tensor, "layer *place"]:
        """The standard error of the mean over the texts. Raises EditError for a single text."""
        return standard_error(self.change)

    @property
    def recovered(self) -> Float[Tensor, "layer *place"]:
        """The share of the way from the clean metric to the patched one: 0 none, 1 all of it.

        The mean change over the mean way, as in Wang et al. 2022. Raises EditError where values
        came from no other text, and where the two metrics are equal.
        """
        way = None if self.patched is None else (self.patched - self.clean).mean()
        if way is None or way == 0:
            raise EditError(
                "There is nothing to recover: an ablation has no second pass, or both passes have "
                "the same metric. Read `change`."
            )
        return self.mean / way

    def largest(self, count: int = 5) -> list[tuple[Place | float, ...]]:
        """The places that change most: (layer, ..., mean change over the texts)."""
        names = " ".join(axis for axis in self.axes if axis != "batch")
        tokens = self.tokens[:1]
        return Result(self.mean, names, labels=self.labels, tokens=tokens).largest(count)

    def shown(self) -> Result[Tensor]:
        """The change."""
        return replace(self, values=self.change)

    def _by_text(self, numbers: Float[Tensor, " batch"]) -> Tensor:
        return numbers.reshape(-1, *[1] * (self.values.dim() - 2))


def standard_error(changes: Float[Tensor, "layer batch *place"]) -> Float[Tensor, "layer *place"]:
    """The standard error of the mean over texts. Raises EditError for a single text."""
    if changes.shape[1] == 1:
        raise EditError("One text has no standard error; give several texts.")
    return changes.std(1) / changes.shape[1] ** 0.5


@sourced
def ablate_heads(
    trace: Traced,
    metric: Metric,
    *,
    edit: Edit = zero,
    positions: Positions = None,
    batch: int = 64,
) -> Effects:
    """The metric with z of one head edited at a time, (layer, batch, head); by default to zero.

    `metric` is given logits and returns a number for the sentence; `positions` are those of the
    logits that it reads, all when not given; `batch` edits run at once.
    """
    check_unedited(trace, attached=True)
    return _sweep(trace, None, metric, "z", edit=edit, positions=positions, batch=batch)


@sourced
def patch_heads(
    trace: Traced,
    source: Traced,
    metric: Metric,
    *,
    name: str = "z",
    positions: Positions = None,
    batch: int = 64,
    other_model: bool = False,
) -> Effects:
    """The metric with `name` of each head taken from another trace, (layer, batch, head).

    `name` is a quantity with a head axis: z, query, key, value, scores, probs. key and value have a
    place for each key-value head, of which there are fewer where several heads share one. A head is
    patched at every token; `positions` are those of the logits that the metric reads.
    """
    check_pair(trace, source, other_model=other_model, attached=True)
    return _sweep(trace, source, metric, name, positions=positions, batch=batch)


@sourced
def patch_positions(
    trace: Traced,
    source: Traced,
    metric: Metric,
    *,
    name: str = "resid_post",
    heads: bool = False,
    layers: Sequence[int] | None = None,
    aligned: Aligned | None = None,
    positions: Positions = None,
    batch: int = 64,
    other_model: bool = False,
) -> Effects:
    """The metric with `name` of each layer taken from another trace at one token.

    The axes are (layer, batch, position), of `layers` or of all. With `heads` each head of z, of
    query, key or value is patched alone, (layer, batch, head, position): a pass for every head and
    token, so ask `attribution_patching` first which layers are worth it. `positions` are those of
    the logits that the metric reads; every token is patched. Pairs of several lengths have no
    tokens in common: `aligned={"subject": [[2, 3], [2]], "end": -1}` names places instead, each
    with its positions in every sentence, or one position for all sentences; the last axis is then
    "place".
    """
    check_pair(trace, source, other_model=other_model, attached=True)
    check_flag("heads", heads, EditError)
    if heads:
        _heads_of(trace, name)
    places = _places(trace, name, aligned)
    given = slice(None) if layers is None else listed(layers, "layers", EditError, "layers, as [0]")
    chosen = indices_of(given, len(trace), "layer", EditError)
    return _sweep(
        trace,
        source,
        metric,
        name,
        layers=chosen,
        heads=heads,
        places=places,
        positions=positions,
        batch=batch,
    )


def _sweep(
    trace: Traced,
    source: Traced | None,
    metric: Metric,
    name: str,
    *,
    edit: Edit = zero,
    layers: Sequence[int] | None = None,
    heads: bool = True,
    places: tuple[str, Sequence[Sequence[Chosen]], tuple[str, ...]] | None = None,
    positions: Positions,
    batch: int,
) -> Effects:
    """One edit of a quantity at each layer, head and place, in every sentence."""
    every = range(len(trace)) if layers is None else layers
    of_layer: list[tuple[int, ...]] = [()]
    if heads:
        of_layer = [(head,) for head in _heads_of(trace, name)]
    axis, where, names = places or ("", [[None]] * len(real_tokens(trace)), ())

    def edits(sentence: int, own: Traced) -> Iterator[Edits]:
        theirs = None if source is None else source.text(sentence)
        for layer in every:
            for head in of_layer:
                for place in where[sentence]:
                    key: Key = (name, layer, *head)
                    yield {key: edit if theirs is None else taken(theirs, positions=place)}

    columns = torch.stack(_swept(trace, edits, metric, positions, batch), 1)
    sizes = [len(every), *([len(of_layer)] if heads else []), *([len(where[0])] if axis else [])]
    patched = None if source is None else _unedited(metric, source, positions)
    labels: dict[str, Sequence[Place]] = {axis: names} if names else {}
    return Effects(
        columns.unflatten(0, sizes).movedim(-1, 1),
        f"layer batch{' head' * heads} {axis}".strip(),
        title=f"{'Patching' if source is not None else 'Ablating'} {name}",
        unit=_UNIT,
        labels=labels if layers is None else labels | {"layer": list(every)},
        tokens=trace.tokens.strings,
        signed=True,
        clean=_unedited(metric, trace, positions).detach(),
        patched=None if patched is None else patched.detach(),
    )


def _swept(
    trace: Traced,
    edits: Callable[[int, Any], Iterator[Edits]],
    metric: Metric,
    positions: Positions,
    batch: int,
) -> list[Float[Tensor, " edit"]]:
    """The metric of every sentence after each of its own edits.

    A sentence is alone in its passes: their batch is made of edits.
    """
    check_callable(metric, "metric", EditError)
    check_unedited(trace, attached=True)
    found = []
    with torch.no_grad():
        for sentence in range(len(real_tokens(trace))):
            own, own_metric = trace.text(sentence), of_sentence(metric, sentence)
            several = list(edits(sentence, own))
            if isinstance(own, Trace):
                numbers = own.rerun_each(several, own_metric, positions=positions, batch=batch)
            else:
                passes = map(own.rerun, several)
                numbers = torch.stack([numbers_of(own_metric, one, positions) for one in passes])
            found.append(numbers[:, 0])
    return found


def _unedited(metric: Metric, trace: Traced, positions: Positions) -> Float[Tensor, " batch"]:
    """The metric of every sentence without an edit."""
    if isinstance(trace, Trace):
        return numbers_of(metric, trace, positions)
    # The edited passes are those of a sentence alone, which rounds otherwise.
    texts = [(of_sentence(metric, n), trace.text(n)) for n in range(len(real_tokens(trace)))]
    return torch.cat([numbers_of(own, text, positions) for own, text in texts])


def _heads_of(trace: Traced, name: str) -> range:
    if not isinstance(name, str) or name not in QUANTITIES or not QUANTITIES[name].per_head:
        raise EditError(f"{name!r:.80} has no heads; query, key, value, scores, probs, z have.")
    of_keys = "kv_head" in QUANTITIES[name].axes
    if not isinstance(trace, Trace):
        return range(trace.only().heads_of(name))
    return range(trace.config.n_kv_heads if of_keys else trace.config.n_heads)


def _places(
    trace: Traced, name: str, aligned: Aligned | None
) -> tuple[str, Sequence[Sequence[Chosen]], tuple[str, ...]]:
    """The last axis of a sweep, its positions in every sentence, and the names of its places."""
    axes = QUANTITIES[name].axes if isinstance(name, str) and name in QUANTITIES else ()
    if "position" not in axes or not QUANTITIES[name].per_layer:
        raise EditError(f"{name!r:.80} has no positions; resid_pre, attn_out and others have.")
    lengths = real_tokens(trace)
    if aligned is not None:
        found = aligned_positions(trace, aligned)
        rows = [[each[sentence] for each in found.values()] for sentence in range(len(lengths))]
        return "place", rows, tuple(found)
    if len(set(lengths)) > 1:
        raise EditError(
            f"The sentences have {', '.join(map(str, lengths))} tokens, so a column would be "
            'another token in each. Name places, as aligned={"subject": [2, 3], "end": -1}, or '
            "sweep sentences of one length."
        )
    return "position", [range(length) for length in lengths], ()


@sourced
def path_patching(
    clean: Trace,
    corrupt: Trace,
    metric: Metric,
    *,
    receivers: Sequence[Key],
    senders: Sequence[Key] | None = None,
    freeze_mlps: bool = False,
    positions: Positions = None,
    batch: int = 64,
    other_model: bool = False,
) -> Effects:
    """The metric after each sender's corrupt value reaches only the receivers.

    The axes are (layer, batch, head) of the sender, with a last place "MLP" on the axis of heads
    where MLPs are senders; nan where nothing was sent. Each sender takes three steps:

    1. its value of the corrupt text goes into the clean pass, in which all other heads are frozen
       to their clean z: it travels along the stream, through norms and MLPs, but through no head;
    2. what the receivers' queries, keys and values become there is taken,
    3. and put into an otherwise clean pass, where everything after them follows.

    A sender is ("z", layer, head) or ("mlp_out", layer), by default every head. A receiver is
    ("query" | "key" | "value", layer, head), keys and values counted by key-value head, or all of a
    layer as ("value", layer); ("mlp_pre", layer), in a gated MLP beside ("mlp_gate", layer); or
    "logits", for what reaches them through no other head. All receivers are patched together. MLPs
    on the way follow unless `freeze_mlps`, which leaves the direct paths alone. A sender without a
    path to a receiver changes nothing.

    `metric` is given logits and returns one number a sentence; `positions` are those of the logits
    that it reads, all when not given; `batch` sentences run at once.

    Raises EditError for senders, receivers and texts that do not fit, and TraceError for a clean
    trace that was made with edits.
    """
    check_pair(clean, corrupt, "corrupt", other_model=other_model)
    check_unedited(clean)
    check_callable(metric, "metric", EditError)
    check_flag("freeze_mlps", freeze_mlps, EditError)
    batch = whole_number("batch", batch, EditError, least=1)
    config = clean.config
    every = [("z", n, head) for n in range(config.n_layers) for head in range(config.n_heads)]
    sending = _points(clean, every if senders is None else senders, "senders", _SENDERS)
    receiving = _points(clean, receivers, "receivers", _RECEIVERS)
    with torch.no_grad():
        ends = [numbers_of(metric, trace, positions) for trace in (clean, corrupt)]
        values = dict.fromkeys(sending, ends[0])
        for receivers_of, several in _by_receivers(config, sending, receiving).items():
            edits = [{_key(point): taken(corrupt)} for point in several]
            run = partial(_by_way_of, clean, edits, receivers_of, freeze_mlps)
            values |= zip(several, run(metric, positions=positions, batch=batch), strict=True)
    columns = [*range(config.n_heads), *["MLP"] * any(p.name == "mlp_out" for p in sending)]
    table = ends[0].new_full((config.n_layers, len(ends[0]), len(columns)), torch.nan)
    for point, value in values.items():
        table[point.layer, :, -1 if point.heads is None else point.heads] = value
    return Effects(
        table,
        "layer batch head",
        title=f"By way of {receiving[0]}{' and more' * (len(receiving) > 1)}",
        unit=_UNIT,
        labels={"head": columns} if "MLP" in columns else {},
        signed=True,
        clean=ends[0],
        patched=ends[1],
    )


def _by_receivers(
    config: Config, senders: Sequence[Point], receivers: Sequence[Point]
) -> dict[tuple[Point, ...], list[Point]]:
    """The senders that reach the same receivers together; those that reach none are left out."""
    groups: dict[tuple[Point, ...], list[Point]] = {}
    for sender in senders:
        layer = sender.layer or 0
        beside = reached(config, layer, {sender.name})
        found = tuple(
            one
            for one in receivers
            if one.layer is None or one.layer > layer or (one.layer == layer and one.name in beside)
        )
        if found:
            groups.setdefault(found, []).append(sender)
    return groups


def _by_way_of(
    clean: Trace,
    edits: Sequence[Edits],
    receivers: Sequence[Point],
    freeze_mlps: bool,
    metric: Metric,
    **options: Any,
) -> Tensor:
    """The metric after each edit was sent to the receivers."""
    frozen = frozenset({"mlp_out"} if freeze_mlps and clean.config.d_mlp else ())

    def held(layer: int, first: int) -> frozenset[str]:
        # What is below the sender, and the heads beside it, are clean by themselves.
        return frozen if layer == first else frozen | {"attn_out"}

    if any(point.layer is None for point in receivers):
        # Logits are behind all other receivers, too.
        return rerun_each(clean, edits, metric, held=held, **options)
    found = read_each(clean, edits, receivers, batch=options["batch"], held=held)
    return rerun_each(clean, list(map(_received, found)), metric, **options)


def _received(found: Mapping[Point, Tensor]) -> Edits:
    """The edits that give the receivers what they have there."""
    edits = {}
    for point, value in found.items():
        heads = point.heads if isinstance(point.heads, int) else point.head_list
        edits[_key(point)] = replaced_by(value if point.heads is None else value[:, heads])
    return edits


def _key(point: Point) -> Key:
    parts = (point.name, point.layer, point.heads)
    return point.name if point.layer is None else tuple(p for p in parts if p is not None)


def _points(
    trace: Trace, keys: Sequence[Key], what: str, names: tuple[str, ...]
) -> tuple[Point, ...]:
    expected = f"expected a list of at least one point of {', '.join(names)}"
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise EditError(f'{what}={keys!r:.80}: {expected}, such as [("{names[0]}", 1, 0)].')
    points = tuple(as_point(key, trace.config) for key in keys)
    for point in points:
        if point.name not in names:
            raise EditError(f"{what}: {point} is not one of them; {expected}.")
        if what == "senders" and point.name == "z" and not isinstance(point.heads, int):
            raise EditError(f'senders: {point} is not a single head; write ("z", layer, head).')
    return points


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CausalTraces(Effects):
    """The metric with one state restored, (layer, batch, position); nan for padding.

    corrupt   the metric with noise on the subject, the mean over the samples
    subject   the positions of each sentence's subject
    window    layers that were restored together
    std       the standard deviation of the noise
    """

    corrupt: Float[Tensor, " batch"]
    subject: Places
    window: int
    std: float

    @property
    def change(self) -> Float[Tensor, "layer batch position"]:
        """The indirect effect of each state: how much it moved the metric of the corrupt pass."""
        return self.values - self._by_text(self.corrupt)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The last axis of `mean`: the paper's six groups of tokens."""
        return _KINDS

    @property
    def mean(self) -> Float[Tensor, "layer kind"]:
        """The average indirect effect of each group of tokens over the sentences that have it.

        In a sentence it is the mean over the group's tokens. A subject of one token is a last one.
        """
        change = self.change
        groups = [_groups(*each) for each in zip(self.subject, map(len, self.tokens), strict=True)]
        columns = []
        for kind in range(len(_KINDS)):
            found = [
                change[:, n, each[kind]].mean(-1) for n, each in enumerate(groups) if each[kind]
            ]
            empty = change.new_full((len(change),), torch.nan)
            columns.append(torch.stack(found).mean(0) if found else empty)
        return torch.stack(columns, 1)

    def largest(self, count: int = 5) -> list[tuple[Place | float, ...]]:
        """The states that bring back most: (layer, sentence, position, change)."""
        return Result(self.change, self.names, tokens=self.tokens).largest(count)

    def by_kind(self) -> Result[Tensor]:
        """The mean, to draw: layers and groups of tokens."""
        labels = {"kind": self.kinds}
        return Result(self.mean, "layer kind", self.title, self.unit, labels, signed=True)


@sourced
def causal_tracing(
    trace: Trace,
    subject: Each,
    metric: Metric,
    *,
    name: str = "resid_post",
    window: int | None = None,
    samples: int = 10,
    std: float | None = None,
    seed: int = 0,
    positions: Positions = None,
    batch: int = 64,
) -> CausalTraces:
    """How far each state, restored in the pass with a corrupted subject, brings the metric back.

    1. The clean pass: the metric of the text as it is.
    2. The corrupt pass: noise is added to what enters layer 0 at the subject's tokens. In GPT-2
       that is the same as noise on the word embeddings; in BERT it comes after their norm.
    3. The corrupt pass again, with one state, at one token and around one layer, as it was in 1.

    subject    the subject's positions in every sentence, as `phrase_positions` finds them; one
               entry a sentence, or one position for all
    metric     of logits, one number a sentence, as `answer_probability(token)`
    name       resid_post, attn_out or mlp_out
    window     layers that are restored together, centred on each; by default 1 of resid_post, 10
               of the others, as in the paper
    samples    passes with noise that are averaged, with the seeds from `seed` on
    std        of the noise; by default three times that of the word embeddings of the subjects

    `positions` are those of the logits that the metric reads; `batch` passes run at once. It costs
    layers x tokens x samples passes a sentence. With a given `std` each sentence gets what it gets
    alone; without one the level is of the subjects of all sentences together.

    Raises EditError for a subject, name or number that does not fit, and TraceError for a trace
    that was made with edits.
    """
    check_unedited(trace)
    check_choice(name, "name", RESTORED)
    subjects = positions_each(trace, subject, "subject")
    samples = whole_number("samples", samples, EditError, least=1)
    seed = whole_number("seed", seed, EditError, least=0)
    width = (1 if name == "resid_post" else 10) if window is None else window
    width = whole_number("window", width, EditError, least=1)
    level = _level(trace, subjects) if std is None else std
    noises = [noise(seed + number, std=level) for number in range(samples)]
    edits = partial(_restoring, subjects=subjects, noises=noises, name=name, window=width)
    numbers = _swept(trace, edits, metric, positions, batch)
    L, B = trace.config.n_layers, trace.allowed.batch
    values = trace.embed.new_full((L, B, trace.allowed.position), torch.nan)
    for n, rows in enumerate(numbers):
        found = rows[1 + samples :].unflatten(0, (L, -1, samples)).mean(-1)
        values[:, n, : found.shape[1]] = found
    return CausalTraces(
        values,
        "layer batch position",
        title=f"Restoring {name}" + f", {width} layers" * (width > 1),
        unit=_UNIT,
        tokens=trace.tokens.strings,
        signed=True,
        clean=torch.stack([rows[0] for rows in numbers]),
        corrupt=torch.stack([rows[1 : 1 + samples].mean() for rows in numbers]),
        subject=subjects,
        window=width,
        std=level,
    )


def _restoring(
    sentence: int, own: Trace, *, subjects: Places, noises: Sequence[Edit], name: str, window: int
) -> Iterator[Edits]:
    """No edit, then the noises, then each state restored with each of them."""
    L = own.config.n_layers
    subject = list(subjects[sentence])
    corrupting: list[Edits] = [{"embed": each.at(positions=subject)} for each in noises]
    # No edit at all is the clean pass.
    yield {}
    yield from corrupting
    for layer in range(L):
        for place in range(own.allowed.position):
            near = around(layer, window, L)
            restored = {(name, each): replaced_by(own, positions=place) for each in near}
            yield from ({**noisy, **restored} for noisy in corrupting)


def around(layer: int, window: int, n_layers: int) -> range:
    """The layers of a window, as in the paper's code: cut at both ends of the model."""
    return range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))


def _level(trace: Trace, subjects: Places) -> float:
    ids = torch.cat([trace.tokens.ids[n, list(at)] for n, at in enumerate(subjects)])
    rows = trace.unchanged_model().body.W_E.detach()[ids.to(trace.embed.device)]
    return 3 * float(rows.double().std())


def _groups(subject: Sequence[int], length: int) -> tuple[list[int], ...]:
    """The positions of each group of tokens; those before the subject are in none."""
    first, last, end = min(subject), max(subject), length - 1
    after = list(range(last + 1, end))
    middle = [n for n in subject if n not in (first, last)]
    ends = [] if end <= last else [end]
    return [first] if first < last else [], middle, [last], after[:1], after[1:], ends


@sourced
def attention_knockout(
    trace: Traced,
    blocked: Blocked,
    metric: Metric,
    *,
    window: int = 1,
    positions: Positions = None,
    batch: int = 64,
) -> Effects:
    """The metric after attention was blocked in the layers around each layer.

    The axes are (layer, batch, blocked). Scores of the blocked pairs of query and key become −inf,
    so the other keys of that row share its attention. Where the answer changes, it needed what
    flows there.

    blocked    what to block, by name: (queries, keys), or a list of such pairs for several at
               once. Queries and keys are a position for all sentences, or a list with the
               position or positions of each: {"subject": (-1, [[2, 3], [2]])}
    metric     of logits, one number a sentence, as `answer_probability(token)`
    window     layers that are blocked together, centred on each; the paper blocks 9 of GPT-2 XL

    `positions` are those of the logits that the metric reads; `batch` passes run at once.

    Raises EditError for pairs that are not positions, and where a query would be left without a
    key; TraceError for a trace that was made with edits.
    """
    check_unedited(trace, attached=True)
    window = whole_number("window", window, EditError, least=1)
    pairs, L = _pairs(trace, blocked), len(trace)

    def edits(sentence: int, own: Traced) -> Iterator[Edits]:
        yield {}
        for each in pairs.values():
            hidden = [
                hide(list(keys[sentence]), positions=list(queries[sentence]))
                for queries, keys in each
            ]
            for layer in range(L):
                yield {("scores", near): hidden for near in around(layer, window, L)}

    numbers = torch.stack(_swept(trace, edits, metric, positions, batch), -1)  # edit batch
    return Effects(
        numbers[1:].unflatten(0, (len(pairs), L)).movedim(0, -1),
        "layer batch blocked",
        title=f"Attention blocked, {window} layer{'s' * (window > 1)}",
        unit=_UNIT,
        labels={"blocked": tuple(pairs)},
        signed=True,
        clean=numbers[0],
    )


def _pairs(trace: Traced, blocked: Blocked) -> dict[str, list[tuple[Places, Places]]]:
    expected = 'expected pairs by name, as {"subject": (-1, [2, 3])}'
    if not isinstance(blocked, Mapping) or not blocked:
        raise EditError(f"blocked: {expected}, with the queries first, then the keys.")
    found = {}
    for name, given in blocked.items():
        several: list[Pair] = given if isinstance(given, list) else [given]  # type: ignore[list-item]
        if not several or not all(isinstance(one, tuple) and len(one) == 2 for one in several):
            raise EditError(f"blocked[{name!r:.80}] is {given!r:.80}; {expected}.")
        found[str(name)] = [
            (
                positions_each(trace, queries, f"queries of {name!r:.80}"),
                positions_each(trace, keys, f"keys of {name!r:.80}"),
            )
            for queries, keys in several
        ]
    return found
