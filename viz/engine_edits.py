"""Edits as a page asks for them, in JSON (static/engine/engine.js, `Edit`).

JSON -> `checked_edits` (every error names the edit) -> `python_edits` -> `model.trace(edit=...)`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.quantities import QUANTITIES
from minibert.trace.edit import hide, mean, replace, zero
from minibert.trace.read import Trace

CHANGES = ("zero", "mean", "text", "set", "hide")
MOST_EDITS = 1000
_MATRICES = ("scores", "probs")
WITHOUT_LAYER = ("embed", "logits")
# static/engine does not compute these: what norms divide by, the inputs of single heads, and what
# stands behind the layers.
OFF_PAGES = frozenset(
    {"mask", "pooled", "final_norm_scale"}
    | {name for name in QUANTITIES if name.endswith(("_norm_scale", "_input"))}
)


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


def checked_edits(
    given: Any, config: Config, n_tokens: int, n_other: int | None = None
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
    found = []
    for number, one in enumerate(given, 1):
        edit = _read(one, f"Edit {number}")
        where = f"Edit {number} ({edit.change} {edit.quantity})"
        _check_place(edit, where, config, n_tokens)
        _check_change(edit, where, config, n_tokens, n_other)
        found.append(edit)
    return found


def _read(one: Any, where: str) -> EngineEdit:
    """The edit with the right fields and types."""
    if not isinstance(one, Mapping):
        raise EditError(f"{where}: expected an object with quantity and change, found {one!r:.80}.")
    unknown = sorted(set(map(str, one)) - set(_FIELDS))
    if unknown:
        raise EditError(
            f"{where}: there is no field {unknown[0]:.80}; expected {_listed(_FIELDS)}."
        )
    quantities = [name for name in QUANTITIES if name not in OFF_PAGES]
    for name, known in (("quantity", quantities), ("change", CHANGES)):
        if one.get(name) not in known:
            raise EditError(f"{where}: {name} is {one.get(name)!r:.80}; expected {_listed(known)}.")
    value = one.get("value")
    if value is not None:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if whole and abs(value) < 1e300 else math.nan
        if not math.isfinite(value):
            raise EditError(f"{where}: value is {one['value']!r:.80}; expected a finite number.")
    numbers = {name: _whole(one.get(name), name, where) for name in _FIELDS[2:-1]}
    return EngineEdit(one["quantity"], one["change"], **numbers, value=value)


def _whole(number: Any, name: str, where: str) -> int | None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise EditError(f"{where}: {name} is {number!r:.80}; expected a whole number or null.")
    return number


def _check_place(edit: EngineEdit, where: str, config: Config, n_tokens: int) -> None:
    """Raise EditError for a place that the model or the text does not have."""
    if edit.quantity in config.absent_quantities:
        raise EditError(f"{where}: {absent_because(edit.quantity, config)}")
    axes = QUANTITIES[edit.quantity].axes
    heads = {"head": config.n_heads, "kv_head": config.n_kv_heads}
    of_text = edit.quantity == "logits" and config.task in (
        "next-sentence",
        "sequence-classification",
    )
    last = {"d_head": config.d_head, "d_model": config.d_model, "d_mlp": config.d_mlp}
    sizes = {
        "layer": 0 if edit.quantity in WITHOUT_LAYER else config.n_layers,
        "head": next((heads[axis] for axis in axes if axis in heads), 0),
        "position": 0 if of_text else n_tokens,
        "key": n_tokens if "key" in axes else 0,
        # Of logits a place is a token or a class, which depends on the task.
        "neuron": last.get(axes[-1], 0),
    }
    for name, size in sizes.items():
        number = getattr(edit, name)
        if number is None:
            continue
        if not size:
            raise EditError(f"{where}: {edit.quantity} has no {name}; leave {name} out.")
        if not 0 <= number < size:
            raise EditError(f"{where}: there is no {name} {number}; expected 0 to {size - 1}.")


def _check_change(
    edit: EngineEdit, where: str, config: Config, n_tokens: int, n_other: int | None
) -> None:
    """Raise EditError for a change that this quantity, or this request, cannot have."""
    if (edit.value is None) == (edit.change == "set"):
        wanted = "needs a value" if edit.change == "set" else "takes no value"
        raise EditError(f"{where}: {edit.change} {wanted}.")
    if edit.change == "hide" and (edit.quantity != "scores" or edit.key is None):
        raise EditError(
            f"{where}: hide takes a key out of scores; expected quantity scores and a key."
        )
    if edit.change == "mean" and edit.quantity in _MATRICES:
        raise EditError(
            f"{where}: each row of {edit.quantity} belongs to one query, so a mean over positions "
            "says nothing; take zero, set or text."
        )
    if edit.change == "text":
        if n_other is None:
            raise EditError(f"{where}: it reads another text; give `other`.")
        # A single place of both texts can be the same one where their lengths are not.
        single = edit.position is not None and edit.quantity not in _MATRICES
        if single and edit.position is not None and edit.position >= n_other:
            raise EditError(
                f"{where}: the other text has {n_other} tokens and no position {edit.position}."
            )
        if n_other != n_tokens and not single:
            raise EditError(
                f"{where}: the other text has {n_other} tokens and this one {n_tokens}. Values are "
                "read from the same positions, so both need the same number of tokens, or the edit "
                "a position."
            )
    if edit.change == "set" and edit.quantity == "probs":
        _check_weight(edit, where, config, n_tokens)


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
                f"of layer {layer}, because that layer has a window; expected a key from {first} "
                f"to {end - 1}."
            )
        if end - first == 1:
            raise EditError(
                f"{where}: the query at position {edit.position} looks at one key alone, and the "
                "weights of a row sum to 1."
            )


def seen_keys(config: Config, layer: int, query: int, n_tokens: int) -> tuple[int, int]:
    """The first key that a query looks at, and the first behind them."""
    before, after = config.window(layer) or (n_tokens, n_tokens)
    last = query if config.causal else min(query + after, n_tokens - 1)
    return max(query - before, 0), last + 1


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"


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
