"""Edits, checked against a model and a batch, and then applied in the order of the data.

`Reach` says where an edit reaches: its sentences, and in each of them its positions and hidden
keys. The checks are made by `Plan.of`, before the pass starts.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config, discriminates
from minibert.layers.layer_pass import Change
from minibert.trace.edit import Edit, EditMapping, FromTrace, Point, as_edit, as_point
from minibert.trace.identity import Sources
from minibert.trace.places import Chosen, Places, indices_of

Index = tuple[slice | int | list[int] | Tensor, ...]


@dataclass(frozen=True)
class Reach:
    """The places of one edit in a batch.

    sentences   their numbers
    positions   of each of these sentences, counted from its front; None: all, padding included
    keys        of each of these sentences those that are hidden; None: none
    all_of      True where the sentences are all there are
    """

    places: Places
    sentences: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None
    keys: tuple[tuple[int, ...], ...] | None
    all_of: bool

    @classmethod
    def of(cls, point: Point, edit: Edit, places: Places) -> "Reach":
        """The reach of an edit of this quantity.

        Raises EditError for sentences and positions that are not there.
        """
        if edit.positions is not None and not point.has_positions:
            these = "these logits are" if point.of_text else f"{point.name} is"
            have = "have" if point.of_text else "has"
            raise EditError(f"{point}: {these} of whole texts and {have} no positions.")
        count = len(places.lengths)
        sentences = indices_of(edit.sentences, count, "sentence", EditError, f"{point}: ")

        def in_each(chosen: Chosen, what: str) -> tuple[tuple[int, ...], ...]:
            where = f"{point}: "
            return tuple(
                tuple(places.positions(sentence, chosen, what, EditError, where))
                for sentence in sentences
            )

        return cls(
            places,
            tuple(sentences),
            None if edit.positions is None else in_each(edit.positions, "position"),
            None if edit.hidden is None else in_each(edit.hidden, "key"),
            edit.sentences is None,
        )

    @property
    def everywhere(self) -> bool:
        """True where nothing limits the edit."""
        return self.positions is None and self.all_of

    @property
    def first(self) -> int:
        """The first position that is reached in any sentence."""
        return 0 if self.positions is None else min(map(min, self.positions))

    def shape(self, axes: tuple[str, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is reached; of one sentence, where they differ in their number."""
        sizes = dict(zip(axes, whole, strict=True))
        if self.places.starts is None:
            sizes["batch"] = len(self.sentences)
        if self.positions is not None:
            sizes[_row_axis(axes)] = len(self.positions[0])
        return tuple(sizes.values())

    def indices(self, axes: tuple[str, ...], part: Tensor) -> list[Index]:
        """One index of a quantity's tensor, or one a sentence where their places differ."""
        axis = None if self.positions is None else axes.index(_row_axis(axes))
        same = self.positions is None or len(set(self.positions)) == 1
        if same and self.places.starts is None:
            limits = {} if self.all_of else {0: list(self.sentences)}
            if axis is not None and self.positions is not None:
                limits[axis] = list(self.positions[0])
            return [_grid(part, limits)]
        found: list[Index] = []
        for number, sentence in enumerate(self.sentences):
            chosen = (
                range(self.places.lengths[sentence])
                if self.positions is None
                else self.positions[number]
            )
            row, where = self.places.index(sentence, chosen)
            rows_at = axes.index(_row_axis(axes)) if axis is None else axis
            between = [slice(None)] * (rows_at - 1)
            found.append((slice(row, row + 1), *between, where))
        return found

    def hidden_cells(self, scores: Tensor) -> Tensor:
        """True at the hidden keys of the rows that are reached: (batch, [head], query, key)."""
        assert self.keys is not None
        B, *_, Q, K = scores.shape
        hidden = torch.zeros(B, Q, K, dtype=torch.bool, device=scores.device)
        for number, sentence in enumerate(self.sentences):
            rows = slice(None) if self.positions is None else list(self.positions[number])
            lines = hidden[sentence, rows]
            lines[:, list(self.keys[number])] = True
            hidden[sentence, rows] = lines
        return hidden if scores.dim() == 3 else hidden.unsqueeze(1)


def _row_axis(axes: tuple[str, ...]) -> str:
    return "query" if "query" in axes else "position"


def _grid(part: Tensor, limits: dict[int, list[int]]) -> Index:
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
        theirs = trace.allowed
        if isinstance(edit.change, FromTrace) and edit.change.allowed is not None:
            _check_layouts(point, theirs, allowed)
            theirs = allowed
        sizes = dict(zip(point.axes, _shape(point, trace.config, theirs), strict=False))
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


def _laid_out(edit: Edit, allowed: AllowedKeys) -> Edit:
    """The edit; values of a trace are laid out as this batch is, where one of both is packed."""
    if not isinstance(edit.change, FromTrace):
        return edit
    theirs = getattr(edit.change.trace.allowed, "packed", None)
    if theirs == allowed.packed:
        return edit
    return replace(edit, change=FromTrace(edit.change.trace, allowed))


def _check_layouts(point: Point, theirs: AllowedKeys, ours: AllowedKeys) -> None:
    """Raise EditError for what sentences that lie otherwise in memory cannot be read for."""
    if "query" in point.axes:
        raise EditError(
            f"{point}: packed sentences have no such matrix to read; trace them without "
            "packed=True."
        )
    source, target = (len(Places.of(each).lengths) for each in (theirs, ours))
    if source not in (1, target):
        raise EditError(
            f"{point}: the trace to read from has {source} sentences, and this one {target}."
        )


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


@dataclass(frozen=True)
class Plan:
    """The edits of one forward pass, by layer (None: of no layer), and where each reaches."""

    edits: tuple[tuple[Point, Edit, Reach], ...] = ()

    @classmethod
    def of(
        cls,
        mapping: EditMapping,
        config: Config,
        allowed: AllowedKeys,
        *,
        dtype: torch.dtype,
        until: int | None = None,
        sources: Sources | None = None,
    ) -> "Plan":
        """The plan of an edit mapping; `sources` checks whose the traces to read from are.

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
            several = [_laid_out(as_edit(one), allowed) for one in _several(point, value)]
            reached = [(edit, Reach.of(point, edit, places)) for edit in several]
            for edit, reach in reached:
                check_packed(point, edit, allowed)
                check_constant(point, edit, reach, config, allowed, dtype)
                check_traces(point, edit, config, allowed)
                if sources is not None and not edit.other_model:
                    sources.check_each(edit.traces, str(point))
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


def _several(point: Point, value: object) -> Sequence[object]:
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
