"""Checked edits of a page as Python's `edit=`; engine_code.py writes the same as a program."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.quantities import QUANTITIES
from minibert.trace.edit import hide, mean, replace, zero
from minibert.trace.read import Trace
from minibert.viz.engine_edit_checks import WITHOUT_LAYER, EngineEdit

__all__ = [
    "PointKey",
    "by_point",
    "index_of",
    "is_plain",
    "needs",
    "python_edits",
    "set_weight",
    "weighed_queries",
]

PointKey = str | tuple[str, int] | tuple[str, int, int]
"""A key of Python's `edit=`."""


def needs(edits: Sequence[EngineEdit], change: str) -> bool:
    """True where one of the edits is that change: mean reads a pass without edits, text another."""
    return any(edit.change == change for edit in edits)


def by_point(edits: Sequence[EngineEdit], config: Config) -> dict[PointKey, list[EngineEdit]]:
    """The edits by the keys of Python's `edit=`; an edit of every layer has a key in each."""
    found: dict[PointKey, list[EngineEdit]] = {}
    for edit in edits:
        layers = range(config.n_layers) if edit.layer is None else (edit.layer,)
        keys: list[PointKey]
        if edit.quantity in WITHOUT_LAYER:
            keys = [edit.quantity]
        elif edit.head is None:
            keys = [(edit.quantity, layer) for layer in layers]
        else:
            keys = [(edit.quantity, layer, edit.head) for layer in layers]
        for key in keys:
            found.setdefault(key, []).append(edit)
    return found


def python_edits(
    edits: Sequence[EngineEdit],
    config: Config,
    *,
    clean: Trace | None = None,
    other: Trace | None = None,
) -> dict[PointKey, Any]:
    """The dictionary that `model.trace(edit=...)` and `trace.rerun` take.

    `clean` is the trace of the same text without edits, for mean, and `other` that of the other
    text. Several edits of one point are made one after the other, in their order. As everywhere,
    edits of a whole layer come before those of one head.
    """
    return {
        key: _plain(several, clean, other) or _Steps(key, tuple(several), config, clean, other)
        for key, several in by_point(edits, config).items()
    }


def is_plain(several: Sequence[EngineEdit]) -> bool:
    """True for one edit of whole rows, which a function of minibert.trace.edit makes."""
    (edit, *more) = several
    if more or edit.neuron is not None:
        return False
    if edit.change == "text" and edit.position is not None:
        # `replace` takes a trace of as many tokens.
        return False
    return edit.change == "hide" or edit.key is None


def _plain(several: Sequence[EngineEdit], clean: Trace | None, other: Trace | None) -> Any:
    """The edit of minibert.trace.edit, where it is one; else None."""
    if not is_plain(several):
        return None
    (edit,) = several
    if edit.change == "zero":
        return zero if edit.position is None else zero.at(positions=edit.position)
    if edit.change == "mean":
        return mean(clean, positions=edit.position)
    if edit.change == "text":
        return replace(other)
    if edit.change == "hide":
        return hide(edit.key, positions=edit.position)
    return replace(edit.value, positions=edit.position)


def index_of(edit: EngineEdit) -> tuple[int | slice, ...]:
    """The cells of the quantity that the edit is about; a single head has no axis."""
    axes = QUANTITIES[edit.quantity].axes
    last = edit.key if "key" in axes else edit.neuron
    front = len(axes) - 2 - (QUANTITIES[edit.quantity].per_head and edit.head is not None)
    places = [slice(None) if place is None else place for place in (edit.position, last)]
    if edit.quantity == "logits":
        # Of whole texts they have no position.
        return (slice(None),) if edit.position is None else (slice(None), edit.position)
    return (*[slice(None)] * front, *places)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Edits of one point, made one after the other on a copy of the quantity."""

    key: PointKey
    edits: tuple[EngineEdit, ...]
    config: Config
    clean: Trace | None
    other: Trace | None

    def __call__(self, value: Tensor) -> Tensor:
        """The quantity after the edits; it is changed in place."""
        for edit in self.edits:
            if edit.change == "set" and edit.quantity == "probs":
                assert edit.key is not None
                assert edit.value is not None
                queries = weighed_queries(edit, self.config, int(self.key[1]))
                set_weight(value, query=queries, key=edit.key, weight=edit.value)
            else:
                index = index_of(edit)
                value[index] = self._new(edit, value, index)
        return value

    def _new(
        self, edit: EngineEdit, value: Tensor, index: tuple[int | slice, ...]
    ) -> Tensor | float:
        if edit.change == "mean":
            axis = QUANTITIES[edit.quantity].axes.index("position") - (edit.head is not None)
            return self._of(self.clean).mean(axis, keepdim=True).expand_as(value)[index]
        if edit.change == "text":
            return self._of(self.other)[index]
        constants: dict[str, float | None] = {"zero": 0.0, "hide": -math.inf, "set": edit.value}
        constant = constants[edit.change]
        assert constant is not None
        return constant

    def _of(self, trace: Trace | None) -> Tensor:
        """The quantity of another trace."""
        assert trace is not None
        if isinstance(self.key, str):
            return getattr(trace, self.key).detach()
        name, *where = self.key
        place = trace[where[0]] if len(where) == 1 else trace[where[0], where[1]]
        return place.quantity(name).detach()


def weighed_queries(edit: EngineEdit, config: Config, layer: int) -> int | slice:
    """The queries of a layer whose weight an edit sets: those that see the key, and another one."""
    if edit.position is not None:
        return edit.position
    key, window = edit.key or 0, config.window(layer)
    first = key if config.causal else 0
    if window is None:
        return slice(max(first, 1), None) if config.causal else slice(None)
    before, after = window
    return slice(max(first, key - after, 1 if config.causal else 0), key + before + 1)


def set_weight(probs: Tensor, *, query: int | slice, key: int, weight: float) -> Tensor:
    """probs, changed in place: `weight` at the key, the others of the row scaled to sum to 1.

    probs (..., query, key). Of several queries, rows without another weight stay as they are.
    Raises EditError where all other weights of the row of one query are 0.
    """
    rows = probs[..., query, :]
    others = rows.clone()
    others[..., key] = 0
    total = others.sum(-1, keepdim=True)
    alone = total == 0
    if isinstance(query, int) and weight < 1 and bool(alone.any()):
        raise EditError(
            f"The weight of key {key} cannot be set: all other weights of query {query} are 0, so "
            "they cannot be scaled."
        )
    scaled = others * ((1 - weight) / torch.where(alone, 1, total))
    scaled[..., key] = weight
    probs[..., query, :] = torch.where(alone, rows, scaled)
    return probs
