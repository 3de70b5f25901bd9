"""Edits as data: a point, what is done to the quantity there, and the places it is limited to.

    model.trace(text, edit={("z", 9, 6): zero, ("resid_post", 3): replace(other)})

A key is a point: (name, layer), (name, layer, head), (name, layer, (head, head)), or only the name
for embed and logits. A value is a number, a tensor, a trace, a function of the quantity, or one of
the edits below; or a list of these, which are made in its order, such as
[hide(2).at(sentences=0), hide(5).at(sentences=1)]. plan.py checks all edits before the pass starts.
They are applied in the order in which the pass computes the quantities.

Positions are a sentence's own: 0 is its first token and -1 its last real one; padding is not a
position. `Places` says where in the tensors of a batch, padded or packed, they are.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from dataclasses import replace as _copy
from itertools import accumulate
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from minibert.errors import (
    EditError,
    MinibertError,
    TraceError,
    check_index,
    did_you_mean,
    whole_number,
)
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.layers.readers import unread
from minibert.quantities import QUANTITIES, TokenMask

Chosen = int | slice | Sequence[int] | Tensor | np.ndarray | None
"""Positions or sentences as people name them; None for all."""


@dataclass(frozen=True)
class Places:
    """Where the sentences of a batch are in its tensors.

    at       of each sentence the places of its positions on the position axis
    packed   True where all of them lie in one row
    """

    at: tuple[Sequence[int], ...]
    packed: bool = False

    @classmethod
    def of(cls, allowed: AllowedKeys) -> "Places":
        """The places of a batch whose tokens come first, or of packed sentences."""
        if allowed.packed is None:
            lengths = allowed.lengths or (allowed.position,) * allowed.batch
            return cls(tuple(map(range, lengths)))
        ends = accumulate(allowed.packed)
        spans = zip(ends, allowed.packed, strict=True)
        return cls(tuple(range(end - length, end) for end, length in spans), packed=True)

    @classmethod
    def of_mask(cls, tokens: TokenMask | None, batch: int, position: int) -> "Places":
        """The places of a batch whose tokens are where the mask is True, wherever that is."""
        if tokens is None:
            return cls((range(position),) * batch)
        whole = range(position)
        found = (row.nonzero()[:, 0].tolist() for row in tokens)
        return cls(tuple(whole if len(at) == position else at for at in found))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each sentence."""
        return tuple(map(len, self.at))

    @property
    def rectangular(self) -> bool:
        """True where all sentences have one length, each in a row of the batch."""
        return not self.packed and len(set(self.lengths)) == 1

    def positions(
        self,
        sentence: int,
        chosen: Chosen,
        what: str = "position",
        error: type[MinibertError] = TraceError,
        where: str = "",
    ) -> list[int]:
        """The positions in one sentence, counted from its front; all of its tokens for None."""
        named = where if self.rectangular else f"{where}sentence {sentence}: "
        return indices_of(chosen, len(self.at[sentence]), what, error, named)

    def index(self, sentence: int, positions: Sequence[int]) -> tuple[int, list[int]]:
        """The row of the batch, and the places on the position axis."""
        at = self.at[sentence]
        return 0 if self.packed else sentence, [at[position] for position in positions]

    def without_padding(self, probs: Tensor) -> Tensor:
        """probs with 0 for keys that are padding, whatever stood there."""
        n_keys = probs.shape[-1]
        if min(self.lengths) == n_keys:
            return probs
        real = torch.zeros(len(self.at), n_keys, dtype=torch.bool)
        for sentence, at in enumerate(self.at):
            real[sentence, list(at)] = True
        return probs.masked_fill(~real.to(probs.device)[:, None, None], 0)


