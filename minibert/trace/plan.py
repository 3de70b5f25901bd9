"""Edits, checked against a model and a batch, and then applied in the order of the data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.call import AllowedKeys
from minibert.layers.config import Config
from minibert.trace.edit import Edit, Point, as_edit, as_point
from minibert.trace.edit_checks import (
    broadcasts,
    check_constant,
    check_hidden,
    check_order,
    check_traces,
    check_until,
    misfit,
    other_dtype,
    places_of,
    with_places,
)

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
            check_until(point, until)
            edit = with_places(point, as_edit(value), allowed)
            check_constant(point, edit, config, allowed, dtype)
            check_hidden(point, edit, allowed)
            check_traces(point, edit, config, allowed)
            found.append((point, edit))
        # Whole layers, then several heads, then one: who names fewer knows better.
        found.sort(key=lambda entry: len(entry[0].head_list) or math.inf, reverse=True)
        check_order([point for point, _ in found])
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
    limits = places_of(point, edit)
    if not limits:
        return _fitted(point, _new_value(point, edit, part), part.shape)
    index = _index_of(part, limits)
    chosen = part[index]
    new = _new_value(point, edit, chosen)
    whole = broadcasts(new.shape, part.shape)
    if whole and (edit.traces or not broadcasts(new.shape, chosen.shape)):
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
        raise other_dtype(point, new.dtype, chosen.dtype)
    return new.to(chosen.device)


def _fitted(point: Point, new: Tensor, shape: torch.Size) -> Tensor:
    if not broadcasts(new.shape, shape):
        raise misfit(point, new.shape, shape)
    return new.expand(shape)
