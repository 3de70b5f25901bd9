"""Why a head looks there: a score as an exact sum over pairs of what was written to the stream.

The input of a query is a sum of what embeddings, heads and MLPs wrote (`stream.py` has the parts),
and so is the input of a key. With what every norm divides by frozen at its real value, query and
key are sums of these parts, and their dot product is a sum over pairs of parts:

    score(query, key) = scale · Σ_a Σ_b q_a · k_b

The same holds for every number that is linear in the stream: a logit, or one side of a score. What
a head wrote is in turn the sum, over the tokens that it read, of weight · value · W_O, and a value
is a sum of what was written to the stream at that token. So every part can be followed down to
the words, and each level adds up to the one above.

why         one score, or a score less that of another key, or less the mean of its row
why_logit   one logit, or the difference of two
why_stream  any direction of a residual stream

`head_reasons.py` has the mean over whole texts.

A part is what its writer added, nothing else: that a head also changed what later heads and MLPs
read shows in their parts. `WhyScore.check` compares a part with an edit that takes it out.

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits" (composition);
Kamath et al. 2025, "Tracing attention computation through feature interactions" (QK attributions
and head loadings, there for models with transcoders).
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from minibert.analysis.arguments import (
    check_trace,
    check_unedited,
    token_ids,
    token_name,
    vocabulary_head,
)
from minibert.analysis.reading import (
    ROWS,
    Reading,
    Split,
    into_logit,
    into_stream,
    same_for_every_key,
    seen_keys,
)
from minibert.analysis.rows import at_positions, wide
from minibert.analysis.stream import (
    Component,
    FrozenNorm,
    Parts,
    Reader,
    Written,
    check_total,
    embedding_of,
    layer_of,
    sum_rounding,
)
from minibert.answers.explain import find_token
from minibert.errors import TraceError, check_index, is_whole, whole_number
from minibert.features import Features
from minibert.quantities import Float
from minibert.result import Place, Result, sourced
from minibert.trace.read import Trace

_LISTED = 5


def one_text(trace: Trace, index: int) -> Trace:
    """The trace of one sentence; TraceError for what is not a trace of a model that was loaded."""
    if not isinstance(trace, Trace):
        check_trace(trace)
    return trace.text(index)


def _place(text: Trace, given: object, what: str) -> int:
    """A position of the sentence, given as a number or a token."""
    if isinstance(given, str):
        return find_token(text.tokens, given, what=what)
    if not is_whole(given):
        raise TraceError(f"{what}={given!r:.80}: expected a position, or a token of the text.")
    return find_token(text.tokens, operator.index(given), what=what)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Why(Parts):
    """What each component wrote into one number, (component); their sum is the number.

    number     the number, as the trace has it
    follow     one component taken apart: a head by the tokens that it read, an MLP by its neurons
    tree       the components, what they read, and so on, down to the words

    `found["head 0-3"]` is the part of one component.
    """

    number: float
    reading: Reading = field(repr=False)

    @property
    def total(self) -> float:
        """The sum of the parts: the number, up to rounding."""
        return self.values.sum().item()

    def top(self, count: int = _LISTED) -> list[tuple[str, float]]:
        """The largest parts by size, sign kept. Raises TraceError for a count below 1."""
        return [(str(label), float(value)) for label, value in self.largest(count)]

    def by_head(self) -> Float[Tensor, "layer head"]:
        """The part of every head of the layers below the number."""
        self._check_layers("by_head")
        heads = [number for number, each in enumerate(self.components) if each.kind == "head"]
        count = 1 + max((self.components[number].head or 0 for number in heads), default=0)
        return self.values[heads].reshape(len(heads) // count, count)

    def by_layer(self, kind: str | None = None) -> Float[Tensor, " layer"]:
        """The sum over what each layer wrote: its heads, biases and MLP, or those of one kind.

        Raises TraceError for a kind that no layer has.
        """
        self._check_layers("by_layer")
        found = [each for each in self.components if each.layer is not None]
        if kind is not None and kind not in (kinds := sorted({each.kind for each in found})):
            raise TraceError(f"No layer has a {kind!r}; there are {', '.join(kinds)}.")
        sums = self.values.new_zeros(1 + max((each.layer or 0 for each in found), default=-1))
        for each in found:
            if kind in (None, each.kind):
                sums[each.layer] += self[each]
        return sums

    def _check_layers(self, name: str) -> None:
        if self.reading.split is not None:
            raise TraceError(f"{name}(): features stand in the place of layers; ask without them.")

    @torch.no_grad()
    def follow(self, component: str) -> "WhyTokens | Result[Tensor]":
        """The part of one component, taken apart.

        A head gives `WhyTokens`: which token it read, and who had written there. An MLP gives a
        Result of its neurons, named "neuron 1-345" for neuron 345 of layer 1, and its bias. Both
        add up to the part. Raises TraceError for what wrote nothing it had read: words, positions
        and biases are the ends.
        """
        writer = self.components[self.place("component", component)]
        if writer.kind == "head":
            return self._tokens(writer)
        if writer.kind == "mlp":
            return self._neurons(writer)
        others = [each for each in self.components if each.kind in ("head", "mlp")]
        there = f"; of heads and MLPs there is {others[0]}" if others else ""
        raise TraceError(f"{writer} is an end, which was not computed from tokens{there}.")

    def tree(self, depth: int = 3, share: float | int = 0.1) -> "Branch":
        """The parts, followed through heads down to the words, as text when printed.

        Parts smaller than `share` of the largest at the top are summed up as "the rest", so that
        every level adds up to the one above. `depth` counts levels of heads. Raises TraceError for
        a depth below 1 and a share that is not between 0 and 1.
        """
        whole_number("depth", depth, TraceError, least=1)
        if not isinstance(share, float | int) or not 0 <= share <= 1:
            raise TraceError(f"share={share!r:.80}: expected a number from 0 to 1.")
        least = share * self.values.abs().max().item()
        return Branch(self.title, self.total, self._branches(depth, least))

    def _branches(self, depth: int, least: float) -> "tuple[Branch, ...]":
        kept = []
        for label, value in self.top(len(self.components)):
            if abs(value) < least:
                break
            writer = self.components[self.place("component", label)]
            kept.append(Branch(label, value, self._below(writer, depth, least)))
        return _with_rest(kept, self.total)

    def _below(self, writer: Component, depth: int, least: float) -> "tuple[Branch, ...]":
        """What a head read, where it can be followed: an edit may have written what it gives."""
        if not depth or writer.kind != "head":
            return ()
        try:
            return self._tokens(writer)._branches(depth - 1, least)
        except TraceError:
            return ()

    @torch.no_grad()
    def _tokens(self, writer: Component) -> "WhyTokens":
        reading, trace = self.reading, self.reading.trace
        layer, head = writer.layer or 0, writer.head or 0
        attention = layer_of(trace[layer]).attention
        one = slice(head, head + 1)
        reader = reading.readers()["attention", layer].behind(wide(attention.W_O[head]).mT)
        wanted = reader.directions[:, 0] * reader.scale  # position d_head
        length, probs = trace.allowed.position, torch.empty(0)
        read = wanted.new_zeros(length, 1, attention.d_head)
        for first in range(0, len(reading.positions), ROWS):
            some = slice(first, first + ROWS)
            rows = list(reading.positions[some])
            probs = wide(trace.at(layer, one, rows).probs)[0, 0]  # position key
            read[:, 0] += probs.mT @ wanted[some]
        keys = range(length)
        values = into_stream(trace, layer, "value", head // attention.group, keys, read)
        components, parts = (values := replace(values, split=reading.split)).parts()
        self._check_sum(parts, writer)
        if reading.split is not None:
            components, parts = reading.split.with_rest(components, parts, parts.abs().sum((1, 2)))
        title = f"{writer} in {self.title}"
        return WhyTokens(
            parts[..., 0].mT,
            "key component",
            title=title,
            unit=self.unit,
            labels={"component": components},
            tokens=trace.tokens.strings,
            signed=True,
            weights=probs[0] if len(reading.positions) == 1 else None,
            reading=values,
        )

    def _check_sum(self, parts: Tensor, writer: Component) -> None:
        """Raise TraceError where what a component wrote does not follow from what it read."""
        wrote, read = self[writer].item(), parts.sum().item()
        size = max(self.values.abs().max().item(), parts.abs().max().item())
        if abs(read - wrote) > sum_rounding(self.reading.trace.embed.dtype) * size:
            raise TraceError(
                f"{writer} wrote {wrote:+.4g}, and what it read gives {read:+.4g}: an edit "
                "wrote what it gives. Follow it in the unedited trace."
            )

    def _neurons(self, writer: Component) -> Result[Tensor]:
        values, bias = _neurons(self.reading, writer)
        self._check_sum(torch.cat([values, bias]), writer)
        labels = [Component("neuron", writer.layer, number) for number in range(len(values))]
        return Result(
            torch.cat([values, bias]).sum(-1),
            "component",
            title=f"{writer} in {self.title}",
            unit=self.unit,
            labels={"component": [*labels, Component("mlp bias", writer.layer)]},
            signed=True,
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WhyTokens(Parts):
    """What a head read at each token, and who had written it there, (key, component).

    weights   how much the head looked at each token; None where it is read at several positions
    """

    weights: Float[Tensor, " key"] | None
    reading: Reading = field(repr=False)

    @property
    def by_token(self) -> Float[Tensor, " key"]:
        """The part of each token."""
        return self.values.sum(-1)

    def at_token(self, key: int | str) -> Why:
        """What was written at one token; its parts can be followed again.

        Raises TraceError for a token that is not there.
        """
        tokens = self.reading.trace.tokens
        place = _place(self.reading.trace, key, "key")
        found = self.values[place]
        title = f"{self.title}, read at {tokens.strings[0][place]!r} {place}"
        return _why(self.reading.at(place), found, self.components, title, self.unit)

    def _branches(self, depth: int, least: float) -> "tuple[Branch, ...]":
        by_token, strings = self.by_token, self.reading.trace.tokens.strings[0]
        kept = []
        for place in by_token.abs().argsort(descending=True).tolist():
            value = by_token[place].item()
            if abs(value) < least:
                break
            weight = "" if self.weights is None else f" (weight {self.weights[place]:.2f})"
            label = f"read at {strings[place]!r} {place}{weight}"
            below = self.at_token(place)._branches(depth, least)
            kept.append(Branch(label, value, below))
        return _with_rest(kept, by_token.sum().item())


@dataclass(frozen=True)
class Branch:
    """One part of a number and the parts that it is the sum of."""

    label: str
    value: float
    branches: "tuple[Branch, ...]" = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def _lines(self, level: int) -> list[str]:
        lines = [f"{'  ' * level}{self.value:+.2f}  {self.label}"]
        return lines + [line for branch in self.branches for line in branch._lines(level + 1)]


def _with_rest(kept: list[Branch], total: float) -> tuple[Branch, ...]:
    """The branches, and what is missing to their sum as one more."""
    rest = total - sum(branch.value for branch in kept)
    return (*kept, Branch("the rest", rest)) if kept else ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WhyScore(Result[Tensor]):
    """The parts of one score, (query_component, key_component); their sum is the score.

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

    def top(self, count: int = _LISTED) -> list[tuple[str, str, float]]:
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
        """The pairs with 0 in the place of those that are the same for every key."""
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
        return _why(reading, values, self.labels[f"{side}_component"], title, self.unit)

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

    `query` and `key` are positions, negative ones from the sentence's end, or tokens that stand in
    the text once. `against` is another key, whose score is taken away, or "row" for the mean of the
    scores of all keys that the query may see (a token "row" is given by its position): what is
    equal for all keys is then gone, as it is in the softmax. `neurons` shows so many neurons of
    each MLP, those with the largest parts, and what is left of that MLP as one. `features` stand in
    the place of what they are parts of (`minibert.features`): all that was written up to a point of
    the stream, or what an MLP or attention wrote. So many of the strongest are shown, and what is
    left, their biases and the error are parts of their own.

    Components are those of `decompose`, the embeddings apart ("word embedding", "position
    embedding", "segment embedding"), and the biases between the stream and the query or key.
    The sum is the score within 1e-5 of the largest part in float32 (norms frozen, rotation and
    norms of queries and keys included), before a soft cap, or within 1e-6 of scale · ‖query‖ ·
    ‖key‖ where that is more: the only part of a score in layer 0 of a rotary model may be small
    beside its vectors, whose rounding it has. It holds for edited traces where the edit is of what
    a component writes. In half precision it holds within a few percent. It costs less than a
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
    row, column = _place(text, query, "query"), _place(text, key, "key")
    neurons = whole_number("neurons", neurons, TraceError, least=0)
    split = _split(text, features, strongest)
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
        raise TraceError("An edit hid this key or wrote its score, which has no parts then.")
    # What rounding of query and key is a share of, where their product is small.
    lengths = [torch.linalg.vector_norm(side.sum(0)).item() for side in vectors]
    beside = max(beside, lengths[0] * lengths[1])
    check_total(table, score, "The score", trace.embed.dtype, beside)
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
        names[own], vectors[own] = _with_features(reading, names[own], vectors[own], sizes)
    return names, vectors


def _with_features(
    reading: Reading, components: tuple[Component, ...], parts: Tensor, sizes: Tensor
) -> tuple[tuple[Component, ...], Tensor]:
    """The parts with the strongest features. Raises TraceError where none stands among them."""
    split = reading.split
    if split is None:
        return components, parts
    if not any(each.kind == "feature error" for each in components):
        point, layer = split.found.features.places[0]
        raise TraceError(f"{point} {layer}, the features' place, is behind what is asked about.")
    return split.with_rest(components, parts, sizes)


def _split(text: Trace, features: Features | None, strongest: int) -> Split | None:
    """The features of the text, and how many of them are shown."""
    if features is None:
        return None
    if not isinstance(features, Features):
        raise TraceError(f"features={features!r:.80}: expected those of minibert.features.load.")
    return Split(features.read(text), whole_number("strongest", strongest, TraceError, least=0))


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
        other = _place(text, against, "against")
    except TraceError as error:
        raise TraceError(f'{error} "row" compares with all keys that the query may see.') from error
    if other == column:
        raise TraceError(f"against={against!r:.80} is the key itself; expected another one.")
    return other, [column, other], probs.new_tensor([1.0, -1.0])[:, None, None]


def _neurons(
    reading: Reading, writer: Component
) -> tuple[Float[Tensor, "neuron read"], Float[Tensor, "1 read"]]:
    """What each neuron of an MLP wrote into each number, summed over positions; and its bias."""
    at = at_positions(reading.trace, [reading.positions])[writer.layer or 0]
    mlp, reader = layer_of(at).mlp, reading.readers()["mlp", writer.layer]
    post = wide(at.mlp_post)[0] * reader.scale  # position neuron
    directions = reader.directions.expand(len(post), -1, -1)
    by_neuron = torch.einsum("pn,nm,prm->nr", post, wide(mlp.W_out), directions)
    bias = directions.new_zeros(1, directions.shape[1])
    return by_neuron, bias if mlp.b_out is None else reader.constant(wide(mlp.b_out)).sum(0)[None]


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
        values, _ = _neurons(reading, component)
        chosen = (values @ other).abs().topk(min(count, len(values))).indices
        names += [Component("neuron", component.layer, n) for n in chosen.tolist()]
        names.append(Component("mlp rest", component.layer))
        found += [values[chosen], (vector - values[chosen].sum(0))[None]]
    return tuple(names), torch.cat(found)


@sourced
@torch.no_grad()
def why_stream(
    trace: Trace,
    direction: Float[Tensor, " d_model"],
    layer: int = -1,
    *,
    point: str = "resid_post",
    position: int | str = -1,
    features: Features | None = None,
    strongest: int = 16,
    sentence: int = 0,
) -> Why:
    """What each component wrote into direction · stream at one position.

    `point` is resid_pre, resid_mid or resid_post of the layer; `features` are as in `why`.
    Raises TraceError for a place that does not exist and for a direction of another width.
    """
    text = one_text(trace, sentence)
    width = text.config.d_model
    whole = isinstance(direction, Tensor) and direction.shape == (width,)
    if not whole or not direction.is_floating_point() or direction.is_meta:
        raise TraceError(f"direction: expected a tensor of {width} floats, one a dimension.")
    if point not in ("resid_pre", "resid_mid", "resid_post"):
        raise TraceError(f"{point!r:.80}: expected resid_pre, resid_mid or resid_post.")
    place, at = _place(text, position, "position"), text[layer]
    along = direction.detach().to(wide(text.embed))[None, None]
    number = (wide(at.quantity(point))[0, place] * along[0, 0]).sum().item()
    reader = Reader(along, along.new_ones(1, 1))
    split = _split(text, features, strongest)
    reading = Reading(text, at.layer, point, (place,), reader, [], split)
    return _checked(reading, number, f"a direction of {point} {at.layer} at {place}", "")


@sourced
@torch.no_grad()
def why_logit(
    trace: Trace,
    token: int | str,
    *,
    against: int | str | None = None,
    position: int | str = -1,
    features: Features | None = None,
    strongest: int = 16,
    sentence: int = 0,
) -> Why:
    """What each component wrote into the logit of a token, or logit(token) − logit(against).

    Direct logit attribution, with each head open to be followed to the tokens that it read. Where
    logits go through a soft cap, cap · tanh(logit / cap) (Gemma 2), the number before it is what is
    taken apart: it is the sum of what was written, and the cap keeps the order of tokens.
    `features` and `strongest` are as in `why`.

    Raises TraceError for a model without a vocabulary head and for a place that does not exist,
    TokenizationError for a token that does not.
    """
    text = one_text(trace, sentence)
    # Asked first: a trace of a file without its model says that it needs the weights.
    _ = text.unchanged_model().body
    head, place = vocabulary_head(text.unchanged_model()), _place(text, position, "position")
    ids = token_ids(text.unchanged_model(), token, 1)
    others = None if against is None else token_ids(text.unchanged_model(), against, 1)
    split = _split(text, features, strongest)
    reading = replace(into_logit(text, head, place, ids, others), split=split)
    hidden = text.hidden[:, [place]]
    capped = head.soft_cap is not None
    number = wide(head.uncapped(hidden) if capped else text.logits[:, [place]])[0, 0]
    value = number[ids[0]] - (0 if others is None else number[others[0]])
    named = [
        f"“{token_name(text.unchanged_model(), int(each[0]))}”"
        for each in (ids, others)
        if each is not None
    ]
    return _checked(
        reading, value.item(), f"the logit of {' − '.join(named)} at {place}", "logits (nats)"
    )


def _checked(reading: Reading, number: float, title: str, unit: str) -> Why:
    """The parts of a number of the trace. Raises TraceError where they are not its parts."""
    components, parts = reading.parts()
    what = title[0].upper() + title[1:]
    check_total(parts, number, what, reading.trace.embed.dtype, abs(number))
    components, parts = _with_features(reading, components, parts, parts[:, 0, 0])
    return _why(reading, parts[:, 0, 0], components, title, unit, number)


def _why(
    reading: Reading,
    values: Float[Tensor, " component"],
    components: Sequence[Place],
    title: str,
    unit: str,
    number: float | None = None,
) -> Why:
    """The parts of a number, which is their sum unless it is known."""
    return Why(
        values,
        "component",
        title,
        unit,
        {"component": components},
        signed=True,
        number=values.sum().item() if number is None else number,
        reading=reading,
    )
