"""Names and positions as TransformerLens' cache takes them; points.py says what stands behind."""

import operator
import re
from typing import Any

import numpy as np
from torch import Tensor

from minibert.errors import TraceError

# Shorthands and the names they stand for, and the part of a layer that each name belongs to.
_SHORT = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp_pre": "pre",
    "mlp_post": "post",
}
_LAYER_TYPES = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}
_ATTENTION = ("q", "k", "v", "rot_q", "rot_k", "z", "attn_scores", "pattern", "result")
_PLACES = dict.fromkeys(_ATTENTION, "attn") | dict.fromkeys(("pre", "pre_linear", "post"), "mlp")


class UnknownNameError(TraceError, KeyError):
    """A name that is not in the cache; a KeyError too, because a mapping's `get` expects that."""

    # KeyError would print the message in quotes.
    __str__ = Exception.__str__


def whole_name(key: object, n_layers: int) -> str | None:
    """The full name of (name, layer, layer_type), or of a string like "k3" or "scale0ln1".

    None for anything else. It follows TransformerLens' `utils.get_act_name`. Negative layers count
    from the end, as in its ActivationCache.
    """
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3:
        return None
    name, layer, layer_type = (*parts, None, None)[:3]
    if not isinstance(name, str) or not isinstance(layer_type, str | None):
        return None
    if layer is None and layer_type is None and ("." in name or name.startswith("hook_")):
        return name
    if written := re.match(r"([a-z]+)([0-9]+)(.*)", name):
        name, layer, layer_type = written[1], int(written[2]), written[3]
    if layer is not None:
        number = layer_number(layer)
        if number is None:
            return None
        layer = number + n_layers if number < 0 else number
    name = _SHORT.get(name, name)
    layer_type = _PLACES.get(name) or _LAYER_TYPES.get(layer_type, layer_type)
    before = "" if layer is None else f"blocks.{layer}."
    if layer is None and name in ("scale", "normalized"):
        before = "ln_final."
    return before + (f"{layer_type}." if layer_type else "") + f"hook_{name}"


def layer_number(value: Any) -> int | None:
    """The value as an int; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def taken(tensor: Tensor, given: object, axis: int) -> Tensor:
    """The tensor at some places of an axis.

    None takes all. An int takes one place and its axis goes. A tuple is (start, stop) or
    (start, stop, step). A list, an array or a tensor names the places.
    Raises TraceError for anything else.
    """
    place = slice(*given) if isinstance(given, tuple) and len(given) <= 3 else given
    if place is None:
        return tensor
    if isinstance(place, list):
        place = np.array(place, dtype=np.int64)
    if layer_number(place) is None and not isinstance(place, slice | np.ndarray | Tensor):
        raise TraceError(
            f"{given!r:.80} is not a slice; expected an int, a list of ints, (start, stop), a "
            "slice or None."
        )
    places: list[Any] = [slice(None)] * tensor.dim()
    places[axis] = place
    return tensor[tuple(places)]
