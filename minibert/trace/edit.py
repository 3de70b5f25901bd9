"""Edits as data: a point, what is done to the quantity there, and the places it is limited to.

    model.trace(text, edit={("z", 9, 6): zero, ("resid_post", 3): replace(other)})

A key is a point: (name, layer), (name, layer, head), (name, layer, (head, head)), or only the name
for embed and logits. A value is a number, a tensor, a trace, a function of the quantity, or one of
the edits below; or a list of these, which are made in its order, such as
[hide(2).at(sentences=0), hide(5).at(sentences=1)]. plan.py checks all edits before the pass starts.
They are applied in the order in which the pass computes the quantities.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from dataclasses import replace as _copy
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError, check_index
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.layers.readers import unread
from minibert.quantities import QUANTITIES
from minibert.trace.places import Chosen, indices_of, laid_out

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
        return not {"position", "query"}.isdisjoint(self.axes)

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
        parts = (self.name, self.layer, self.heads)
        return "(" + ", ".join(str(part) for part in parts if part is not None) + ")"


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
        raise EditError(f"{name!r} cannot be edited; there are {editable}.")
    if name in config.absent_quantities:
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if not QUANTITIES[name].per_layer:
        if len(parts) > 1:
            raise EditError(f"{key!r}: {name} has no layers; write {name!r} alone.")
        return Point(name, of_text=name == "logits" and config.task in _TEXT_TASKS)
    if len(parts) == 1:
        raise EditError(f"{key!r}: which layer? Write ({name!r}, layer).")
    where = f"{key!r}: "
    layer = check_index("layer", parts[1], config.n_layers, EditError, where)
    if name in config.absent_in(layer):
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if name in unread(config, layer):
        raise EditError(
            f"{key!r} cannot be edited: nothing is computed from {name}, so the edit would change "
            f"nothing. Edit what it is computed from: {QUANTITIES[name].formula}."
        )
    if len(parts) == 2:
        return Point(name, layer)
    if not QUANTITIES[name].per_head:
        raise EditError(f"{key!r}: {name} has no heads; write ({name!r}, {layer}).")
    grouped = config.n_kv_heads < config.n_heads and "kv_head" in QUANTITIES[name].axes
    what, count = ("kv_head", config.n_kv_heads) if grouped else ("head", config.n_heads)
    if not isinstance(parts[2], tuple | list | range):
        return Point(name, layer, check_index(what, parts[2], count, EditError, where))
    return Point(name, layer, tuple(indices_of(parts[2], count, what, EditError, where)))


Change = Callable[[Point, Tensor], object]
#: What edit= takes: points, or names of them, and the Edit, function, tensor or number of each.
EditMapping = Mapping[Any, object]


def zeros(point: Point, value: Tensor) -> Tensor:
    """0 everywhere."""
    return torch.zeros_like(value)


def unchanged(point: Point, value: Tensor) -> Tensor:
    """The quantity as it is."""
    return value


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
    """The same quantity of another trace."""

    trace: Any
    allowed: AllowedKeys | None = None
    """How the sentences of the pass lie, where one of both is packed; None: as in the trace."""

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The quantity there, detached."""
        found = _read(self.trace, point)
        if self.allowed is None or "position" not in point.axes:
            return found
        return laid_out(found, point.axes.index("position"), self.trace.allowed, self.allowed)


class Mean:
    """The mean of the same quantity over other traces, computed once for each point."""

    def __init__(self, traces: tuple[object, ...]) -> None:
        self.traces = traces
        self._known: dict[Point, Tensor] = {}

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The mean."""
        if point not in self._known:
            self._known[point] = _mean_of(self.traces, point)
        return self._known[point].to(value.device)


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
        return value + self.std * _normal_like(value, point.axes, generator).to(value)


@dataclass(frozen=True)
class Function:
    """What a user's function makes of the quantity. It can be pickled where the function can."""

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
    """What a user's function made of a tensor of this kind.

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
        "everywhere, expand it to this shape, or make it the edit in the place of the function."
    )


def _normal_like(value: Tensor, axes: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Normal numbers, position after position, the same for each sentence of the batch."""
    row = "query" if "query" in axes else "position"
    axis = axes.index(row) if row in axes else 1
    shape = value.movedim(axis, 1).shape[1:]
    # Not torch.randn: how many numbers it draws decides what the first ones are.
    size, angle = torch.rand((*shape, 2), generator=generator, dtype=torch.float64).unbind(-1)
    drawn = (-2 * torch.log1p(-size)).sqrt() * (2 * math.pi * angle).cos()
    return drawn.unsqueeze(0).movedim(1, axis)


def _read(trace: Any, point: Point) -> Tensor:
    """The quantity of a trace at a point, detached: no gradient flows into that trace."""
    if point.layer is None:
        value = getattr(trace, point.name)
    elif isinstance(point.heads, int) and "kv_head" not in QUANTITIES[point.name].axes:
        value = getattr(trace[point.layer, point.heads], point.name)
    elif isinstance(point.heads, int):
        # A point names a key-value head, and trace[layer, head] the key that a head reads.
        value = getattr(trace[point.layer], point.name)[:, point.heads]
    else:
        value = getattr(trace[point.layer], point.name)
        value = value if point.heads is None else value[:, list(point.heads)]
    # A tensor made in torch.inference_mode() can only be used outside of it as a copy.
    return value.clone() if value.is_inference() else value.detach()


