"""Numbers that are linear in what was written to the stream: queries, keys, values and logits.

A `Reading` is what reads such numbers from a point of the stream at some positions of a sentence,
and what biases on the way add. Frozen at its real value is whatever would not be linear: what every
norm divides by, the rotation of the position, and in the head of masked language models the gate of
its activation, activation(x) / x: the head is decoder(LN(x · gate(x))).

Sources: Elhage et al. 2021, "A mathematical framework for transformer circuits" (direct paths);
TransformerLens' `apply_ln_to_stack` and `logit_attrs` (the frozen norm), which the parts of a
logit equal for GPT-2; Achtibat et al. 2024 (AttnLRP) treat activations by the same rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minibert.analysis.rows import at_positions, wide
from minibert.analysis.stream import (
    Component,
    FrozenNorm,
    Reader,
    Write,
    Written,
    embedding_of,
    layer_of,
    mlp_of,
)
from minibert.features import Activations
from minibert.layers.bodies import VocabularyHead
from minibert.layers.linear import activate, dtype_of, matrix_of, offset_of
from minibert.layers.turns import Turns
from minibert.quantities import Bool, Float, Int
from minibert.trace.read import Trace

# Positions whose parts of width d_model are held at once.
ROWS = 32

Constants = list[tuple[Component, Float[Tensor, "position read"]]]


@dataclass(frozen=True, eq=False)
class Reading:
    """Numbers that are linear in the stream of one sentence at some positions, norms frozen.

    At each position they are reader · stream + constants. The stream is `point` (resid_pre,
    resid_mid or resid_post) of `layer`; constants are what biases on the way from there add.
    With `split` features stand in place of what they are parts of.
    """

    trace: Trace
    layer: int
    point: str
    positions: tuple[int, ...]
    reader: Reader
    constants: Constants
    split: "Split | None" = None

    def at(self, row: int) -> "Reading":
        """The numbers at one of the positions alone."""
        one = slice(row, row + 1)
        constants = [(component, values[one]) for component, values in self.constants]
        positions = self.positions[one]
        return replace(self, positions=positions, reader=self._some(one), constants=constants)

    def parts(self) -> tuple[tuple[Component, ...], Float[Tensor, "component position read"]]:
        """What each component wrote into each number; the sum over components is the number."""
        embedding, found = embedding_of(self.trace), list[Tensor]()
        active = [] if self.split is None else self.split.active(self.positions)
        components = tuple[Component, ...]()
        alike = len(self.reader.directions) == 1
        size = len(self.positions) if alike else ROWS
        for first in range(0, len(self.positions), size):
            some = slice(first, first + size)
            written = self._written(some, embedding, active, folded=alike and size > ROWS)
            components, parts = written.numbers(self._some(some))
            if self.split is not None:
                components, parts = _merged(components, parts)
            found.append(parts)
        return with_constants(components, torch.cat(found, 1), self.constants)

    def readers(self) -> dict[tuple[str, int | None], Reader]:
        """What reads the same of what each attention and each MLP wrote, by name and layer."""
        whole = slice(None)
        return self._written(whole, [], [], folded=True, norms_only=True).readers(self.reader)

    def _some(self, rows: slice) -> Reader:
        directions = self.reader.directions
        some = directions if len(directions) == 1 else directions[rows]
        return Reader(some, self.reader.scale[rows])

    def _written(
        self,
        rows: slice,
        embedding: Sequence[tuple[Component, Float[Tensor, "1 position d_model"]]],
        active: Sequence[int],
        *,
        folded: bool,
        norms_only: bool = False,
    ) -> Written:
        places = list(self.positions[rows])
        start = [(component, part[:, places]) for component, part in embedding]
        cut = at_positions(self.trace, [places])
        found = Written(
            cut, self.layer, self.point, heads=True, embedding=start, folded=folded,
            norms_only=norms_only,
        )  # fmt: skip
        if self.split is not None:
            self.split.put(found, places, active)
        return found


@dataclass(frozen=True, eq=False)
class Split:
    """Features that take a point of the stream, or what a block wrote, apart.

    strongest   how many of them are shown; the others are one part, "feature rest"
    """

    found: Activations
    strongest: int

    def active(self, positions: Sequence[int]) -> list[int]:
        """The features that are active at any of these positions."""
        active: list[int] = (
            (self.found.flat[0, list(positions)] != 0).any(0).nonzero()[:, 0].tolist()
        )
        return active

    def put(self, written: Written, places: list[int], active: Sequence[int]) -> None:
        """Put these features, the biases and the error in place of what they are parts of."""
        for number, (point, layer) in enumerate(self.found.features.places):
            written.put(point, layer, self.writes(number, places, active))

    def writes(self, place: int, positions: list[int], active: Sequence[int]) -> list[Write]:
        """What each of these features, the biases and the error are at one of their places."""
        found, features = self.found, self.found.features
        at = features.places[place]
        some = [number for number in active if features.named(number)[0] <= at.layer]
        sizes = wide(found.flat)[0, positions][:, some] * wide(found.scale)[0, positions]
        numbers = torch.tensor(some, dtype=torch.int64, device=sizes.device)
        directions = wide(features.directions(at, numbers, sizes))
        names = tuple(Component("feature", *features.named(number)) for number in some)
        parts = {**found.others, "error": found.error}.items()
        others = {name: wide(found.by_place(part)[place]) for name, part in parts}
        return [
            Write(names, sizes.mT[:, None, :, None], directions[:, None]),
            *(
                Write((Component(f"feature {name}", at.layer),), part[None, :, positions])
                for name, part in others.items()
            ),
        ]

    def with_rest(
        self, components: tuple[Component, ...], parts: Tensor, sizes: Tensor
    ) -> tuple[tuple[Component, ...], Tensor]:
        """The parts, and all features but those of the largest sizes as one."""
        numbers = [n for n, each in enumerate(components) if each.kind == "feature"]
        if len(numbers) <= self.strongest:
            return components, parts
        order = sizes[numbers].abs().argsort(descending=True)
        left = sorted(numbers[n] for n in order[self.strongest :].tolist())
        kept = sorted({*range(len(components))} - {*left})
        layers = {components[number].layer for number in left}
        rest = Component("feature rest", layers.pop() if len(layers) == 1 else None)
        names = (*(components[n] for n in kept), rest)
        return names, torch.cat([parts[kept], parts[left].sum(0)[None]])


def _merged(
    components: tuple[Component, ...], parts: Tensor
) -> tuple[tuple[Component, ...], Float[Tensor, "component position read"]]:
    """The parts, with one of each component: a feature may write to several layers."""
    names = tuple(dict.fromkeys(components))
    if len(names) == len(components):
        return components, parts
    numbers = {name: number for number, name in enumerate(names)}
    rows = torch.tensor([numbers[each] for each in components], device=parts.device)
    return names, parts.new_zeros(len(names), *parts.shape[1:]).index_add(0, rows, parts)


def with_constants(
    components: tuple[Component, ...], parts: Tensor, constants: Constants
) -> tuple[tuple[Component, ...], Float[Tensor, "component position read"]]:
    """The parts, and what biases on the way add as further ones."""
    names = (*components, *(component for component, _ in constants))
    return names, torch.cat([parts, *(values[None] for _, values in constants)])


def into_stream(
    trace: Trace,
    layer: int,
    name: str,
    head: int,
    positions: Sequence[int],
    directions: Float[Tensor, "position read d_head"],
    *,
    rotated: bool = True,
) -> Reading:
    """The reading of resid_pre that gives directions · query (key, value) of a head.

    `head` is a key-value head for key and value. Directions are those of each position, or one for
    all. `rotated=False` reads query and key before their rotation.
    """
    at = trace[layer]
    attention, places = layer_of(at).attention, list(positions)
    constants: Constants = []
    if attention.rotary is not None and name != "value" and rotated:
        directions = _turned_back(trace, layer, places, directions)
    elif attention.turns and attention.rotary is None and name != "value":
        rows = trace.evaluation.positions[:, places]
        added = wide(attention.of_positions(name, rows))[0, head]  # position d_head
        constants.append((Component("position embedding"), (directions @ added[..., None])[..., 0]))
    matrix, bias = wide(attention.rows_of(name)), getattr(attention, f"b_{name[0].upper()}")
    norm = getattr(attention, f"{name}_norm", None)
    if norm is None or attention.norms_heads:
        matrix, bias = matrix[head], None if bias is None else wide(bias[head])
    else:
        # One norm of all heads together: the other heads' entries read nothing.
        whole = directions.new_zeros(*directions.shape[:2], len(matrix), attention.d_head)
        whole[:, :, head] = directions
        directions, matrix = whole.flatten(2), matrix.flatten(0, 1)
        bias = None if bias is None else wide(bias).flatten()
    reader = Reader(directions, directions.new_ones(len(places), 1))
    if norm is not None:
        x = wide(at.quantity(f"{name}_input"))[0, 0 if name == "query" else head, places]
        frozen = FrozenNorm.of(norm, x @ matrix.mT if bias is None else x @ matrix.mT + bias)
        reader = _through(frozen, Component(f"{name} norm bias"), reader, constants)
    if bias is not None:
        constants.append((Component(f"{name} bias"), reader.constant(bias)))
    reader = reader.behind(matrix)
    before = None
    if not layer_of(at).after:
        before = FrozenNorm.of_layer(at, "attention_norm", at.resid_pre)
    if before is not None:
        before = replace(before, deviation=before.deviation[0, places])
    reader = _through(before, Component("attention norm bias", at.layer), reader, constants)
    return Reading(trace, at.layer, "resid_pre", tuple(places), reader, constants[::-1])


def same_for_every_key(trace: Trace, layer: int) -> frozenset[str]:
    """The components that are the same part of every key of a layer: the softmax cancels them.

    Biases after the last norm that divides by something else at each position. A rotation makes
    them differ.
    """
    at = layer_of(trace[layer])
    if at.attention.rotary is not None:
        return frozenset()
    if getattr(at.attention, "key_norm", None) is not None:
        return frozenset({"key norm bias"})
    if not at.after:
        return frozenset({"key bias", f"attention norm bias {layer}"})
    if layer:
        return frozenset({"key bias", f"mlp norm bias {layer - 1}"})
    return frozenset({"key bias", "embedding norm bias", "embedding projection bias"})


def into_mlp(
    trace: Trace,
    layer: int,
    position: int,
    weights: Float[Tensor, " d_mlp"],
    constant: Tensor | float = 0.0,
) -> Reading:
    """The reading of the stream that gives weights · mlp_pre + constant at one position."""
    at, mlp = trace[layer], mlp_of(trace[layer])
    parallel, constants = layer_of(at).parallel, Constants()
    reader = Reader((weights @ wide(mlp.W_in).mT)[None, None], weights.new_ones(1, 1))
    bias = constant if mlp.b_in is None else constant + weights @ wide(mlp.b_in)
    constants.append(
        (Component("mlp bias", layer), torch.as_tensor(bias).to(weights).reshape(1, 1))
    )
    point, before = "resid_pre" if parallel else "resid_mid", None
    if not layer_of(at).after:
        before = FrozenNorm.of_layer(at, "mlp_norm", at.quantity(point))
    if before is not None:
        before = replace(before, deviation=before.deviation[0, [position]])
    reader = _through(before, Component("mlp norm bias", layer), reader, constants)
    return Reading(trace, layer, point, (position,), reader, constants[::-1])


def into_logit(
    trace: Trace,
    head: VocabularyHead,
    position: int,
    token: Int[Tensor, " one"],
    against: Int[Tensor, " one"] | None,
) -> Reading:
    """The reading of the last resid_post that gives a logit, or a difference of two, before a cap.

    Raises TraceError for a trace that stopped early.
    """
    here, weight, bias = at_positions(trace, [[position]]), head.W_U.mT, head.b_U
    hidden, constants = here.hidden[:, 0], Constants()
    direction = wide(weight[token]) - (0 if against is None else wide(weight[against]))
    if bias is not None:
        constant = wide(bias)[token] - (0 if against is None else wide(bias)[against])
        constants.append((Component("unembedding bias"), constant[:, None]))
    reader = Reader(direction[:, None], direction.new_ones(1, 1))
    if head.transform is not None and head.norm is not None:
        pre, width = head.transform(hidden), hidden.shape[-1]
        norm = FrozenNorm.of(head.norm, activate(pre, head.activation))
        reader = _through(norm, Component("transform norm bias"), reader, constants)
        reader = reader._replace(directions=reader.directions * _gate(pre, head.activation))
        if (offset := offset_of(head.transform, width)) is not None:
            constants.append((Component("transform bias"), reader.constant(wide(offset))))
        reader = reader.behind(wide(matrix_of(head.transform, width).mT))
    reader = _through(FrozenNorm.of_final(here), Component("final norm bias"), reader, constants)
    return Reading(trace, len(trace) - 1, "resid_post", (position,), reader, constants[::-1])


def _through(
    norm: FrozenNorm | None, bias: Component, reader: Reader, constants: Constants
) -> Reader:
    """What reads the same in front of a norm; what the norm's bias adds is noted."""
    if norm is None:
        return reader
    if norm.bias is not None:
        constants.append((bias, reader.constant(norm.bias)))
    return reader.in_front_of(norm)


