"""What an edit has to fit: the model, the batch and what is computed of it.

Place: `Plan.of` asks everything here, before the pass starts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.call import AllowedKeys
from minibert.layers.config import Config
from minibert.trace.edit import Edit, Places, Point, check_each_once, index_in

__all__ = [
    "broadcasts",
    "check_constant",
    "check_hidden",
    "check_order",
    "check_traces",
    "check_until",
    "misfit",
    "other_dtype",
    "places_of",
    "with_places",
]


def check_until(point: Point, until: int | None) -> None:
    """Raise EditError for a point that a trace with `until` does not compute."""
    if until is None:
        return
    if point.layer is None and point.name == "logits":
        raise EditError(f"{point}: until={until} leaves the logits out.")
    if point.layer is not None and point.layer >= until:
        raise EditError(f"{point}: until={until} stops before it; edit layers below {until}.")


def check_order(points: Sequence[Point]) -> None:
    """Heads in two edits of as many heads each: the order of a dictionary is no order."""
    for number, point in enumerate(points):
        for other in points[:number]:
            same = (point.name, point.layer) == (other.name, other.layer)
            mine, theirs = point.head_list, other.head_list
            overlap = not mine or not set(mine).isdisjoint(theirs)
            if same and len(mine) == len(theirs) and overlap:
                raise EditError(f"{other} and {point} name the same place; which is the last word?")


def with_places(point: Point, edit: Edit, allowed: AllowedKeys) -> Edit:
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
    if isinstance(places, Tensor | np.ndarray):
        places = places.tolist()
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


def check_constant(
    point: Point, edit: Edit, config: Config, allowed: AllowedKeys, dtype: torch.dtype
) -> None:
    """Raise EditError for a constant that is no number, not finite, or does not fit."""
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
        raise other_dtype(point, value.dtype, dtype)
    if value.is_meta:
        raise EditError(f"{point}: the value is on the meta device and has no numbers.")
    if not bool(value.isfinite().all()):
        raise EditError(f"{point}: the value holds NaN or infinite numbers.")
    whole = _shape(point, config, allowed)
    if not any(broadcasts(value.shape, shape) for shape in (_chosen(point, edit, whole), whole)):
        raise misfit(point, value.shape, whole)


def check_hidden(point: Point, edit: Edit, allowed: AllowedKeys) -> None:
    """Raise EditError for hidden keys of what has no keys, or where a query would see none."""
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


def check_traces(point: Point, edit: Edit, config: Config, allowed: AllowedKeys) -> None:
    """Raise EditError for a trace that does not have the quantity, or in another shape."""
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
        if other or not broadcasts(shape, expected):
            raise misfit(point, shape, expected)


def misfit(point: Point, shape: Sequence[int], expected: Sequence[int]) -> EditError:
    """The error for a value of another shape."""
    return EditError(
        f"{point}: a value of shape {tuple(shape)} does not fit {tuple(expected)} "
        f"({', '.join(point.axes[: len(expected)])})."
    )


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """True where a value of this shape fills the target."""
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


def places_of(point: Point, edit: Edit) -> dict[int, list[int]]:
    """For each axis that an edit is limited on, the places that it reaches."""
    row = next((axis for axis in ("position", "query") if axis in point.axes), "position")
    limits = {"batch": edit.sentences, row: edit.positions}
    # Lists by now: Plan.of has seen to it.
    return {point.axes.index(a): list(p) for a, p in limits.items() if p is not None}  # type: ignore[arg-type]


def _chosen(point: Point, edit: Edit, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the places that an edit reaches, of a quantity of this shape."""
    places = places_of(point, edit)
    return tuple(len(places[axis]) if axis in places else n for axis, n in enumerate(shape))


def other_dtype(point: Point, found: torch.dtype, expected: torch.dtype) -> EditError:
    """The error for a value of another dtype."""
    return EditError(
        f"{point}: the value is {found} and the quantity {expected}; "
        f"convert it with value.to({expected})."
    )
