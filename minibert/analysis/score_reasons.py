"""Why a head looks there: a score as an exact sum over pairs of what was written to the stream.

The input of a query is a sum of what embeddings, heads and MLPs wrote (`stream.py` has the parts),
and so is the input of a key. With what every norm divides by frozen at its real value, query and
key are sums of these parts, and their dot product is a sum over pairs of parts:

    score(query, key) = scale · Σ_a Σ_b q_a · k_b

`WhyScore.check` compares a part with an edit that takes it out. `head_reasons.py` has the mean over
whole texts.

Sources: as in reasons.py, which has the sums of one side and of logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from minibert.analysis.arguments import check_unedited
from minibert.analysis.reading import Reading, Split, into_stream, same_for_every_key, seen_keys
from minibert.analysis.reasons import (
    Branch,
    Why,
    WhyTokens,
    neurons_of,
    one_text,
    place_of,
    split_of,
    why_number,
    with_features,
)
from minibert.analysis.rows import at_positions, wide
from minibert.analysis.stream import (
    Component,
    FrozenNorm,
    Written,
    check_total,
    embedding_of,
    layer_of,
)
from minibert.errors import TraceError, check_index, whole_number
from minibert.features import Features
from minibert.quantities import Float
from minibert.result import Result, sourced
from minibert.trace.read import Trace


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WhyScore(Result[Tensor]):
    """The parts of one score, (query_component, key_component); their sum is the score.

    It is so within 1e-5 of the largest part in float32 (norms frozen, rotation and norms of queries
    and keys included), before a soft cap, or within 1e-6 of scale · ‖query‖ · ‖key‖ where that is
    more: the only part of a score in layer 0 of a rotary model may be small beside its vectors,
    whose rounding it has. In half precision it is so within a few percent.

    score    the number that is taken apart: query·key · scale, before soft cap and mask, less that
             of `against` where there is one
    weight   the attention weight, after the softmax
    seen     False where the query may not look at the key: the weight is 0, whatever the score
    side     one side as a sum, the other whole or one of its parts: to follow down to the words
    check    whether taking a part out changes the score by as much
    """

    score: float
    weight: float
    seen: bool
    layer: int
    head: int
    query: int
    key: int
    against: int | str | None
    readings: tuple[Reading, Reading] = field(repr=False)
    vectors: tuple[Tensor, Tensor] = field(repr=False)

    @property
    def total(self) -> float:
        """The sum of the parts: the score, up to rounding."""
        return self.values.sum().item()

    def top(self, count: int = 5) -> list[tuple[str, str, float]]:
        """The largest pairs by size, sign kept. Raises TraceError for a count below 1.

        Of all pairs, as `table`: those that are the same for every key (`same`), which the printed
        text puts together, are among them.
        """
        return [(str(a), str(b), float(value)) for a, b, value in self.largest(count)]

    @property
    def same(self) -> tuple[str, ...]:
        """The components at the key whose pairs are the same for every key of the query.

        They cannot say why this key has its weight: the softmax cancels them.
        """
        found = same_for_every_key(self.readings[1].trace, self.layer)
        return tuple(str(each) for each in self.labels["key_component"] if each in found)

    def _telling(self) -> "WhyScore":
        """The pairs with 0 in place of those that are the same for every key."""
        telling = [each not in self.same for each in self.labels["key_component"]]
        kept = torch.tensor(telling, device=self.values.device)
        return replace(self, values=self.values.where(kept, 0))

    def side(self, side: str = "key", *, of: str | None = None) -> Why:
        """The score as a sum over what was written at the "key" (or "query") alone.

        The other side is whole, or only its component `of`. Raises TraceError for another side or
        component.
        """
        other, own = self._sides(side)
        axis = ("query_component", "key_component")[other]
        vectors = self.vectors[other]  # component d_head
        vector = vectors.sum(0) if of is None else vectors[self.place(axis, of)]
        values = self.vectors[own] @ vector
        title = f"the {side}'s side of {self.title}" + ("" if of is None else f", for {of}")
        reading = self.readings[own]
        along = [(each, (part @ vector)[:, None]) for each, part in reading.constants]
        reading = replace(reading, reader=reading.reader.along(vector), constants=along)
        return why_number(reading, values, self.labels[f"{side}_component"], title, self.unit)

    def _sides(self, side: str) -> tuple[int, int]:
        """The number of the other side and of this one: query 0, key 1."""
        if side not in ("query", "key"):
            raise TraceError(f"side={side!r:.80}: expected 'query' or 'key'.")
        return (1, 0) if side == "query" else (0, 1)

    def follow(self, component: str, side: str = "key") -> "WhyTokens | Result[Tensor]":
        """What a component wrote at the key (or query), taken apart as by `Why.follow`."""
        return self.side(side).follow(component)

    def tree(self, depth: int = 3, share: float | int = 0.1, side: str = "key") -> Branch:
        """One side, followed down to the words, as by `Why.tree`."""
        return self.side(side).tree(depth, share)

    @torch.no_grad()
    def check(self, component: str, side: str = "key") -> Result[Tensor]:
        """The part of a component beside what happens to the score when it is taken out.

        part     the sum of its pairs
        frozen   the change of the score when it is taken out of what the head's query (key) is
                 computed from: the part, up to rounding, where queries and keys have no norm
        live     the same when it is taken out in front of the norm of attention, which then divides
                 by something else; as frozen where there is none (BERT)

        Raises TraceError for a component that is not written to the stream (biases of the head),
        for a score less another, and for a trace with edits.
        """
        trace = self.readings[0].trace
        check_unedited(trace)
        if self.against is not None:
            raise TraceError("check() compares one score; call why(...) without against=.")
        own = self._sides(side)[1]
        place = self.place(f"{side}_component", component)
        part = self.values.sum(1 - own)[place].item()
        at, position = trace[self.layer], (self.query, self.key)[own]
        cut = at_positions(trace, [[position]])
        start = [(each, part[:, [position]]) for each, part in embedding_of(trace)]
        parts = Written(cut, self.layer, "resid_pre", heads=True, embedding=start).vectors()
        written = {str(name): vectors[0, 0] for name, vectors in parts}
        writer = str(self.labels[f"{side}_component"][place])
        if writer not in written:
            advice = ": change it with features.edit" if writer.startswith("feature ") else ""
            raise TraceError(
                f"{writer} cannot be taken out{advice}; expected a whole component of the stream, "
                f"such as {parts[0][0]}."
            )
        wrote = written[writer]
        layer, norm, carried = layer_of(at), None, wrote
        if not layer.after:
            norm = FrozenNorm.of_layer(at, "attention_norm", at.resid_pre)
        if norm is not None:
            carried = norm.scaled(wrote) / norm.deviation[0, position]
        head = self.head // (layer.attention.group if side == "key" else 1)
        now = wide(at.quantity(f"{side}_input"))[0, head, position] - carried
        without = (wide(at.resid_pre)[0, position] - wrote).to(at.resid_pre.dtype)
        inputs = (now, layer.attention_input(without))
        changes = [self._changed(side, head, position, x) for x in inputs]
        return Result(
            torch.tensor([part, *changes]),
            "what",
            title=f"{writer} taken out of the {side} of {self.title}",
            unit=self.unit,
            labels={"what": ("part", "frozen", "live")},
            signed=True,
        )

    def _changed(self, side: str, head: int, position: int, x: Tensor) -> float:
        """How much the score loses when the input of its query or key is x."""
        trace = self.readings[0].trace

        def put(value: Tensor) -> Tensor:
            value = value.clone()
            value[:, position] = x.to(value.dtype)
            return value

        other = trace.rerun({(f"{side}_input", self.layer, head): put})
        row = slice(self.query, self.query + 1)
        after = other[self.layer, self.head].window("scores", queries=row)[0, 0, self.key]
        return self.score - after.item()

    def note(self) -> str:
        """The sentence that says what is seen."""
        strings = self.readings[0].trace.tokens.strings[0]
        query, key, value = self._telling().top(1)[0]
        looker, looked = repr(strings[self.query]), repr(strings[self.key])
        looks = f"{looker} looks at {looked} with weight {self.weight:.2f}"
        if not self.seen:
            looks = f"{looker} may not look at {looked}, whatever the score"
        score = "score" if self.against is None else f"score less {self._other(strings)}"
        return (
            f"{looks} ({score} {self.score:+.2f}). The largest part, {value:+.2f}, is {query} at "
            f"the query x {key} at the key{self._read(key)}."
        )

    def _read(self, name: str) -> str:
        """Where a head that wrote at the key had looked most; nothing of other components."""
        writer = self.labels["key_component"][self.place("key_component", name)]
        if not isinstance(writer, Component) or writer.kind != "head":
            return ""
        trace, head = self.readings[0].trace, writer.head or 0
        one = trace.at(writer.layer or 0, slice(head, head + 1), [self.key])
        weight, place = wide(one.probs)[0, 0, 0].max(-1)
        token = repr(trace.tokens.strings[0][int(place)])
        return f", which wrote there what it read, most at {token} (weight {weight:.2f})"

    def _other(self, strings: Sequence[str]) -> str:
        if isinstance(self.against, str):
            return "the mean of all keys that it may see"
        return f"that of {strings[self.against or 0]!r}"

    def __str__(self) -> str:
        telling = self._telling()
        top, same = telling.top(), self.same if self.against is None else ()
        rows = [f"{value:+.2f}  {query} x {key}" for query, key, value in top]
        rest = telling.total - sum(value for _, _, value in top)
        others = self.values.shape[0] * (self.values.shape[1] - len(same)) - len(top)
        rows.append(f"{rest:+.2f}  {others} other pairs")
        if same:
            equal = self.total - telling.total
            rows.append(f"{equal:+.2f}  the same for every key, so it cancels: {', '.join(same)}")
        cancels = self._cancels()
        which = "all" if self.against == "row" else "both"
        last = [f"equal for {which} keys, so gone: {', '.join(cancels)}"] if cancels else []
        return "\n".join([self.note(), *rows, f"{self.total:+.2f}  all of them", *last])

    def _cancels(self) -> list[str]:
        """The components at the key that are the same at the key it is compared with."""
        if self.against is None:
            return []
        sizes = self.vectors[1].abs().amax(-1)
        named = zip(self.labels["key_component"], sizes.tolist(), strict=True)
        least = 1e-6 * sizes.max().item()
        return [str(component) for component, size in named if size <= least]


@sourced
@torch.no_grad()
def why(
    trace: Trace,
    layer: int,
    head: int,
    query: int | str,
    key: int | str,
    *,
    against: int | str | None = None,
    neurons: int = 0,
    features: Features | None = None,
    strongest: int = 16,
    sentence: int = 0,
) -> WhyScore:
    """What makes a head look from a query to a key: one score as a sum over pairs of components.

    `query` and `key` are positions (negative ones count from the sentence's end), or tokens that
    occur once in the text. `against` is another key, whose score is subtracted, or "row" for the
    mean score of all keys that the query may see; a token "row" is given by its position. Then
    parts that are equal for all keys cancel, as in the softmax. `neurons` shows the neurons with
    the largest parts of each MLP, and the rest of that MLP as one part. `features`
    (`minibert.features`) replace the components that they explain: everything written up to a point
    of the stream, or the output of an MLP or of attention. The strongest are shown; the rest, their
    biases and the error are separate parts.

    Components are those of `decompose`, the embeddings apart ("word embedding", "position
    embedding", "segment embedding"), and the biases between the stream and the query or key. It
    holds for edited traces where the edit is of what a component writes. It costs less than a
    forward pass; against="row", which reads the parts of every key, more than one.

    Raises TraceError for a place that does not exist, and where an edit wrote something that no
    component did.

    >>> import minibert
    >>> trace = minibert.load("tiny-gpt2").trace(" river window summer horse river window")
    >>> why(trace, 1, 2, query=-1, key=4).total.__class__
    <class 'float'>
    """
    text = one_text(trace, sentence)
    layer, head = text[layer].layer, check_index("head", head, text.config.n_heads)
    place = place_of(text, query, "query"), place_of(text, key, "key")
    neurons = whole_number("neurons", neurons, TraceError, least=0)
    split = split_of(text, features, strongest)
    return _of_places(text, (layer, head), place, against, neurons, split)


def _of_places(
    text: Trace,
    layer_and_head: tuple[int, int],
    query_and_key: tuple[int, int],
    against: int | str | None,
    neurons: int,
    split: Split | None,
) -> WhyScore:
    """`why` of positions of one sentence."""
    (layer, head), (row, column) = layer_and_head, query_and_key
    one = slice(row, row + 1)
    scores = wide(text[layer, head].window("scores", queries=one))[0, 0]
    probs = wide(text[layer, head].window("probs", queries=one))[0, 0]
    seen, attention = seen_keys(text, layer, [row])[0], layer_of(text[layer]).attention
    other, keys, shares = _compared(text, against, column, probs, seen)
    eye = torch.eye(attention.d_head, dtype=probs.dtype, device=probs.device)[None]
    readings = (
        into_stream(text, layer, "query", head, [row], eye * attention.scale),
        into_stream(text, layer, "key", head // attention.group, keys, shares * eye),
    )
    readings = (replace(readings[0], split=split), replace(readings[1], split=split))
    names, vectors = _both_sides(readings, neurons)
    table = vectors[0] @ vectors[1].mT
    score = (scores[keys] * shares[:, 0, 0]).sum().item()
    beside = scores[keys].abs().max().item()
    if not math.isfinite(beside):
        raise TraceError("An edit hid this key or wrote its score, so the score has no parts.")
    # What rounding of query and key is a share of, where their product is small.
    lengths = [torch.linalg.vector_norm(side.sum(0)).item() for side in vectors]
    beside = max(beside, lengths[0] * lengths[1])
    check_total(table, score, "The score", text.embed.dtype, beside)
    return WhyScore(
        table,
        "query_component key_component",
        title=_title(text, layer, head, row, column, other),
        unit="score",
        labels={"query_component": names[0], "key_component": names[1]},
        signed=True,
        score=score,
        weight=probs[column].item(),
        seen=bool(seen[column]),
        layer=layer,
        head=head,
        query=row,
        key=column,
        against=other,
        readings=readings,
        vectors=(vectors[0], vectors[1]),
    )


def _both_sides(
    readings: tuple[Reading, Reading], neurons: int
) -> tuple[list[tuple[Component, ...]], list[Float[Tensor, "component d_head"]]]:
    """The components of the query and of the key, and the part of each."""
    found = [reading.parts() for reading in readings]
    names = [components for components, _ in found]
    vectors = [parts.sum(1) for _, parts in found]
    for own in (0, 1) if neurons else ():
        names[own], vectors[own] = _by_neurons(
            readings[own], names[own], vectors[own], vectors[1 - own].sum(0), neurons
        )
    for own, reading in enumerate(readings):
        sizes = vectors[own] @ vectors[1 - own].sum(0)
        names[own], vectors[own] = with_features(reading, names[own], vectors[own], sizes)
    return names, vectors


def _title(
    text: Trace, layer: int, head: int, row: int, column: int, other: int | str | None
) -> str:
    """What a score is of, with the positions of its tokens."""
    strings = text.tokens.strings[0]
    named = f"{strings[row]!r} {row} to {strings[column]!r} {column}"
    less = "" if other is None else ", less the mean of its row"
    if isinstance(other, int):
        less = f", less that to {strings[other]!r} {other}"
    return f"the score of head {layer}-{head} from {named}{less}"


def _compared(
    text: Trace, against: int | str | None, column: int, probs: Tensor, seen: Tensor
) -> tuple[int | str | None, list[int], Float[Tensor, "key 1 1"]]:
    """What the key is compared with, the keys that are read, and the factor of each."""
    if against is None:
        return None, [column], probs.new_ones(1, 1, 1)
    if against == "row":
        keys = seen.nonzero()[:, 0].tolist()
        if column not in keys:
            raise TraceError(f'key={column}: against="row" compares keys that the query may see.')
        shares = probs.new_full((len(keys), 1, 1), -1 / len(keys))
        shares[keys.index(column)] += 1
        return "row", keys, shares
    try:
        other = place_of(text, against, "against")
    except TraceError as error:
        raise TraceError(f'{error} "row" compares with all keys that the query may see.') from error
    if other == column:
        raise TraceError(f"against={against!r:.80} is the key itself; expected another one.")
    return other, [column, other], probs.new_tensor([1.0, -1.0])[:, None, None]


def _by_neurons(
    reading: Reading,
    components: tuple[Component, ...],
    vectors: Tensor,
    other: Float[Tensor, " d_head"],
    count: int,
) -> tuple[tuple[Component, ...], Float[Tensor, "component d_head"]]:
    """The components with the strongest neurons of each MLP in its place, and a rest of it."""
    names, found = list[Component](), list[Tensor]()
    for component, vector in zip(components, vectors, strict=True):
        if component.kind != "mlp":
            names.append(component)
            found.append(vector[None])
            continue
        values, _ = neurons_of(reading, component)
        chosen = (values @ other).abs().topk(min(count, len(values))).indices
        names += [Component("neuron", component.layer, n) for n in chosen.tolist()]
        names.append(Component("mlp rest", component.layer))
        found += [values[chosen], (vector - values[chosen].sum(0))[None]]
    return tuple(names), torch.cat(found)
