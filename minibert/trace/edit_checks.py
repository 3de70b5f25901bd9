"""Checks that edits fit the model and the batch; `Plan.of` makes them before the pass starts."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.layers.families import discriminates
from minibert.trace.edit import Edit
from minibert.trace.places import Places
from minibert.trace.point import Point
from minibert.trace.reach import Reach

__all__ = [
    "broadcasts",
    "check_constant",
    "check_divides",
    "check_hidden",
    "check_order",
    "check_packed",
    "check_traces",
    "check_until",
    "misfit",
    "other_dtype",
]


def check_until(point: Point, until: int | None) -> None:
    """Raise EditError for a point that a trace with this `until` does not compute."""
    if until is None:
        return
    if point.behind_layers:
        raise EditError(f"{point}: a trace with until={until} has no {point.name}.")
    if point.layer is not None and point.layer >= until:
        raise EditError(f"{point}: until={until} stops before it; edit layers below {until}.")


def check_order(points: Sequence[Point]) -> None:
    """Raise EditError where two edits name the same head and equally many heads."""
    for number, point in enumerate(points):
        for other in points[:number]:
            same = (point.name, point.layer) == (other.name, other.layer)
            mine, theirs = point.head_list, other.head_list
            overlap = not mine or not set(mine).isdisjoint(theirs)
            if same and len(mine) == len(theirs) and overlap:
                raise EditError(
                    f"Two edits overlap, {other} and {point}: merge them into one, or name whole "
                    "layers in one and single heads in the other. "
                    "See docs/reading.md#write-what-you-read"
                )


def check_packed(point: Point, edit: Edit, allowed: AllowedKeys) -> None:
    """Raise EditError for what packed sentences, or those of different lengths, cannot have."""
    if allowed.packed is not None and "query" in point.axes:
        raise EditError(
            f"{point}: packed sentences have no such matrix. Trace them without packed=True. "
            "See docs/reading.md#many-texts"
        )
    if allowed.packed is not None and point.name == "pooled":
        raise EditError(
            f"{point}: packed sentences share a row of the batch, and pooled is one of each "
            "sentence. Trace them without packed=True."
        )
    ragged = allowed.lengths is not None and "query" in point.axes
    if edit.drawn and (allowed.packed is not None or ragged):
        raise EditError(
            f"{point}: noise here would depend on the other sentences of the batch. Trace the "
            "sentences one by one."
        )


def check_constant(
    point: Point,
    edit: Edit,
    reach: Reach,
    config: Config,
    allowed: AllowedKeys,
    dtype: torch.dtype,
) -> None:
    """Raise EditError for a constant that is not a number, not finite, or of the wrong shape."""
    value = edit.constant
    if value is None:
        return
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= torch.finfo(dtype).max:
            raise EditError(f"{point}: {value} is not a finite number in {dtype}.")
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
    shapes = (reach.shape(point.axes, whole), whole)
    if not any(broadcasts(value.shape, shape) for shape in shapes):
        raise misfit(point, value.shape, whole)


def check_divides(point: Point, value: Tensor, before: Tensor) -> None:
    """Raise EditError where an edit wrote what a norm cannot divide by: 0, nan, or nearly 0."""
    if not point.name.endswith("_norm_scale"):
        return
    scale = value.detach()
    scale = scale.float() if scale.dtype.itemsize < 4 else scale
    # Before the first position that a sweep computes there are zeros, which nobody reads.
    wrong = (~(1 / scale).isfinite() & (value != before)).nonzero()
    if len(wrong):
        sentence, position, _ = wrong[0].tolist()
        raise EditError(
            f"{point}: the norm divides by this, and the edit made "
            f"{scale[sentence, position].item():g} of it at position {position} of sentence "
            f"{sentence}; expected numbers whose reciprocal is finite in {scale.dtype}. To take "
            "away what reads the norm, edit that: z or mlp_out."
        )


def check_hidden(
    point: Point, reached: Sequence[tuple[Edit, Reach]], config: Config, allowed: AllowedKeys
) -> None:
    """Raise EditError for keys hidden in another quantity than scores, or a query without keys."""
    hides = [reach for edit, reach in reached if edit.hidden is not None]
    if not hides:
        return
    if point.name != "scores":
        raise EditError(f'{point}: hide edits scores only; write ("scores", layer): hide(keys).')
    before, after = config.window(point.layer or 0) or (None, None)
    for sentence, row, keys, length in _hidden_rows(hides):
        left = [key for key in range(length) if key not in keys]
        first = 0 if before is None else row - before
        last = row if allowed.causal else length - 1 if after is None else row + after
        seen = bisect_left(left, first)
        if seen == len(left) or left[seen] > last:
            raise EditError(
                f"{point}: without keys {sorted(keys)} the query at position {row} of sentence "
                f"{sentence} has no key left to attend to. Limit the edit with "
                "hide(keys, positions=...)."
            )


def _hidden_rows(hides: Sequence[Reach]) -> Iterator[tuple[int, int, set[int], int]]:
    """Each sentence and query with hidden keys, all of these keys, and the sentence's length."""
    found: dict[tuple[int, int], set[int]] = {}
    for reach in hides:
        assert reach.keys is not None
        for number, sentence in enumerate(reach.sentences):
            length = reach.places.lengths[sentence]
            rows = range(length) if reach.positions is None else reach.positions[number]
            for row in rows:
                found.setdefault((sentence, row), set()).update(reach.keys[number])
    for (sentence, row), keys in found.items():
        yield sentence, row, keys, hides[0].places.lengths[sentence]


