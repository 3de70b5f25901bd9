"""Edits, checked against a model and a batch, and then applied in the order of the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.config import Config
from minibert.edit import Edit, Places, Point, as_edit, as_point, check_each_once, index_in
from minibert.errors import EditError
from minibert.mask import AllowedKeys

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """The edits of one forward pass, by layer (None: embed and logits)."""

    edits: tuple[tuple[Point, Edit], ...]

    @classmethod
    def of(
        cls,
        mapping: Mapping[Any, Any],
        config: Config,
        allowed: AllowedKeys,
        *,
        dtype: torch.dtype,
        until: int | None = None,
    ) -> "Plan":
        """The plan of an edit mapping.

        Raises EditError for a name, layer or head that does not exist, a position or sentence
        that the batch does not have, a constant of the wrong shape or dtype or with NaN, a trace
        that does not have the quantity in this shape, a point that `until` leaves out, and two
        edits of which neither comes first.
        """
        if not isinstance(mapping, Mapping):
            raise EditError(
                f"edit={type(mapping).__name__}: expected a dictionary such as "
                '{("z", 9, 6): zero, ("resid_post", 3): function}.'
            )
        found = []
        for key, value in mapping.items():
            point = as_point(key, config)
            _check_until(point, until)
            edit = _with_places(point, as_edit(value), allowed)
            _check_constant(point, edit, config, allowed, dtype)
            _check_hidden(point, edit, allowed)
            _check_traces(point, edit, config, allowed)
            found.append((point, edit))
        # Whole layers, then several heads, then one: who names fewer knows better.
        found.sort(key=lambda entry: len(entry[0].head_list) or math.inf, reverse=True)
        _check_order([point for point, _ in found])
        return cls(tuple(found))

    def names(self, layer: int | None) -> frozenset[str]:
        """The quantities of a layer that are edited."""
        return frozenset(point.name for point, _ in self.edits if point.layer == layer)

    @property
    def first_layer(self) -> int | None:
        """The lowest layer in which something changes; None where only logits do."""
        if "embed" in self.names(None):
            return 0
        return min((p.layer for p, _ in self.edits if p.layer is not None), default=None)

    @property
    def first_position(self) -> int:
        """The first position at which something in a layer changes."""
        # Lists by now: Plan.of has seen to it.
        starts = [
            0 if edit.positions is None else min(edit.positions)  # type: ignore[arg-type]
            for point, edit in self.edits
            if point.name != "logits"
        ]
        return min(starts, default=0)

    def apply(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        """The quantity after all edits of it; the tensor given is left as it is."""
        for point, edit in self.edits:
            if point.name == name and point.layer == layer:
                value = _edited(point, edit, value)
        return value


def _check_until(point: Point, until: int | None) -> None:
    if until is None:
        return
    if point.layer is None and point.name == "logits":
        raise EditError(f"{point}: until={until} leaves the logits out.")
    if point.layer is not None and point.layer >= until:
        raise EditError(f"{point}: until={until} stops before it; edit layers below {until}.")


def _check_order(points: Sequence[Point]) -> None:
    """Heads in two edits of as many heads each: the order of a dictionary is no order."""
    for number, point in enumerate(points):
        for other in points[:number]:
            same = (point.name, point.layer) == (other.name, other.layer)
            mine, theirs = point.head_list, other.head_list
            overlap = not mine or not set(mine).isdisjoint(theirs)
            if same and len(mine) == len(theirs) and overlap:
                raise EditError(f"{other} and {point} name the same place; which is the last word?")


def _with_places(point: Point, edit: Edit, allowed: AllowedKeys) -> Edit:
    """The edit with its positions and sentences as lists of numbers, or None for all of them."""
    if edit.positions is not None and point.of_text:
        raise EditError(f"{point}: these logits are of whole texts and have no positions.")
    return replace(
        edit,
        positions=_listed(edit.positions, allowed.position, f"{point}: position"),
        sentences=_listed(edit.sentences, allowed.batch, f"{point}: sentence"),
    )


def _listed(places: Places, size: int, what: str) -> list[int] | None:
    if places is None:
        return None
    if isinstance(places, slice):
        try:
            chosen = list(range(size)[places])
        except TypeError as error:
            raise EditError(f"{what}s {places}: expected whole numbers.") from error
    elif isinstance(places, Sequence) and not isinstance(places, str):
        chosen = [index_in(place, size, what) for place in places]
    else:
        chosen = [index_in(places, size, what)]
    check_each_once(chosen, f"{what}s {places!r}")
    return chosen


def _check_constant(
    point: Point, edit: Edit, config: Config, allowed: AllowedKeys, dtype: torch.dtype
) -> None:
    value = edit.constant
    if value is None:
        return
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= torch.finfo(dtype).max:
            raise EditError(f"{point}: {value} is no finite number in {dtype}.")
        return
    if not isinstance(value, Tensor):
        raise EditError(f"{point}: expected a number, a tensor or a trace, found {value!r:.80}.")
    if not value.is_floating_point():
        raise EditError(f"{point}: the value is {value.dtype}; expected floats, as value.float().")
    if value.dtype != dtype:
        raise _other_dtype(point, value.dtype, dtype)
    if not bool(value.isfinite().all()):
        raise EditError(f"{point}: the value holds NaN or infinite numbers.")
    whole = _shape(point, config, allowed)
    if not any(_broadcasts(value.shape, shape) for shape in (_chosen(point, edit, whole), whole)):
        raise _misfit(point, value.shape, whole)


def _check_hidden(point: Point, edit: Edit, allowed: AllowedKeys) -> None:
    if edit.hidden is None:
        return
    if point.name != "scores":
        raise EditError(f'{point}: hide is an edit of scores; write ("scores", layer): hide(keys).')
    keys = _listed(edit.hidden, allowed.position, f"{point}: key")
    left = allowed.full().clone()
    left[..., keys] = False
    rows = range(allowed.position) if edit.positions is None else edit.positions
    # Lists by now: Plan.of has seen to it.
    seeing = left[slice(None) if edit.sentences is None else edit.sentences, 0].any(-1).all(0)
    alone = [row for row in rows if not seeing[row]]  # type: ignore[union-attr]
    if alone:
        raise EditError(
            f"{point}: without keys {keys} the query at position {alone[0]} has none left to "
            "attend to; limit the edit with hide(keys, positions=...)."
        )


def _check_traces(point: Point, edit: Edit, config: Config, allowed: AllowedKeys) -> None:
    expected = _shape(point, config, allowed)
    for trace in edit.traces:
        if point.name == "logits" and trace.until is not None:
            raise EditError(f"{point}: the trace has no logits, as until={trace.until} says.")
        if point.layer is not None and point.layer >= len(trace):
            raise EditError(f"{point}: the trace to read from has {len(trace)} layers.")
        sizes = dict(zip(point.axes, _shape(point, trace.config, trace.allowed), strict=False))
        if edit.averages:
            if "query" in sizes and trace.allowed.tokens is not None:
                raise EditError(f"{point}: mean(over=...) needs texts of one length, no padding.")
            sizes |= {axis: 1 for axis in ("batch", "position") if axis in sizes}
        shape = tuple(sizes.values())
        # One token is no length that fits all: a position stands for itself.
        other = any(
            sizes[axis] != allowed.position
            for axis in ("query", "key", *(() if edit.averages else ("position",)))
            if axis in sizes
        )
        if other or not _broadcasts(shape, expected):
            raise _misfit(point, shape, expected)


def _misfit(point: Point, shape: Sequence[int], expected: Sequence[int]) -> EditError:
    return EditError(
        f"{point}: a value of shape {tuple(shape)} does not fit {tuple(expected)} "
        f"({', '.join(point.axes[: len(expected)])})."
    )


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    try:
        return torch.broadcast_shapes(tuple(shape), tuple(target)) == torch.Size(target)
    except RuntimeError:
        return False


def _shape(point: Point, config: Config, allowed: AllowedKeys) -> tuple[int, ...]:
    """The shape of the quantity at a point."""
    if point.name == "logits" and config.task == "pre-training" and config.family == "electra":
        return (allowed.batch, allowed.position)
    sizes = {
        "batch": allowed.batch,
        "head": len(point.head_list) or config.n_heads,
        "position": allowed.position,
        "query": allowed.position,
        "key": allowed.position,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_mlp": config.d_mlp,
        "vocab": _n_logits(config),
    }
    return tuple(sizes[axis] for axis in point.axes)


def _n_logits(config: Config) -> int:
    """What the task head gives for a token or a text."""
    if config.task == "none":
        return config.d_model
    if config.task in ("next-sentence", "question-answering"):
        return 2
    return config.n_labels if config.task.endswith("classification") else config.vocab_size


def _places(point: Point, edit: Edit) -> dict[int, list[int]]:
    """For each axis that an edit is limited on, the places that it reaches."""
    row = next((axis for axis in ("position", "query") if axis in point.axes), "position")
    limits = {"batch": edit.sentences, row: edit.positions}
    # Lists by now: Plan.of has seen to it.
    return {point.axes.index(a): list(p) for a, p in limits.items() if p is not None}  # type: ignore[arg-type]


def _chosen(point: Point, edit: Edit, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the places that an edit reaches, of a quantity of this shape."""
    places = _places(point, edit)
    return tuple(len(places[axis]) if axis in places else n for axis, n in enumerate(shape))


