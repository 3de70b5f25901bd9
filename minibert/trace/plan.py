"""Edits, checked against a model and a batch, and then applied in the order of the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.layer_pass import Change
from minibert.trace.edit import Edit, as_edit
from minibert.trace.edit_checks import (
    broadcasts,
    check_constant,
    check_divides,
    check_hidden,
    check_order,
    check_packed,
    check_traces,
    check_until,
    misfit,
    other_dtype,
)
from minibert.trace.places import Places
from minibert.trace.point import Point, as_point
from minibert.trace.reach import Reach

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """The edits of one forward pass, by layer (None: of no layer), and where each reaches."""

    edits: tuple[tuple[Point, Edit, Reach], ...] = ()

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
        places = Places.of(allowed)
        points, found = [], []
        for key, value in mapping.items():
            point = as_point(key, config)
            check_until(point, until)
            points.append(point)
            several = [as_edit(one) for one in _several(point, value)]
            reached = [(edit, Reach.of(point, edit, places)) for edit in several]
            for edit, reach in reached:
                check_packed(point, edit, allowed)
                check_constant(point, edit, reach, config, allowed, dtype)
                check_traces(point, edit, config, allowed)
            check_hidden(point, reached, config, allowed)
            found += [(point, edit, reach) for edit, reach in reached]
        # Edits of a whole layer come first and those of single heads last: they are more specific.
        found.sort(key=lambda entry: len(entry[0].head_list) or math.inf, reverse=True)
        check_order(points)
        return cls(tuple(found))

    def names(self, layer: int | None) -> frozenset[str]:
        """The quantities of a layer that are edited."""
        return frozenset(point.name for point, _, _ in self.edits if point.layer == layer)

    def of_layer(self, layer: int) -> dict[str, Change]:
        """What to do to the quantities of a layer, by name."""
        return {name: self.change_of(name, layer) for name in self.names(layer)}

    def change_of(self, name: str, layer: int | None) -> Change:
        """A function that gives a quantity after all edits of it."""
        return lambda value: self.apply(name, layer, value)

    @property
    def behind_layers(self) -> dict[str, Change]:
        """What to do to the quantities that are computed once every layer is, by name."""
        return {name: self.change_of(name, None) for name in self.names(None) - {"embed"}}

    @property
    def first_layer(self) -> int | None:
        """The lowest layer in which something changes; None where only what is behind them does."""
        if "embed" in self.names(None):
            return 0
        return min((p.layer for p, _, _ in self.edits if p.layer is not None), default=None)

    @property
    def first_position(self) -> int:
        """The first position at which something in a layer changes."""
        starts = [reach.first for point, _, reach in self.edits if not point.behind_layers]
        return min(starts, default=0)

    def apply(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        """The quantity after all edits of it; the tensor given is left as it is."""
        for point, edit, reach in self.edits:
            if point.name == name and point.layer == layer:
                before, value = value, _edited(point, edit, reach, value)
                check_divides(point, value, before)
                # Nobody looks at padding, and z is what these rows say.
                value = reach.places.without_padding(value) if name == "probs" else value
        return value


def _several(point: Point, value: Any) -> Sequence[Any]:
    """The edits of one place, in their order: a list of them, or one alone."""
    if not isinstance(value, list | tuple):
        return [value]
    # A list of numbers is meant as a tensor.
    if not value or not all(isinstance(one, Edit) or callable(one) for one in value):
        raise EditError(
            f"{point}: this {type(value).__name__} is not an edit; expected a tensor for numbers, "
            "or a list of at least one edit, as [hide(2), hide(5, positions=-1)]."
        )
    return value


def _edited(point: Point, edit: Edit, reach: Reach, value: Tensor) -> Tensor:
    """The quantity with one edit made."""
    if point.heads is None:
        return _limited(point, edit, reach, value)
    heads = point.heads if isinstance(point.heads, int) else list(point.heads)
    changed = value.clone()
    changed[:, heads] = _limited(point, edit, reach, value[:, heads])
    return changed


def _limited(point: Point, edit: Edit, reach: Reach, part: Tensor) -> Tensor:
    """The new value of a quantity, or of its chosen heads, where the edit reaches."""
    if edit.hidden is not None:
        return part.masked_fill(reach.hidden_cells(part), -math.inf)
    if reach.everywhere:
        return _fitted(point, _new_value(point, edit, part), part.shape)
    result = part.clone()
    indices = reach.indices(point.axes, part)
    for number, index in enumerate(indices):
        chosen = part[index]
        new = _new_value(point, edit, chosen)
        if len(indices) > 1 and _one_each(new, chosen, len(indices)):
            # A value for each sentence: this one's.
            new = new[number : number + 1]
        if broadcasts(new.shape, part.shape) and (
            edit.traces or not broadcasts(new.shape, chosen.shape)
        ):
            # A value for the whole quantity: the same places of it.
            new = new.expand(part.shape)[index]
        result[index] = _fitted(point, new, chosen.shape)
    return result


def _one_each(new: Tensor, chosen: Tensor, n_sentences: int) -> bool:
    """True for values of as many sentences, each of them shaped as what is chosen of one."""
    if new.dim() != chosen.dim() or new.shape[0] != n_sentences:
        return False
    return broadcasts(new.shape[1:], chosen.shape[1:])


def _new_value(point: Point, edit: Edit, chosen: Tensor) -> Tensor:
    new = edit.change(point, chosen)
    if isinstance(new, int | float) and not isinstance(new, bool):
        return torch.as_tensor(new, dtype=chosen.dtype, device=chosen.device)
    if not isinstance(new, Tensor):
        raise EditError(f"{point}: expected a tensor or a number, found {new!r:.80}.")
    if new.dtype != chosen.dtype:
        raise other_dtype(point, new.dtype, chosen.dtype)
    return new.to(chosen.device)


def _fitted(point: Point, new: Tensor, shape: Sequence[int]) -> Tensor:
    if not broadcasts(new.shape, shape):
        raise misfit(point, new.shape, shape)
    return new.expand(tuple(shape))