def indices_of(
    chosen: Chosen, size: int, what: str, error: type[MinibertError] = TraceError, where: str = ""
) -> list[int]:
    """The numbers that one, several, a slice or None (all) stand for, counted from the front.

    Raises `error` for what is not a whole number from -size to size - 1, for none at all, and where
    something is named twice; `where` begins its message.
    """
    if chosen is None:
        return list(range(size))
    if isinstance(chosen, Tensor | np.ndarray):
        chosen = chosen.tolist()
    if isinstance(chosen, slice):
        try:
            found = list(range(size)[chosen])
        except (TypeError, ValueError) as wrong:
            raise error(f"{where}{what} {chosen}: expected whole numbers.") from wrong
    elif isinstance(chosen, Sequence) and not isinstance(chosen, str):
        found = [check_index(what, one, size, error, where) for one in chosen]
    else:
        found = [check_index(what, chosen, size, error, where)]
    if not found or len(set(found)) < len(found):
        raise error(f"{where}{what} {chosen!r:.80}: expected each one once, and at least one.")
    return found


__all__ = ["Edit", "hide", "mean", "noise", "replace", "zero"]

_TEXT_TASKS = ("next-sentence", "sequence-classification")


@dataclass(frozen=True)
class Point:
    """One place in a forward pass: a quantity, its layer, and its heads (None: all of them)."""

    name: str
    layer: int | None = None
    heads: int | tuple[int, ...] | None = None
    of_text: bool = False
    """True for the logits of a whole text, which have no position axis."""
    stack: str = ""
    """The stack of layers, in a live model that has several."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the quantity here; a single head, given as a number, has no head axis."""
        gone = {"head", "kv_head"} if isinstance(self.heads, int) else set()
        if self.of_text:
            gone.add("position")
        return tuple(axis for axis in QUANTITIES[self.name].axes if axis not in gone)

    @property
    def has_positions(self) -> bool:
        """False for what there is one of in a whole text."""
        return self.row_axis is not None

    @property
    def behind_layers(self) -> bool:
        """True for what is computed once every layer is."""
        return self.layer is None and self.name != "embed"

    @property
    def head_list(self) -> list[int]:
        """The heads as a list of numbers; empty for all heads."""
        if self.heads is None:
            return []
        return [self.heads] if isinstance(self.heads, int) else list(self.heads)

    def __str__(self) -> str:
        parts = (self.stack or None, *self.key)
        return "(" + ", ".join(str(part) for part in parts if part is not None) + ")"

    @property
    def key(self) -> tuple[object, ...]:
        """The point as a key of a mapping of edits to the same model."""
        parts = (self.name, self.layer, self.heads)
        return tuple(part for part in parts if part is not None)

    @property
    def row_axis(self) -> int | None:
        """Which of `axes` is that of positions, or of queries; None where there is none."""
        rows = [n for n, axis in enumerate(self.axes) if axis in ("position", "query")]
        return rows[0] if rows else None


def as_point(key: object, config: Config) -> Point:
    """The Point of a key: a name, (name, layer) or (name, layer, head or heads)."""
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], str):
        raise EditError(
            f"{key!r} is not a point; expected (name, layer), (name, layer, head), "
            'or a name without layers, such as "embed" or "logits".'
        )
    name = parts[0]
    if name == "mask" or name not in QUANTITIES:
        editable = ", ".join(entry for entry in QUANTITIES if entry != "mask")
        guess = did_you_mean(name, QUANTITIES)
        raise EditError(f"{name!r} cannot be edited{guess}; there are {editable}.")
    if name in config.absent_quantities:
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if not QUANTITIES[name].per_layer:
        if len(parts) > 1:
            raise EditError(f"{key!r}: {name} has no layers; write {name!r} alone.")
        return Point(name, of_text=name == "logits" and config.task in _TEXT_TASKS)
    if len(parts) == 1:
        raise EditError(f"{key!r}: which layer? Write ({name!r}, layer).")
    grouped = config.n_kv_heads < config.n_heads and "kv_head" in QUANTITIES[name].axes
    what, count = ("kv_head", config.n_kv_heads) if grouped else ("head", config.n_heads)
    point = in_layer(key, parts, config.n_layers, lambda layer: (what, count))
    layer = point.layer or 0
    if name in config.absent_in(layer):
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if name in unread(config, layer):
        raise EditError(
            f"{key!r} cannot be edited: nothing is computed from {name}, so the edit would change "
            f"nothing. Edit what it is computed from: {QUANTITIES[name].formula}."
        )
    return point