def _edited(point: Point, edit: Edit, value: Tensor) -> Tensor:
    """The quantity with one edit made."""
    if point.heads is None:
        return _limited(point, edit, value)
    heads = point.heads if isinstance(point.heads, int) else list(point.heads)
    changed = value.clone()
    changed[:, heads] = _limited(point, edit, value[:, heads])
    return changed


def _limited(point: Point, edit: Edit, part: Tensor) -> Tensor:
    """The new value of a quantity, or of its chosen heads, where the edit reaches."""
    limits = _places(point, edit)
    if not limits:
        return _fitted(point, _new_value(point, edit, part), part.shape)
    index = _index_of(part, limits)
    chosen = part[index]
    new = _new_value(point, edit, chosen)
    whole = _broadcasts(new.shape, part.shape)
    if whole and (edit.traces or not _broadcasts(new.shape, chosen.shape)):
        # A value for the whole quantity: the same places of it.
        new = new.expand(part.shape)[index]
    result = part.clone()
    result[index] = _fitted(point, new, chosen.shape)
    return result


def _index_of(part: Tensor, limits: dict[int, list[int]]) -> tuple[Any, ...]:
    """An index that keeps the axes in their order, however many of them are limited."""
    if len(limits) == 1:
        [(axis, places)] = limits.items()
        return (*[slice(None)] * axis, places)
    # Every axis spelled out, so that two lists mean rows x columns and not pairs.
    chosen = [limits.get(axis, list(range(size))) for axis, size in enumerate(part.shape)]
    grids = torch.meshgrid(
        *[torch.tensor(places, device=part.device) for places in chosen], indexing="ij"
    )
    return tuple(grids)


def _new_value(point: Point, edit: Edit, chosen: Tensor) -> Tensor:
    new = edit.change(point, chosen)
    if isinstance(new, int | float) and not isinstance(new, bool):
        return torch.as_tensor(new, dtype=chosen.dtype, device=chosen.device)
    if not isinstance(new, Tensor):
        raise EditError(f"{point}: expected a tensor or a number, found {new!r:.80}.")
    if new.dtype != chosen.dtype:
        raise _other_dtype(point, new.dtype, chosen.dtype)
    return new.to(chosen.device)


def _other_dtype(point: Point, found: torch.dtype, expected: torch.dtype) -> EditError:
    return EditError(
        f"{point}: the value is {found} and the quantity {expected}; "
        f"convert it with value.to({expected})."
    )


def _fitted(point: Point, new: Tensor, shape: torch.Size) -> Tensor:
    if not _broadcasts(new.shape, shape):
        raise _misfit(point, new.shape, shape)
    return new.expand(shape)