def check_traces(point: Point, edit: Edit, config: Config, allowed: AllowedKeys) -> None:
    """Raise EditError for a trace without the quantity, or with another shape of it."""
    expected = _shape(point, config, allowed)
    for trace in edit.traces:
        if point.behind_layers and trace.until is not None:
            raise EditError(
                f"{point}: the trace to read from has until={trace.until}, so it has no "
                f"{point.name}."
            )
        if point.layer is not None and point.layer >= len(trace):
            raise EditError(f"{point}: the trace to read from has {len(trace)} layers.")
        sizes = dict(zip(point.axes, _shape(point, trace.config, trace.allowed), strict=False))
        if edit.averages:
            if "query" in sizes and trace.allowed.tokens is not None:
                raise EditError(
                    f"{point}: mean(over=...) needs texts of the same length, without padding."
                )
            sizes |= {axis: 1 for axis in ("batch", "position") if axis in sizes}
        shape = tuple(sizes.values())
        # A trace of one token would broadcast to every position, which is not what its user means.
        other = any(
            sizes[axis] != allowed.position
            for axis in ("query", "key", *(() if edit.averages else ("position",)))
            if axis in sizes
        )
        if other or not broadcasts(shape, expected):
            raise misfit(point, shape, expected)
        if not edit.averages and point.has_positions:
            _check_lengths(point, trace.allowed, allowed)


def _check_lengths(point: Point, theirs: AllowedKeys, ours: AllowedKeys) -> None:
    """Raise EditError where a value would be read from padding of the other trace."""
    source, target = Places.of(theirs).lengths, Places.of(ours).lengths
    if len(source) == 1:
        source = source * len(target)
    if any(have < want for have, want in zip(source, target, strict=True)):
        raise EditError(
            f"{point}: the sentences of the trace to read from have {source} tokens, and those of "
            f"this trace {target}. Values are read from the same positions, so the other sentences "
            "need at least as many tokens."
        )


def misfit(point: Point, shape: Sequence[int], expected: Sequence[int]) -> EditError:
    """The error for a value of another shape."""
    return EditError(
        f"{point}: a value of shape {tuple(shape)} does not fit {tuple(expected)} "
        f"({', '.join(point.axes[: len(expected)])})."
    )


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """True where a value of this shape broadcasts to the target."""
    try:
        return torch.broadcast_shapes(tuple(shape), tuple(target)) == torch.Size(target)
    except RuntimeError:
        return False


def _shape(point: Point, config: Config, allowed: AllowedKeys) -> tuple[int, ...]:
    """The shape of the quantity at a point."""
    if point.name == "logits" and discriminates(config.family, config.task):
        return (allowed.batch, allowed.position)
    sizes = {
        "batch": allowed.batch,
        "head": len(point.head_list) or config.n_heads,
        "kv_head": len(point.head_list) or config.n_kv_heads,
        "position": allowed.position,
        "query": allowed.position,
        "key": allowed.position,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_mlp": config.d_mlp,
        "vocab": _n_logits(config),
        "1": 1,
    }
    return tuple(sizes[axis] for axis in point.axes)


def _n_logits(config: Config) -> int:
    """The number of logits that the task head gives for a token or a text."""
    if config.task == "none":
        return config.d_model
    if config.task in ("next-sentence", "question-answering"):
        return 2
    return config.n_labels if config.task.endswith("classification") else config.vocab_size


def other_dtype(point: Point, found: torch.dtype, expected: torch.dtype) -> EditError:
    """The error for a value of another dtype."""
    return EditError(
        f"{point}: the value is {found} and the quantity {expected}; "
        f"convert it with value.to({expected})."
    )
