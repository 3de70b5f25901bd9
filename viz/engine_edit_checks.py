"""Edits as a page asks for them, in JSON (static/engine/engine.js, `Edit`), checked.

JSON -> `checked_edits` (every error names the edit) -> engine_edits.py -> `model.trace(edit=...)`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.quantities import QUANTITIES

__all__ = ["CHANGES", "MOST_EDITS", "OFF_PAGES", "WITHOUT_LAYER", "EngineEdit", "checked_edits"]

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