def in_layer(
    key: object,
    parts: Sequence[Any],
    n_layers: int,
    heads_of: Callable[[int], tuple[str, int]],
    stack: str = "",
) -> Point:
    """The Point of (name, layer) or (name, layer, head or heads), in a model of so many layers.

    `heads_of` a layer says what its heads are called, and how many there are.
    """
    name, where = parts[0], f"{key!r}: "
    layer = check_index("layer", parts[1], n_layers, EditError, where)
    if len(parts) == 2:
        return Point(name, layer, stack=stack)
    if not QUANTITIES[name].per_head:
        raise EditError(f"{key!r}: {name} has no heads; write ({name!r}, {layer}).")
    what, count = heads_of(layer)
    if not isinstance(parts[2], tuple | list | range):
        head = check_index(what, parts[2], count, EditError, where)
        return Point(name, layer, head, stack=stack)
    heads = tuple(indices_of(parts[2], count, what, EditError, where))
    return Point(name, layer, heads, stack=stack)


@runtime_checkable
class Source(Protocol):
    """A trace that values of edits are read from: of minibert's models, or of a live one."""

    @property
    def model(self) -> Any:
        """The model that it is a trace of."""

    @property
    def model_name(self) -> str:
        """What the model was loaded as."""

    def value_at(self, point: Point) -> Tensor:
        """The quantity there, in its whole batch."""

    def shape_at(self, point: Point) -> tuple[int, ...]:
        """The shape, without computing the quantity. Raises EditError where the trace lacks it."""

    def places_at(self, point: Point) -> Places:
        """Where the positions of the trace's sentences are in it."""


def in_layers(trace: Any, point: Point) -> Tensor:
    """The quantity at a point of a trace, whose layers and heads are `trace[layer, head]`."""
    of_keys = "kv_head" in QUANTITIES[point.name].axes
    value: Tensor
    if isinstance(point.heads, int) and not of_keys:
        value = trace[point.layer, point.heads].quantity(point.name)
    else:
        # A point names a key-value head, and trace[layer, head] the key that a head reads.
        value = trace[point.layer].quantity(point.name)
        if point.heads is not None:
            value = value[:, point.heads if isinstance(point.heads, int) else point.head_list]
    return value


Change = Callable[[Point, Tensor], object]
if TYPE_CHECKING:
    Key = TypeVar("Key", covariant=True)

    class Edits(Protocol[Key]):
        """A mapping whose keys may be narrower than asked, which those of Mapping may not."""

        def items(self) -> Set[tuple[Key, object]]: ...

    # Names are not listed: in a dict that stands in a variable a name is any text to a checker.
    EditMapping = Edits[str | tuple[str, int] | tuple[str, int, int | Sequence[int]]]
else:
    #: What edit= takes: points, and the Edit, function, tensor or number of each.
    EditMapping = Mapping[Any, object]


def zeros(point: Point, value: Tensor) -> Tensor:
    """0 everywhere."""
    return torch.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Constant:
    """A number or a tensor."""

    value: object

    def __call__(self, point: Point, value: Tensor) -> object:
        """The value."""
        # A copy each time: a learned vector may change after the pass, and the trace must not.
        return self.value.clone() if isinstance(self.value, Tensor) else self.value


@dataclass(frozen=True, eq=False)
class FromTrace:
    """A quantity read from other traces: from one, or the mean over several, once a point.

    The mean is taken over sentences and positions, without padding.
    """

    traces: tuple[Source, ...]
    averages: bool = False
    means: dict[Point, Tensor] = field(default_factory=dict, repr=False)

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The quantity there, detached."""
        if not self.averages:
            return _read(self.traces[0], point)
        if point not in self.means:
            self.means[point] = _mean_of(self.traces, point)
        return self.means[point].to(value.device)

    def __deepcopy__(self, memo: dict[int, object]) -> "FromTrace":
        # Traces do not change, and their models are not to be copied with them.
        return self


@dataclass(frozen=True)
class Noise:
    """The quantity and normal numbers of this standard deviation."""

    seed: int
    std: float

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The sum."""
        # Drawn on the CPU, where every machine draws the same numbers; each point has its own seed.
        text = f"{point.name} {point.layer} {point.heads}"
        mixed = (self.seed * 1_000_003 + sum(ord(c) * 31**n for n, c in enumerate(text))) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        return value + self.std * _normal_like(value, point.row_axis or 1, generator).to(value)