def _mean_of(traces: Sequence[object], point: Point) -> Tensor:
    values = [_read(trace, point) for trace in traces]
    if "position" not in point.axes:
        return torch.cat(values).mean(0, keepdim=True)
    axis = point.axes.index("position")
    rows = [
        value.movedim(axis, 1)[real]
        for value, real in zip(values, map(_real_tokens, traces), strict=True)
    ]
    average = torch.cat(rows).mean(0)
    return average.unsqueeze(axis - 1).unsqueeze(0)


def _real_tokens(trace: Any) -> Tensor:
    allowed = trace.allowed
    if allowed.tokens is not None:
        return allowed.tokens
    return torch.ones(allowed.batch, allowed.position, dtype=torch.bool, device=allowed.device)


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
    constant: object = None
    """The value, where it is known before the pass, so that it can be checked then."""
    traces: tuple[Any, ...] = ()
    """The traces that the value is read from. They are checked before the pass."""
    averages: bool = False
    """True where the value is the mean over the positions of these traces."""
    hidden: Chosen = None
    """Keys whose scores become −inf, counted in each sentence."""
    drawn: bool = False
    """Whether it adds numbers that are drawn position after position."""
    other_model: bool = False
    """Whether the traces may be of another model."""

    def at(self, *, positions: Chosen = None, sentences: Chosen = None) -> "Edit":
        """The same change, only at these positions or in these sentences of the batch."""
        return _copy(
            self,
            positions=self.positions if positions is None else positions,
            sentences=self.sentences if sentences is None else sentences,
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "Edit":
        # Traces do not change, and their models are not to be copied with them.
        memo.update({id(trace): trace for trace in self.traces})
        parts = {each.name: deepcopy(getattr(self, each.name), memo) for each in fields(self)}
        return Edit(**parts)


zero = Edit(zeros)
"""Sets the quantity to 0: an ablation."""


def replace(
    value: object,
    *,
    positions: Chosen = None,
    sentences: Chosen = None,
    other_model: bool = False,
) -> Edit:
    """The quantity becomes `value`: a number, a tensor that broadcasts to it, or a trace.

    From a trace it takes the same quantity at the same layer and heads (activation patching; Vig et
    al. 2020, "Causal mediation analysis"). With `positions`, the values are read from the same
    positions of the trace or tensor; a tensor may also hold the chosen positions only. A trace of a
    model with other weights is refused unless `other_model`.
    """
    if _is_trace(value):
        return Edit(
            FromTrace(value), positions, sentences, traces=(value,), other_model=other_model
        )
    if value is None:
        raise EditError("replace(None): expected a number, a tensor or a trace.")
    if isinstance(value, Real) and not isinstance(value, bool):
        value = float(value)
    return Edit(Constant(value), positions, sentences, constant=value)


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
    if not traces or not all(_is_trace(trace) for trace in traces):
        raise EditError("mean(over=...): expected a trace or a list of at least one trace.")
    return Edit(
        Mean(traces), positions, sentences, traces=traces, averages=True, other_model=other_model
    )


def noise(
    seed: int = 0, *, std: float | int = 1.0, positions: Chosen = None, sentences: Chosen = None
) -> Edit:
    """Adds Gaussian noise of standard deviation `std`; the same seed gives the same noise.

    Every sentence of a batch gets the noise that it gets alone; several seeds make several samples.
    So noise on packed sentences, and on scores and probs of sentences of different lengths, is
    refused.
    Source: corrupted runs of Meng et al. 2022, "Locating and editing factual associations", 2.1.
    """
    try:
        seed = operator.index(None if isinstance(seed, bool) else seed)  # type: ignore[arg-type]
    except TypeError as error:
        raise EditError(f"noise(seed={seed!r:.80}): expected a whole number.") from error
    if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < _LARGEST_STD:
        raise EditError(f"noise(std={std!r}): expected a number from 0 to {_LARGEST_STD}.")
    return Edit(Noise(seed, float(std)), positions, sentences, drawn=True)


def hide(keys: Chosen, *, positions: Chosen = None) -> Edit:
    """Sets the scores of these keys to −inf for the queries at `positions`, by default all queries.

    It edits scores only. Each query must keep at least one key that it may attend to.
    Source: attention knockout of Geva et al. 2023, "Dissecting recall of factual associations".
    """
    if keys is None:
        raise EditError("hide(None): expected the positions of the keys, for example hide(3).")
    return Edit(unchanged, positions, hidden=keys)


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
    if isinstance(value, Tensor | Real) or _is_trace(value):
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


def _is_trace(value: object) -> bool:
    return hasattr(value, "records") and hasattr(value, "allowed")
