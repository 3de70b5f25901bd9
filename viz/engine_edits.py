"""Edits as a page asks for them, in JSON (static/engine/engine.js, `Edit`).

JSON -> `checked_edits` (every error names the edit) -> `python_edits` -> `model.trace(edit=...)`

`editable` is what both engines check an edit by: the one in a page gets it as JSON.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.layers.config import Config, predicts_tokens
from minibert.layers.layer import absent_because
from minibert.quantities import QUANTITIES
from minibert.trace.edit import Change, Constant, Edit, FromTrace, Point, hide, zeros
from minibert.trace.read import Trace

CHANGES = ("zero", "mean", "text", "set", "hide")
MOST_EDITS = 1000
_MATRICES = ("scores", "probs")
WITHOUT_LAYER = ("embed", "logits")
# static/engine does not compute these: what norms divide by, the inputs of single heads, and what
# comes after the layers.
OFF_PAGES = frozenset(
    {"mask", "pooled", "final_norm_scale"}
    | {name for name in QUANTITIES if name.endswith(("_norm_scale", "_input"))}
)
# Why a quantity, which is put in, cannot have a change.
REFUSED_CHANGES = {
    "mean": "each row of {} belongs to one query, so a mean over positions says nothing; take "
    "zero, set or text.",
    "hide": "hide takes a key out of scores; expected quantity scores and a key.",
}


@dataclass(frozen=True)
class EngineEdit:
    """One change; what is None means all of them. The fields are those of engine.js."""

    quantity: str
    change: str
    layer: int | None = None
    head: int | None = None
    position: int | None = None
    key: int | None = None
    neuron: int | None = None
    value: float | None = None


_FIELDS = tuple(field.name for field in fields(EngineEdit))


class Editable(TypedDict):
    """What an edit of one quantity may name.

    axes     without the batch
    places   how many there are of each; 0: it has none; None: as many as tokens
    refused  why it cannot have a change, by change
    """

    axes: tuple[str, ...]
    places: dict[str, int | None]
    refused: dict[str, str]


def editable(config: Config) -> dict[str, Editable]:
    """The quantities of a model that a page may read and edit, in the order of the data."""
    names = [name for name in QUANTITIES if name not in OFF_PAGES | config.absent_quantities]
    return {name: _editable(name, config) for name in names}


def _editable(name: str, config: Config) -> Editable:
    axes = QUANTITIES[name].axes
    of_text = name == "logits" and config.task in ("next-sentence", "sequence-classification")
    n_labels = config.n_labels if config.task == "sequence-classification" else 0
    sizes = {
        "head": config.n_heads,
        "kv_head": config.n_kv_heads,
        "d_head": config.d_head,
        "d_model": config.d_model,
        "d_mlp": config.d_mlp,
        # A place of logits is a token or a class; those of other heads are not shown.
        "vocab": config.vocab_size if predicts_tokens(config.family, config.task) else n_labels,
    }
    refused = {"hide"} - ({"hide"} if name == "scores" else set())
    refused |= {"mean"} if name in _MATRICES else set()
    return {
        "axes": axes[1:],
        "places": {
            "layer": 0 if name in WITHOUT_LAYER else config.n_layers,
            "head": next((sizes[axis] for axis in axes if axis in ("head", "kv_head")), 0),
            "position": 0 if of_text else None,
            "key": None if "key" in axes else 0,
            "neuron": sizes.get(axes[-1], 0),
        },
        "refused": {change: REFUSED_CHANGES[change].format(name) for change in sorted(refused)},
    }


def checked_edits(
    given: object, config: Config, n_tokens: int, n_other: int | None = None
) -> list[EngineEdit]:
    """The edits of a request for a text of `n_tokens` tokens, in their order.

    `n_other` are the tokens of the other text, None where there is none. Raises EditError naming
    the edit by its place, from 1, and what was expected: a field that engine.js does not have, a
    quantity, layer, head, position, key or neuron that the model or the text does not have, and a
    change that the quantity cannot have.
    """
    if not isinstance(given, list):
        raise EditError(f"edits: expected a list, found {type(given).__name__}.")
    if len(given) > MOST_EDITS:
        raise EditError(f"There are {len(given)} edits; expected at most {MOST_EDITS}.")
    quantities = editable(config)
    found = []
    for number, one in enumerate(given, 1):
        edit = _read(one, f"Edit {number}")
        where = f"Edit {number} ({edit.change} {edit.quantity})"
        if edit.quantity not in quantities:
            raise EditError(f"{where}: {absent_because(edit.quantity, config)}")
        _check_place(edit, where, quantities[edit.quantity]["places"], n_tokens)
        _check_change(edit, where, quantities[edit.quantity]["refused"])
        if edit.change == "text":
            _check_other(edit, where, n_tokens, n_other)
        if edit.change == "set" and edit.quantity == "probs":
            _check_weight(edit, where, config, n_tokens)
        found.append(edit)
    return found


def _read(one: object, where: str) -> EngineEdit:
    """The edit with the right fields and types."""
    if not isinstance(one, Mapping):
        raise EditError(f"{where}: expected an object with quantity and change, found {one!r:.80}.")
    unknown = sorted(set(map(str, one)) - set(_FIELDS))
    if unknown:
        raise EditError(f"{where}: no field {unknown[0]:.80}; expected {_listed(_FIELDS)}.")
    quantities = [name for name in QUANTITIES if name not in OFF_PAGES]
    for name, known in (("quantity", quantities), ("change", CHANGES)):
        if one.get(name) not in known:
            raise EditError(f"{where}: {name} is {one.get(name)!r:.80}; expected {_listed(known)}.")
    value = one.get("value")
    if value is not None:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if real and abs(value) < 1e300 else math.nan
        if not math.isfinite(value):
            raise EditError(f"{where}: value is {one['value']!r:.80}; expected a finite number.")
    numbers = {name: _whole(one.get(name), name, where) for name in _FIELDS[2:-1]}
    return EngineEdit(one["quantity"], one["change"], **numbers, value=value)


def _whole(number: object, name: str, where: str) -> int | None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise EditError(f"{where}: {name} is {number!r:.80}; expected a whole number or null.")
    return number


def _check_place(
    edit: EngineEdit, where: str, places: Mapping[str, int | None], n_tokens: int
) -> None:
    """Raise EditError for a place that the model or the text does not have."""
    for name, count in places.items():
        number, size = getattr(edit, name), n_tokens if count is None else count
        if number is None:
            continue
        if not size:
            raise EditError(f"{where}: {edit.quantity} has no {name}; leave {name} out.")
        if not 0 <= number < size:
            raise EditError(f"{where}: there is no {name} {number}; expected 0 to {size - 1}.")


def _check_change(edit: EngineEdit, where: str, refused: Mapping[str, str]) -> None:
    """Raise EditError for a change that this quantity cannot have."""
    if (edit.value is None) == (edit.change == "set"):
        wanted = "needs a value" if edit.change == "set" else "takes no value"
        raise EditError(f"{where}: {edit.change} {wanted}.")
    if edit.change in refused:
        raise EditError(f"{where}: {refused[edit.change]}")
    if edit.change == "hide" and edit.key is None:
        raise EditError(f"{where}: {REFUSED_CHANGES['hide']}")


def _check_other(edit: EngineEdit, where: str, n_tokens: int, n_other: int | None) -> None:
    """Raise EditError where the other text does not have the places that are read."""
    if n_other is None:
        raise EditError(f"{where}: it reads another text; give `other`.")
    # A single place of both texts can be the same one where their lengths are not.
    if edit.position is None or edit.quantity in _MATRICES:
        if n_other != n_tokens:
            raise EditError(
                f"{where}: the other text has {n_other} tokens and this one {n_tokens}. Values are "
                "read from the same positions: both need as many tokens, or the edit a position."
            )
    elif edit.position >= n_other:
        raise EditError(
            f"{where}: the other text has {n_other} tokens and no position {edit.position}."
        )


def _check_weight(edit: EngineEdit, where: str, config: Config, n_tokens: int) -> None:
    if edit.key is None or edit.value is None or not 0 <= edit.value <= 1:
        raise EditError(f"{where}: a weight needs a key, and a value from 0 to 1.")
    if edit.position is None:
        return
    if config.causal and edit.key > edit.position:
        raise EditError(
            f"{where}: the query at position {edit.position} does not look at key {edit.key}, "
            "because the model is causal; expected a key up to the query's own position."
        )
    for layer in range(config.n_layers) if edit.layer is None else (edit.layer,):
        first, end = seen_keys(config, layer, edit.position, n_tokens)
        if not first <= edit.key < end:
            raise EditError(
                f"{where}: the query at position {edit.position} does not look at key {edit.key} "
                f"of layer {layer}, outside its window; expected a key from {first} to {end - 1}."
            )
        if end - first == 1:
            raise EditError(f"{where}: query {edit.position} looks at one key, of weight 1.")


def seen_keys(config: Config, layer: int, query: int, n_tokens: int) -> tuple[int, int]:
    """The first key that a query looks at, and the first after the last one."""
    before, after = config.window(layer) or (n_tokens, n_tokens)
    last = query if config.causal else min(query + after, n_tokens - 1)
    return max(query - before, 0), last + 1


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"


PointKey = str | tuple[str, int] | tuple[str, int, int]
"""A key of Python's `edit=`."""
EditMap = dict[PointKey, list[Edit]]