@dataclass(frozen=True)
class Hide:
    """Scores of −inf for these keys, which are counted in each sentence."""

    keys: Chosen

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The scores as they are: which rows and columns are hidden depends on the batch."""
        return value


@dataclass(frozen=True)
class Function:
    """An edit by a user's function. It can be pickled if the function can."""

    function: Callable[[Tensor], object]

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """What the function returns: a tensor of the shape, dtype and device of the quantity."""
        # The function gets a copy, so that a change in place does not reach the trace.
        return checked_result(
            self.function(value.clone()), kind_of(value), f"{point}: the function"
        )


Kind = tuple[tuple[int, ...], torch.dtype, torch.device, torch.layout]


def kind_of(value: Tensor) -> Kind:
    """The shape, dtype, device and layout of a tensor."""
    return tuple(value.shape), value.dtype, value.device, value.layout


def checked_result(result: object, given: Kind, who: str) -> Tensor:
    """The result of a user's function for a tensor of this kind, checked.

    Raises EditError unless it is a tensor of the same kind: another shape would be broadcast.
    """
    if isinstance(result, Tensor) and kind_of(result) == given:
        return result
    expected = "a tensor of the shape {}, {}, on {}, {}".format(*given)
    found = f"{result!r:.80}"
    if isinstance(result, Tensor):
        found = "a tensor of the shape {}, {}, on {}, {}".format(*kind_of(result))
    raise EditError(
        f"{who} returned {found}; expected {expected}, as it was given. To write one value "
        "everywhere, expand it to this shape, or make it the edit in place of the function."
    )


