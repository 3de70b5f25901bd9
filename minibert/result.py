"""One kind of result for every analysis: numbers whose axes have names, and where they came from.

Order of axes, everywhere: layer, batch, head, position or query, key. What is counted in a result
and is none of these (patterns, ranks, what was blocked) comes after them; a list of parts that
begins with the embeddings and has no layers (components, rows of a lens) stands before them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
from torch import Tensor

from minibert.doors import opened
from minibert.errors import TraceError, check_index, whole_number

if TYPE_CHECKING:
    from minibert.doors import Figure

Array = TypeVar("Array", bound=Tensor | np.ndarray)
Place: TypeAlias = int | str
Call = ParamSpec("Call")
Returned = TypeVar("Returned")

# Axes in their order, and those along which a sentence's tokens stand.
_ORDER = ("layer", "batch", "head", "position", "query", "key")
_OF_TOKENS = ("position", "query", "key")
# Rows of a printed table, and letters of one argument in a printed source.
_SHOWN, _LONGEST = 5, 60


@dataclass(frozen=True, eq=False, repr=False)
class Result(Generic[Array]):
    """Numbers with named axes: to read, choose from, list, draw and write down.

    values   the numbers; further tensors of a result are fields of its own class
    names    the names of their axes, as "layer batch head"; the module says in which order
    title    what they are, and `unit` what one number is
    labels   names along an axis: {"component": ("embed", "head 0-0")}; numbers from 0 elsewhere
    tokens   the tokens of each sentence, which stand along position, query and key
    signed   numbers below and above 0 mean opposite things; a picture has two colours
    limits   the numbers at both ends of a picture's colours; by default those of the data
    source   the function and the arguments that it was computed with

    >>> found = Result(torch.tensor([[0.1, -0.7], [0.2, 0.3]]), "layer head", title="Change")
    >>> found.largest(1)
    [(0, 1, -0.7)]
    >>> found.at(layer=1).tolist()
    [0.2, 0.3]
    """

    values: Array
    names: str
    title: str = ""
    unit: str = ""
    labels: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    tokens: tuple[tuple[str, ...], ...] = ()
    signed: bool = False
    limits: tuple[float, float] | None = None
    source: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [_ORDER.index(axis) for axis in self.axes if axis in _ORDER]
        if len(self.axes) != self.values.ndim or known != sorted(known):
            raise ValueError(f"axes {self.names!r} do not fit {tuple(self.values.shape)}, in order")

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of `values`, in their order."""
        return tuple(self.names.split())

    @property
    def sizes(self) -> dict[str, int]:
        """The length of each axis, by its name."""
        return dict(zip(self.axes, self.values.shape, strict=True))

    def place(self, axis: str, given: Place) -> int:
        """Where a number or a label stands on an axis, counted from its front.

        Raises TraceError for an axis that is not there, and for what is not on it.
        """
        if axis not in self.axes:
            raise TraceError(f"{self._name}: no axis {axis!r}; it has {', '.join(self.axes)}.")
        labels = list(self.labels.get(axis, ()))
        what = "sentence" if axis == "batch" else axis
        numbered = not labels or isinstance(labels[0], str)
        if numbered and not (isinstance(given, str) and labels):
            return check_index(what, given, self.sizes[axis])
        if isinstance(given, bool) or given not in labels:
            shown = ", ".join(map(str, labels[:8])) + ", ..." * (len(labels) > 8)
            raise TraceError(f"There is no {what} {given!r:.80} in this result; it has {shown}.")
        return labels.index(given)

    def at(self, **places: Place) -> Array:
        """The numbers at one place of some axes, by number or label: `at(layer=2, head=0)`."""
        found = {axis: self.place(axis, place) for axis, place in places.items()}
        return cast(Array, self.values[tuple(found.get(axis, slice(None)) for axis in self.axes)])

    def table(self) -> list[dict[str, Place | float]]:
        """One row a number, padding left out: its place on each axis, and "value".

        Places have their labels, and tokens stand beside their positions. A list of such rows is
        what `pandas.DataFrame` and `csv.DictWriter` take.
        """
        return [
            dict(zip(self.axes, self._labelled(places), strict=True)) | {"value": value.item()}
            for places, value in np.ndenumerate(self._numbers())
            if self._is_real(places)
        ]

    def largest(self, count: int = _SHOWN) -> list[tuple[Place | float, ...]]:
        """The numbers farthest from 0, as (place on each axis ..., number); nan is left out.

        Raises TraceError for a count below 1.
        """
        count = whole_number("count", count, TraceError, least=1)
        numbers = self._numbers()
        sizes = np.where(np.isnan(numbers), -1.0, np.abs(numbers)).ravel()
        found: list[tuple[Place | float, ...]] = []
        for index in np.argsort(-sizes, kind="stable").tolist():
            places = [int(place) for place in np.unravel_index(index, numbers.shape)]
            if len(found) == count or sizes[index] < 0:
                break
            if self._is_real(places):
                found.append((*self._labelled(places), numbers[tuple(places)].item()))
        return found

    def plot(self, path: str | Path | None = None, **choices: int | str | None) -> "Figure":
        """The matplotlib Figure of the numbers; `choices` are places on axes, as in `at`.

        Of a batch it shows the first sentence, unless `sentence=` says which, or None for the mean
        of all. What is not chosen is drawn: heads as a map, tokens as bars or a map of query and
        key. Saved where `path` is given, as SVG, PDF or PNG by its name.

        Raises TraceError for a place that is not there, and MinibertError without matplotlib.
        """
        return cast("Figure", opened("plot")(self.shown(), path, **choices))

    def shown(self) -> "Result[Array]":
        """The result that a picture, a printed table and `largest` are of: mostly this one."""
        return self

    def to_dict(self) -> dict[str, object]:
        """All of it as what JSON has: lists, numbers and text; None in place of nan."""
        content: dict[str, object] = {"result": type(self).__name__, "axes": list(self.axes)}
        for each in fields(self):
            if each.name not in ("names", "signed", "limits") and each.repr:
                content[each.name] = _plain(getattr(self, each.name))
        return content

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def note(self) -> str:
        """What a reader has to know before believing the numbers; mostly nothing."""
        return ""

    def __getitem__(self, label: str) -> Array:
        """The numbers of one label: `scores["induction"]`.

        Raises TraceError where no axis has it.
        """
        for axis, labels in self.labels.items():
            if axis in self.axes and label in labels:
                return self.at(**{axis: label})
        there = [str(label) for labels in self.labels.values() for label in labels]
        shown = f"; there are {', '.join(there[:8])}" + " and more" * (len(there) > 8)
        raise TraceError(f"{self._name} has no {label!r:.80}{shown if there else ''}.")

    def __str__(self) -> str:
        whole = self.shown()
        rows = (f"{_joined(row[:-1]):<24} {row[-1]:+.3f}" for row in whole.largest())
        return "\n".join([f"{self._name}: {' '.join(whole.axes)}, the largest first", *rows])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in self.sizes.items())
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.source.items())
        lines = [f"{type(self).__name__} {self.title!r} of {sizes}"]
        lines += [f"  in {self.unit}"] if self.unit else []
        lines += [f"  {self.note()}"] if self.note() else []
        return "\n".join([*lines, f"  computed with {given}"] if given else lines)

    @property
    def _name(self) -> str:
        return self.title or type(self).__name__

    def _numbers(self) -> np.ndarray:
        values = self.values
        return values.detach().cpu().numpy() if isinstance(values, Tensor) else values

    def _is_real(self, places: Sequence[int]) -> bool:
        """Whether a place is not padding."""
        if not self.tokens:
            return True
        by_axis = dict(zip(self.axes, places, strict=True))
        length = len(self.tokens[by_axis.get("batch", 0)])
        return all(by_axis.get(axis, 0) < length for axis in _OF_TOKENS)

    def _labelled(self, places: Sequence[int]) -> list[Place]:
        """The label on each axis, or the number where there is none."""
        named = (self.labels.get(axis) for axis in self.axes)
        return [n if of is None else of[n] for n, of in zip(places, named, strict=True)]


def sourced(function: Callable[Call, Returned]) -> Callable[Call, Returned]:
    """The function, with its name and arguments as the `source` of the Result that it gives.

    It may give a Result, or a dictionary of them.
    """
    named = signature(function)

    @wraps(function)
    def computed(*given: Call.args, **options: Call.kwargs) -> Returned:
        found = function(*given, **options)
        bound = named.bind(*given, **options)
        bound.apply_defaults()
        source = {"function": function.__name__} | {
            name: _described(value) for name, value in bound.arguments.items()
        }
        if isinstance(found, Mapping):
            both = {name: replace(each, source=source) for name, each in found.items()}
            return cast(Returned, both)
        return cast(Returned, replace(cast("Result[Tensor]", found), source=source))

    return computed


def _described(value: object) -> object:
    """An argument as a source names it: short, and without holding what is large."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} of {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    named = getattr(value, "__name__", None)
    return named if isinstance(named, str) else repr(value)


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value] if value.ndim else _plain(value.item())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return str(value)
    return value


def _joined(places: Sequence[object]) -> str:
    return ", ".join(map(str, places))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