def needs(edits: Sequence[EngineEdit], change: str) -> bool:
    """True where one of the edits is that change: mean reads a pass without edits, text another."""
    return any(edit.change == change for edit in edits)


def python_edits(
    edits: Sequence[EngineEdit],
    config: Config,
    *,
    clean: Trace | None = None,
    other: Trace | None = None,
) -> EditMap:
    """The dictionary that `model.trace(edit=...)` and `trace.rerun` take.

    `clean` is the trace of the same text without edits, for mean, and `other` that of the other
    text. Several edits of one point are made one after the other, in their order; an edit of every
    layer is one in each. As everywhere, edits of a whole layer come before those of one head.
    """
    found: EditMap = {}
    for edit in edits:
        layers = range(config.n_layers) if edit.layer is None else (edit.layer,)
        for layer in layers[:1] if edit.quantity in WITHOUT_LAYER else layers:
            key: PointKey = (edit.quantity, layer)
            if edit.quantity in WITHOUT_LAYER:
                key = edit.quantity
            elif edit.head is not None:
                key = (edit.quantity, layer, edit.head)
            found.setdefault(key, []).append(_python_edit(edit, config, layer, clean, other))
    return found


def _python_edit(
    edit: EngineEdit, config: Config, layer: int, clean: Trace | None, other: Trace | None
) -> Edit:
    """One edit of a layer, as minibert.trace.edit has it."""
    if edit.change == "hide":
        return hide(edit.key, positions=edit.position)
    if edit.change == "set" and edit.quantity == "probs":
        assert edit.key is not None
        assert edit.value is not None
        return Edit(_SetWeight(weighed_queries(edit, config, layer), edit.key, edit.value))
    changes: dict[str, Change] = {
        "zero": zeros,
        "mean": FromTrace(() if clean is None else (clean,), averages=True),
        "text": FromTrace(() if other is None else (other,)),
        "set": Constant(edit.value),
    }
    last = edit.neuron if edit.key is None else edit.key
    return Edit(changes[edit.change], edit.position, entries=last)


@dataclass(frozen=True)
class _SetWeight:
    """The weight of one key for one query, or for several."""

    query: int | slice
    key: int
    weight: float

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """probs with that weight."""
        return set_weight(value.clone(), query=self.query, key=self.key, weight=self.weight)


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