def _normal_like(value: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Normal numbers, position after position, the same for each sentence of the batch."""
    shape = value.movedim(axis, 1).shape[1:]
    # Not torch.randn: how many numbers it draws decides what the first ones are.
    size, angle = torch.rand((*shape, 2), generator=generator, dtype=torch.float64).unbind(-1)
    drawn = (-2 * torch.log1p(-size)).sqrt() * (2 * math.pi * angle).cos()
    return drawn.unsqueeze(0).movedim(1, axis)


def _read(trace: Source, point: Point) -> Tensor:
    """The quantity of a trace at a point, detached: no gradient flows into that trace."""
    value = trace.value_at(point)
    # A tensor made in torch.inference_mode() can only be used outside of it as a copy.
    return value.clone() if value.is_inference() else value.detach()


def _mean_of(traces: Sequence[Source], point: Point) -> Tensor:
    values, axis = [_read(trace, point) for trace in traces], point.row_axis
    if axis is None or "query" in point.axes:
        return torch.cat(values).mean(0, keepdim=True)
    rows = []
    for value, places in zip(values, (trace.places_at(point) for trace in traces), strict=True):
        for sentence, length in enumerate(places.lengths):
            row, at = places.index(sentence, range(length))
            rows.append(value.movedim(axis, 1)[row, at])
    return torch.cat(rows).mean(0).unsqueeze(axis - 1).unsqueeze(0)


# The square of a larger number does not fit float32.
_LARGEST_STD = 1e18


@dataclass(frozen=True)
class Edit:
    """A change of a quantity, at all or some positions, in all or some sentences.

    Make one with `zero`, `mean`, `replace` or `noise`; `at` limits it.
    """

    change: Change
    """Called with the point and the quantity there, it returns the new value."""
    positions: Chosen = None
    """Counted in each sentence; -1 is its last token. Of scores and probs they are queries."""
    sentences: Chosen = None
    other_model: bool = False
    """Whether the traces that it reads from may be of another model."""
    entries: Chosen = None
    """Of its last axis: keys of scores and probs, else single numbers, such as neurons."""

    @property
    def traces(self) -> tuple[Source, ...]:
        """The traces that the value is read from."""
        return self.change.traces if isinstance(self.change, FromTrace) else ()

    @property
    def averages(self) -> bool:
        """True where the value is the mean over the positions of these traces."""
        return isinstance(self.change, FromTrace) and self.change.averages

    def at(
        self, *, positions: Chosen = None, sentences: Chosen = None, entries: Chosen = None
    ) -> "Edit":
        """Limit the change to these positions, sentences of the batch, and entries.

        Raises EditError for entries of `hide`, which names its keys itself.
        """
        if entries is not None and isinstance(self.change, Hide):
            raise EditError(f"hide(...).at(entries={entries!r:.80}): name the keys in hide(keys).")
        return _copy(
            self,
            positions=self.positions if positions is None else positions,
            sentences=self.sentences if sentences is None else sentences,
            entries=self.entries if entries is None else entries,
        )


zero = Edit(zeros)
"""Sets the quantity to 0: an ablation."""


def replace(
    value: object, *, positions: Chosen = None, sentences: Chosen = None, other_model: bool = False
) -> Edit:
    """The quantity becomes `value`: a number, a tensor that broadcasts to it, or a trace.

    From a trace it takes the same quantity at the same layer and heads (activation patching; Vig et
    al. 2020, "Causal mediation analysis"). With `positions`, the values are read from the same
    positions of the trace or tensor; a tensor may also hold the chosen positions only. A trace of a
    model with other weights is refused unless `other_model`.
    """
    if isinstance(value, Source):
        return Edit(FromTrace((value,)), positions, sentences, other_model)
    if value is None:
        raise EditError("replace(None): expected a number, a tensor or a trace.")
    if isinstance(value, Real) and not isinstance(value, bool):
        value = float(value)
    return Edit(Constant(value), positions, sentences)


def mean(
    over: object, *, positions: Chosen = None, sentences: Chosen = None, other_model: bool = False
) -> Edit:
    """The quantity becomes its mean over one or more traces: a mean ablation.

    The mean is taken over sentences and positions, without padding. For scores and probs it is
    taken over sentences only, so these traces need the length of the input and no padding. It is
    computed when the edit is first used. Traces of a model with other weights are refused unless
    `other_model`.
    """
    several = isinstance(over, Sequence) and not isinstance(over, str)
    traces = tuple(over) if isinstance(over, Sequence) and several else (over,)
    if not traces or not all(isinstance(trace, Source) for trace in traces):
        raise EditError("mean(over=...): expected a trace or a list of at least one trace.")
    return Edit(FromTrace(traces, averages=True), positions, sentences, other_model)


def noise(
    seed: int = 0, *, std: float | int = 1.0, positions: Chosen = None, sentences: Chosen = None
) -> Edit:
    """Adds Gaussian noise of standard deviation `std`; the same seed gives the same noise.

    Every sentence of a batch gets the noise that it gets alone; several seeds make several samples.
    So noise on packed sentences, and on scores and probs of sentences of different lengths, is
    refused.
    Source: corrupted runs of Meng et al. 2022, "Locating and editing factual associations", 2.1.
    """
    seed = whole_number("noise: seed", seed, EditError, least=-(2**63), most=2**63)
    if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < _LARGEST_STD:
        raise EditError(f"noise(std={std!r}): expected a number from 0 to {_LARGEST_STD}.")
    return Edit(Noise(seed, float(std)), positions, sentences)


def hide(keys: Chosen, *, positions: Chosen = None) -> Edit:
    """Sets the scores of these keys to −inf for the queries at `positions`, by default all queries.

    It edits scores only. Each query must keep at least one key that it may attend to.
    Source: attention knockout of Geva et al. 2023, "Dissecting recall of factual associations".
    """
    if keys is None:
        raise EditError("hide(None): expected the positions of the keys, for example hide(3).")
    return Edit(Hide(keys), positions)


_CALLS = {
    hide: "hide(keys)",
    mean: "mean(over=trace)",
    noise: "noise(seed)",
    replace: "replace(value)",
}


def as_edit(value: object) -> Edit:
    """The Edit for a value of the mapping: numbers and tensors replace, functions are called."""
    if isinstance(value, Edit):
        return value
    if isinstance(value, Tensor | Real | Source):
        return replace(value)
    for function, call in _CALLS.items():
        if value is function:
            raise EditError(f"{function.__name__} has to be called: write {call}.")
    if callable(value):
        return Edit(Function(value))
    raise EditError(
        f"{type(value).__name__} is not an edit; expected a number, a tensor, a trace, a function, "
        "or zero, mean(...), replace(...), noise(...), hide(...)."
    )
