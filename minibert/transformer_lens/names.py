"""Names and slices as TransformerLens' cache takes them; points.py says what stands behind a name.

whole_name   the full name of a shorthand, as ("pattern", 1) or "k3"
Slice        what is taken of one axis, in all the forms that its cache takes
"""

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
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


def whole_name(key: Any, n_layers: int) -> str | None:
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


class Slice:
    """What is taken of one axis.

    None takes all. An int takes one place and its axis goes. A tuple is (start, stop) or
    (start, stop, step). A list, an array or a tensor names the places.
    Raises TraceError for anything else.
    """

    def __init__(self, input_slice: Any = None) -> None:
        self.slice, self.mode = _read(input_slice)

    def apply(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensor at these places of the axis `dim`."""
        if self.mode == "identity":
            return tensor
        places: list[Any] = [slice(None)] * tensor.dim()
        places[dim] = self.slice
        return tensor[tuple(places)]

    def indices(self, max_ctx: int | None = None) -> NDArray[np.int64]:
        """The places taken of an axis of that size. An int needs no size."""
        if self.mode == "int":
            return np.array([self.slice], dtype=np.int64)
        if max_ctx is None:
            raise TraceError(f"{self!r}.indices() was called without the size of the axis.")
        return np.arange(max_ctx, dtype=np.int64)[self.slice]

    @property
    def keeping_axis(self) -> "Slice":
        """The same, but an int takes one place and its axis stays."""
        return Slice([self.slice]) if self.mode == "int" else self

    @classmethod
    def unwrap(cls, slice_input: Any) -> "Slice":
        """A Slice that keeps the axis, of whatever a slice can be given as."""
        return slice_input if isinstance(slice_input, Slice) else cls(slice_input).keeping_axis

    def __repr__(self) -> str:
        return f"Slice({self.slice!r})"


def as_slice(given: Any) -> Slice:
    """The Slice, made of what stands for one where it is none."""
    return given if isinstance(given, Slice) else Slice(given)


def _read(given: Any) -> tuple[Any, str]:
    if given is None:
        return slice(None), "identity"
    if isinstance(given, bool):
        raise TraceError(f"{given} is no slice; expected an int, list, tuple, slice or None.")
    if isinstance(given, int | np.integer):
        return int(given), "int"
    if isinstance(given, slice):
        return given, "slice"
    if isinstance(given, tuple) and len(given) <= 3:
        return slice(*given), "slice"
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy(), "array"
    if isinstance(given, np.ndarray):
        return given, "array"
    if isinstance(given, Sequence) and not isinstance(given, str | tuple):
        return np.array(given, dtype=np.int64 if not len(given) else None), "array"
    raise TraceError(
        f"{given!r:.80} is no slice; expected an int, a list of ints, (start, stop), a slice or "
        "None."
    )
