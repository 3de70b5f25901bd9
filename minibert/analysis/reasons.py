"""Why a number is what it is: a sum of what was written to the stream, down to the words.

With what every norm divides by frozen at its real value, a number that is linear in the stream (a
logit, or one side of a score) is a sum of what embeddings, heads and MLPs wrote there (`stream.py`
has the parts). What a head wrote is in turn the sum, over the tokens that it read, of
weight · value · W_O, and a value is a sum of what was written to the stream at that token. So every
part can be followed down to the words, and each level adds up to the one above.

why_logit   one logit, or the difference of two
why_stream  any direction of a residual stream

`score_reasons.py` has `why`, a score as a sum over pairs.

A part is what its writer added, nothing else: that a head also changed what later heads and MLPs
read shows in their parts.

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits" (composition);
Kamath et al. 2025, "Tracing attention computation through feature interactions" (QK attributions
and head loadings, there for models with transcoders).
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from minibert.analysis.arguments import check_trace, token_ids, token_name, vocabulary_head
from minibert.analysis.reading import ROWS, Reading, Split, into_logit, into_stream
from minibert.analysis.rows import at_positions, wide
from minibert.analysis.stream import (
    Component,
    FrozenNorm,
    Parts,
    Reader,
    check_total,
    layer_of,
    live_written,
    mlp_of,
    sum_rounding,
)
from minibert.answers.explain import find_token
from minibert.attached.read import AttachedTrace
from minibert.errors import TraceError, check_index, is_whole, whole_number
from minibert.features import Features
from minibert.quantities import Float
from minibert.result import Place, Result, sourced
from minibert.trace.read import Trace


def one_text(trace: Trace, index: int) -> Trace:
    """The trace of one sentence; TraceError for what is not a trace of a model that was loaded."""
    if not isinstance(trace, Trace):
        check_trace(trace)
    return trace.text(index)


def place_of(text: Trace, given: object, what: str) -> int:
    """A position of the sentence, given as a number or a token."""
    if isinstance(given, str):
        return find_token(text.tokens, given, what=what)
    if not is_whole(given):
        raise TraceError(f"{what}={given!r:.80}: expected a position, or a token of the text.")
    return find_token(text.tokens, operator.index(given), what=what)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Why(Parts):
    """What each component wrote into one number, (component); their sum is the number.

    Of an attached model nothing is followed: `follow` and deeper levels of `tree` need weights.

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

    def top(self, count: int = 5) -> list[tuple[str, float]]:
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
            raise TraceError(f"{name}(): features replace layers; call it without features=.")

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

    def _check_followed(self, writer: Component) -> None:
        """Raise TraceError where the weights that a component was computed with are not known."""
        if not isinstance(self.reading.trace, Trace):
            raise TraceError(f"{writer} of an attached model is not followed: load the model.")

    @torch.no_grad()
    def _tokens(self, writer: Component) -> "WhyTokens":
        self._check_followed(writer)
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
        self._check_followed(writer)
        values, bias = neurons_of(self.reading, writer)
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
    """What a head read at each token, and which component wrote it there, (key, component).

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
        place = place_of(self.reading.trace, key, "key")
        found = self.values[place]
        title = f"{self.title}, read at {tokens.strings[0][place]!r} {place}"
        return why_number(self.reading.at(place), found, self.components, title, self.unit)

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


def with_features(
    reading: Reading, components: tuple[Component, ...], parts: Tensor, sizes: Tensor
) -> tuple[tuple[Component, ...], Tensor]:
    """The parts with the strongest features. Raises TraceError where none stands among them."""
    split = reading.split
    if split is None:
        return components, parts
    if not any(each.kind == "feature error" for each in components):
        point, layer = split.found.features.places[0]
        raise TraceError(f"{point} {layer}, the features' place, comes after what is asked about.")
    return split.with_rest(components, parts, sizes)


def split_of(text: Trace, features: Features | None, strongest: int) -> Split | None:
    """The features of the text, and how many of them are shown."""
    if features is None:
        return None
    if not isinstance(features, Features):
        raise TraceError(f"features={features!r:.80}: expected those of minibert.features.load.")
    return Split(features.read(text), whole_number("strongest", strongest, TraceError, least=0))


def neurons_of(
    reading: Reading, writer: Component
) -> tuple[Float[Tensor, "neuron read"], Float[Tensor, "1 read"]]:
    """What each neuron of an MLP wrote into each number, summed over positions; and its bias."""
    at = at_positions(reading.trace, [reading.positions])[writer.layer or 0]
    mlp, reader = mlp_of(at), reading.readers()["mlp", writer.layer]
    post = wide(at.mlp_post)[0] * reader.scale  # position neuron
    directions = reader.directions.expand(len(post), -1, -1)
    by_neuron = torch.einsum("pn,nm,prm->nr", post, wide(mlp.W_out), directions)
    bias = directions.new_zeros(1, directions.shape[1])
    return by_neuron, bias if mlp.b_out is None else reader.constant(wide(mlp.b_out)).sum(0)[None]


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
    place, at = place_of(text, position, "position"), text[layer]
    along = direction.detach().to(wide(text.embed))[None, None]
    number = (wide(at.quantity(point))[0, place] * along[0, 0]).sum().item()
    reader = Reader(along, along.new_ones(1, 1))
    split = split_of(text, features, strongest)
    reading = Reading(text, at.layer, point, (place,), reader, [], split)
    return _checked(reading, number, f"a direction of {point} {at.layer} at {place}", "")


@sourced
@torch.no_grad()
def why_logit(
    trace: Trace | AttachedTrace,
    token: int | str,
    *,
    against: int | str | None = None,
    position: int | str = -1,
    features: Features | None = None,
    strongest: int = 16,
    sentence: int = 0,
) -> Why:
    """What each component wrote into the logit of a token, or logit(token) − logit(against).

    This is direct logit attribution, and each head can be followed to the tokens that it read.
    Where logits go through a soft cap, cap · tanh(logit / cap) (Gemma 2), the number before the cap
    is split: it is the sum of what was written, and the cap keeps the order of tokens. `features`
    and `strongest` are as in `why`. Of an attached model, whose head has to be one projection, the
    parts are those of `decompose`.

    Raises TraceError for a model without a vocabulary head and for a place that does not exist,
    TokenizationError for a token that does not.
    """
    if isinstance(trace, AttachedTrace):
        if features is not None:
            raise TraceError("Features split what a loaded model wrote; leave features= out.")
        return _of_attached(trace, token, against, position, sentence)
    text = one_text(trace, sentence)
    # Asked first: a trace of a file without its model says that it needs the weights.
    _ = text.unchanged_model().body
    head, place = vocabulary_head(text.unchanged_model()), place_of(text, position, "position")
    ids = token_ids(text.unchanged_model(), token, 1)
    others = None if against is None else token_ids(text.unchanged_model(), against, 1)
    split = split_of(text, features, strongest)
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


def _of_attached(
    trace: AttachedTrace,
    token: int | str,
    against: int | str | None,
    position: int | str,
    sentence: int,
) -> Why:
    stack, found = trace.unembedding()
    weight, bias = (getattr(found.head, name, None) for name in ("weight", "bias"))
    if not isinstance(weight, Tensor) or weight.shape[0] != trace.logits.shape[-1]:
        raise TraceError(
            f"The head of {trace.model_name} is a {type(found.head).__name__}, and not one "
            "projection of what the last norm gives; read logit_lens, or load the model."
        )
    sentence = check_index("sentence", sentence, len(stack.places.at))
    place = find_token(stack.tokens, position, what="position", sentence=sentence)
    at = slice(sentence, sentence + 1), stack.places.index(sentence, [place])[1]
    ids = [stack.token_id(one, len(weight)) for one in (token, against) if one is not None]
    written = live_written(stack, len(stack) - 1, "resid_post", heads=True).vectors()
    components = [component for component, _ in written]
    vectors = torch.stack([part[at] for _, part in written])  # component 1 1 d_model
    row = stack[-1].resid_post[at]
    hidden = row if found.norm is None else found.norm(row)
    direction = found.scale * found.factor * _of_two(wide(weight), ids)
    constants = list[tuple[Component, Tensor]]()
    if found.norm is not None:
        norm = FrozenNorm.of_live((found.norm, row, hidden))
        vectors = norm.carry(vectors)
        if norm.bias is not None:
            constants.append((Component("final norm bias"), norm.bias @ direction))
    if isinstance(bias, Tensor):
        constants.append((Component("unembedding bias"), found.factor * _of_two(wide(bias), ids)))
    values = torch.stack([*(vectors @ direction)[:, 0, 0], *(value for _, value in constants)])
    uncapped = replace(found, cap=None).logits(row)[0, 0]
    number = _of_two(wide(uncapped), ids).item()
    names = " − ".join(f"“{stack.token_name(each)}”" for each in ids)
    title = f"the logit of {names} at {place}"
    check_total(values, number, title, torch.float32, abs(number))
    components += [component for component, _ in constants]
    reader = Reader(direction[None, None], direction.new_ones(1, 1))
    # Of an attached model its stack stands for the trace: nothing is read from it.
    last = Reading(cast(Trace, stack), len(stack) - 1, "resid_post", (place,), reader, [])
    return why_number(last, values, components, title, "logits (nats)", number)


def _of_two(rows: Tensor, ids: Sequence[int]) -> Tensor:
    """The row of an id, or the difference of two."""
    return rows[ids[0]] if len(ids) == 1 else rows[ids[0]] - rows[ids[1]]


def _checked(reading: Reading, number: float, title: str, unit: str) -> Why:
    """The parts of a number of the trace. Raises TraceError where they are not its parts."""
    components, parts = reading.parts()
    what = title[0].upper() + title[1:]
    check_total(parts, number, what, reading.trace.embed.dtype, abs(number))
    components, parts = with_features(reading, components, parts, parts[:, 0, 0])
    return why_number(reading, parts[:, 0, 0], components, title, unit, number)


def why_number(
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