def _gate(pre: Float[Tensor, "*rows width"], activation: str) -> Float[Tensor, "*rows width"]:
    """The share of its input that an activation let through: activation(pre) / pre.

    For gelu it is Φ(pre), for relu 1 or 0. Every activation here is 0 at 0, so that the gate
    times pre is the activation exactly.
    """
    post = activate(pre, activation)
    return torch.where(pre == 0, 0, wide(post) / torch.where(pre == 0, 1, wide(pre)))


def _turned_back(
    trace: Trace, layer: int, places: list[int], directions: Tensor
) -> Float[Tensor, "position read d_head"]:
    """The directions that read of unrotated vectors what these read of rotated ones."""
    cosine, sine = (part[0, 0, places][:, None] for part in turns(trace, layer))
    dims = cosine.shape[-1]
    first, rest = directions[..., :dims], directions[..., dims:]
    turned = first * cosine + (first * sine).roll(dims // 2, -1)
    return torch.cat([turned, rest.expand(*turned.shape[:-1], -1)], -1)


def turns(trace: Trace, layer: int) -> Turns:
    """Cosine and sine of each position of a layer with rotary positions."""
    attention = layer_of(trace[layer]).attention
    assert attention.rotary is not None
    cosine, sine = trace.evaluation.turns(attention.rotary, dtype_of(attention.query))
    return wide(cosine), wide(sine)


def seen_keys(text: Trace, layer: int, places: Sequence[int]) -> Bool[Tensor, "query key"]:
    """True where these queries of one sentence may look."""
    window, length = layer_of(text[layer]).attention.window, text.allowed.position
    mask = replace(text.allowed, window=window).rows(list(places))
    size, device = (len(places), length), text.embed.device
    return torch.ones(size, dtype=torch.bool, device=device) if mask is None else mask[0, 0]
