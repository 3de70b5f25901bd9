"""Edits, checked against a model and a batch, and then applied in the order of the data.

mapping ──named──▶ points and edits ──Reach.of──▶ where each reaches ──▶ Plan ──apply──▶ values

`named` checks what needs no batch, `Plan.of` the rest, both before the pass starts. A generation
makes the Reach of each step itself, and a live model makes a plan of each of its calls.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config, discriminates
from minibert.layers.layer import Change
from minibert.quantities import Bool
from minibert.trace.edit import (
    Chosen,
    Constant,
    Edit,
    EditMapping,
    FromTrace,
    Hide,
    Noise,
    Places,
    Point,
    as_edit,
    as_point,
    indices_of,
)
from minibert.trace.identity import Sources

Index = tuple[slice | int | list[int] | Tensor, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Reach:
    """The places of one edit in a batch.

    places      where the sentences are
    keys_at     where their keys are; those of cross-attention are of other sentences
    sentences   the numbers of those that are reached
    positions   of each of these sentences, counted from its front; None: all, padding included
    keys        of each of these sentences those that are hidden; None: none
    all_of      True where the sentences are all there are
    """

    places: Places
    keys_at: Places
    sentences: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...] | None
    keys: tuple[tuple[int, ...], ...] | None
    all_of: bool

    @classmethod
    def of(cls, point: Point, edit: Edit, places: Places, keys_at: Places | None = None) -> "Reach":
        """The reach of an edit of this quantity.

        Raises EditError for sentences, positions and keys that are not there.
        """
        if edit.positions is not None and not point.has_positions:
            these = "these logits are" if point.of_text else f"{point.name} is"
            have = "have" if point.of_text else "has"
            raise EditError(f"{point}: {these} of whole texts and {have} no positions.")
        where, keys_at = f"{point}: ", keys_at or places
        sentences = indices_of(edit.sentences, len(places.at), "sentence", EditError, where)

        def in_each(of: Places, chosen: Chosen, what: str) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(of.positions(s, chosen, what, EditError, where)) for s in sentences)

        positions, hidden = edit.positions, edit.change
        return cls(
            places,
            keys_at,
            tuple(sentences),
            None if positions is None else in_each(places, positions, "position"),
            in_each(keys_at, hidden.keys, "key") if isinstance(hidden, Hide) else None,
            edit.sentences is None,
        )

    @property
    def everywhere(self) -> bool:
        """True where nothing limits the edit."""
        return self.positions is None and self.all_of

    def shape(self, point: Point, whole: Shape) -> Shape:
        """The shape of what is reached; of one sentence, where they differ in their number."""
        sizes = list(whole)
        if not self.places.packed:
            sizes[0] = len(self.sentences)
        if self.positions is not None and point.row_axis is not None:
            sizes[point.row_axis] = len(self.positions[0])
        return tuple(sizes)

    def chosen(self, number: int) -> tuple[int, list[int]]:
        """The row and the places on the position axis in one of the sentences."""
        sentence = self.sentences[number]
        found = range(len(self.places.at[sentence]))
        return self.places.index(
            sentence, found if self.positions is None else self.positions[number]
        )

    def indices(self, point: Point, part: Tensor) -> list[Index]:
        """One index of a quantity's tensor, or one a sentence where their places differ."""
        axis = point.row_axis
        rows = [self.chosen(number) for number in range(len(self.sentences))]
        alike = self.positions is None or all(at == rows[0][1] for _, at in rows)
        if axis is None or (alike and not self.places.packed):
            limits = {} if self.all_of else {0: list(self.sentences)}
            if axis is not None and self.positions is not None:
                limits[axis] = rows[0][1]
            return [_grid(part, limits)]
        between = [slice(None)] * (axis - 1)
        return [(slice(row, row + 1), *between, at) for row, at in rows]

    def hidden_cells(self, shape: Shape) -> Bool[Tensor, "batch query key"]:
        """True at the hidden keys of the rows that are reached, on the CPU."""
        assert self.keys is not None
        B, *_, Q, K = shape
        hidden = torch.zeros(B, Q, K, dtype=torch.bool)
        for number, sentence in enumerate(self.sentences):
            rows = slice(None) if self.positions is None else self.chosen(number)[1]
            lines = hidden[sentence, rows]
            lines[:, self.keys_at.index(sentence, self.keys[number])[1]] = True
            hidden[sentence, rows] = lines
        return hidden


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


Named = list[tuple[Point, Edit]]


def named(
    mapping: object,
    as_point: Callable[[object], Point],
    dtype: torch.dtype | None,
    sources: Sources | None,
) -> Named:
    """The points and edits of a mapping, in the order in which they are applied.

    Edits of a whole layer come first and those of single heads last: they are more specific.
    Raises EditError for what is wrong in every batch: a point that does not exist, a value that is
    no edit, not finite or of another dtype, a trace of another model, and two edits of which
    neither comes first. Without a `dtype` that of a value is not looked at.
    """
    if not isinstance(mapping, Mapping):
        raise EditError(
            f"edit={type(mapping).__name__}: expected a dictionary such as "
            '{("z", 9, 6): zero, ("resid_post", 3): function}.'
        )
    points: list[Point] = []
    found: Named = []
    for key, value in mapping.items():
        point = as_point(key)
        for edit in map(as_edit, _several(point, value)):
            if isinstance(edit.change, Hide) and point.name != "scores":
                raise EditError(f'{point}: hide edits scores; write ("scores", layer): hide(keys).')
            if isinstance(edit.change, Constant):
                _check_number(point, edit.change.value, dtype)
            for trace in edit.traces:
                trace.shape_at(point)
            if sources is not None and not edit.other_model:
                sources.check_each(edit.traces, str(point))
            found.append((point, edit))
        _check_order(point, points)
        points.append(point)
    return sorted(found, key=lambda each: len(each[0].head_list) or math.inf, reverse=True)


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


def _check_number(point: Point, value: object, dtype: torch.dtype | None) -> None:
    """Raise EditError for a constant that is not a number, not finite, or of another dtype."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= torch.finfo(dtype or torch.float64).max:
            where = "" if dtype is None else f" in {dtype}"
            raise EditError(f"{point}: {value} is not a finite number{where}.")
        return
    if not isinstance(value, Tensor):
        raise EditError(f"{point}: expected a number, a tensor or a trace, found {value!r:.80}.")
    if not value.is_floating_point():
        raise EditError(f"{point}: the value is {value.dtype}; expected floats, as value.float().")
    if dtype is not None and value.dtype != dtype:
        raise _other_dtype(point, value.dtype, dtype)
    if value.is_meta:
        raise EditError(f"{point}: the value is on the meta device and has no numbers.")
    if not bool(value.isfinite().all()):
        raise EditError(f"{point}: the value holds NaN or infinite numbers.")


def _check_order(point: Point, before: Sequence[Point]) -> None:
    """Raise EditError where an edit of the same head names equally many heads."""
    for other in before:
        same = (point.stack, point.name, point.layer) == (other.stack, other.name, other.layer)
        mine, theirs = point.head_list, other.head_list
        overlap = not mine or not set(mine).isdisjoint(theirs)
        if same and len(mine) == len(theirs) and overlap:
            raise EditError(
                f"Two edits overlap, {other} and {point}: merge them, or name whole layers in one "
                "and single heads in the other. See docs/reading.md#write-what-you-read"
            )


def check_until(point: Point, until: int | None) -> None:
    """Raise EditError for a point that a trace with this `until` does not compute."""
    if until is None:
        return
    if point.behind_layers:
        raise EditError(f"{point}: a trace with until={until} has no {point.name}.")
    if point.layer is not None and point.layer >= until:
        raise EditError(f"{point}: until={until} stops before it; edit layers below {until}.")


def _check_packed(point: Point, allowed: AllowedKeys) -> None:
    """Raise EditError for what packed sentences do not have."""
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


def check_values(point: Point, edit: Edit, reach: Reach, whole: Shape) -> None:
    """Raise EditError for a value that does not fit a quantity of this shape where it is edited.

    Values of a trace are read from the same positions, so its sentences need these.
    """
    padded = "key" in point.axes and set(reach.keys_at.lengths) != {whole[-1]}
    if isinstance(edit.change, Noise) and (padded or reach.places.packed):
        raise EditError(f"{point}: noise here depends on the batch. Trace each sentence alone.")
    if edit.entries is not None:
        indices_of(edit.entries, whole[-1], "entry", EditError, f"{point}: ")
        if padded:
            raise EditError(
                f"{point}: entries are keys here, which are counted in each sentence; give "
                "sentences of one length, or trace them one by one."
            )
    value = edit.change.value if isinstance(edit.change, Constant) else None
    if isinstance(value, Tensor):
        shapes = (reach.shape(point, whole), whole)
        if not any(_broadcasts(value.shape, shape) for shape in shapes):
            raise _misfit(point, value.shape, whole)
    for trace in edit.traces:
        shape, theirs = trace.shape_at(point), trace.places_at(point)
        free = {0, None if "query" in point.axes else point.row_axis}
        if any(a != b and n not in free for n, (a, b) in enumerate(zip(shape, whole, strict=True))):
            raise _misfit(point, shape, whole)
        if edit.averages:
            if "query" in point.axes and set(theirs.lengths) != {shape[-1]}:
                raise EditError(f"{point}: mean(over=) needs texts of one length, without padding.")
            continue
        if len(theirs.at) not in (1, len(reach.places.at)):
            raise EditError(
                f"{point}: the trace to read from has {len(theirs.at)} sentences, and this one "
                f"{len(reach.places.at)}; a value of shape {shape} does not fit {whole}."
            )
        if point.has_positions:
            _check_lengths(point, reach, theirs)


def _check_lengths(point: Point, reach: Reach, theirs: Places) -> None:
    """Raise EditError where a value would be read from padding of the other trace."""
    source, target = theirs.lengths, reach.places.lengths
    for number, sentence in enumerate(reach.sentences):
        last = target[sentence] - 1 if reach.positions is None else max(reach.positions[number])
        if last >= source[sentence if len(source) > 1 else 0]:
            raise EditError(
                f"{point}: the sentences of the trace to read from have {source} tokens, and those "
                f"of this trace {target}. Values are read from the same positions, so the other "
                "sentences need at least as many tokens, or the edit positions that they have."
            )


def check_hidden(
    entries: "Sequence[Entry]", seen: Bool[Tensor, "#batch #head query key"] | None, shape: Shape
) -> None:
    """Raise EditError for a query that edits of the scores at one point leave without a key.

    `seen` is True where a query sees a key without them; None: everywhere.
    """
    hides = [(point, reach) for point, _, reach in entries if reach.keys is not None]
    for point in dict.fromkeys(point for point, _ in hides):
        places, cells = hides[0][1].places, torch.zeros((), dtype=torch.bool)
        for other, reach in hides:
            if other == point:
                cells = cells | reach.hidden_cells(shape)
        for sentence, length in enumerate(places.lengths):
            row, at = places.index(sentence, range(length))
            before = torch.ones(1, length, shape[-1], dtype=torch.bool)
            if seen is not None:
                wide = seen[(None,) * (4 - seen.dim())]
                before = wide[min(row, len(wide) - 1)].expand(-1, *shape[1:]).cpu()[:, at]
            emptied = before.any(-1) & ~(before & ~cells[row, at]).any(-1)
            if bool(emptied.any()):
                position = int(emptied.any(0).nonzero()[0])
                raise EditError(
                    f"{point}: without these keys the query at position {position} of sentence "
                    f"{sentence} has no key left to attend to. Limit the edit with hide(keys, "
                    "positions=...)."
                )


def _check_divides(point: Point, value: Tensor, before: Tensor) -> None:
    """Raise EditError where an edit wrote what a norm cannot divide by: 0, nan, or nearly 0."""
    if not point.name.endswith("_norm_scale"):
        return
    scale = value.detach()
    scale = scale.float() if scale.dtype.itemsize < 4 else scale
    wrong = (~(1 / scale).isfinite() & (value != before)).nonzero()
    if len(wrong):
        sentence, position, _ = wrong[0].tolist()
        raise EditError(
            f"{point}: the norm divides by this, and the edit made "
            f"{scale[sentence, position].item():g} of it at position {position} of sentence "
            f"{sentence}; expected numbers whose reciprocal is finite in {scale.dtype}. To take "
            "away what reads the norm, edit that: z or mlp_out."
        )


def _misfit(point: Point, shape: Sequence[int], expected: Sequence[int]) -> EditError:
    """The error for a value of another shape."""
    return EditError(
        f"{point}: a value of shape {tuple(shape)} does not fit {tuple(expected)} "
        f"({', '.join(point.axes[: len(expected)])})."
    )


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """True where a value of this shape broadcasts to the target."""
    try:
        return torch.broadcast_shapes(tuple(shape), tuple(target)) == torch.Size(target)
    except RuntimeError:
        return False


def shape_of(point: Point, config: Config, allowed: AllowedKeys) -> Shape:
    """The shape of the quantity at a point of a pass."""
    if point.name == "logits" and discriminates(config.family, config.task):
        return (allowed.batch, allowed.position)
    batch = allowed.batch
    if allowed.packed is not None and not point.has_positions:
        batch = len(allowed.packed)
    sizes = {
        "batch": batch,
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


def _other_dtype(point: Point, found: torch.dtype, expected: torch.dtype) -> EditError:
    """The error for a value of another dtype."""
    return EditError(f"{point}: the value is {found}; convert it with value.to({expected}).")


Entry = tuple[Point, Edit, Reach]


@dataclass(frozen=True)
class Plan:
    """The edits of one forward pass, by layer (None: of no layer), and where each reaches."""

    edits: tuple[Entry, ...] = ()

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
        places, entries = Places.of(allowed), []
        for point, edit in named(mapping, partial(as_point, config=config), dtype, sources):
            check_until(point, until)
            reach = Reach.of(point, edit, places)
            _check_packed(point, allowed)
            check_values(point, edit, reach, shape_of(point, config, allowed))
            entries.append((point, edit, reach))
        for layer in {point.layer for point, _, reach in entries if reach.keys is not None}:
            here = [entry for entry in entries if entry[0].layer == layer]
            window, n = config.window(layer or 0), allowed.position
            seen = replace(allowed, window=window).full()
            check_hidden(here, seen, (allowed.batch, n, n))
        return cls(tuple(entries))

    def names(self, layer: int | None) -> frozenset[str]:
        """The quantities of a layer that are edited."""
        return frozenset(point.name for point, _, _ in self.edits if point.layer == layer)

    def of_layer(self, layer: int) -> dict[str, Change]:
        """What to do to the quantities of a layer, by name."""
        return {name: partial(self.apply, name, layer) for name in self.names(layer)}

    @property
    def behind_layers(self) -> dict[str, Change]:
        """What to do to the quantities that are computed once every layer is, by name."""
        return {name: partial(self.apply, name, None) for name in self.names(None) - {"embed"}}

    @property
    def first_layer(self) -> int | None:
        """The lowest layer in which something changes; None where only later ones do."""
        if "embed" in self.names(None):
            return 0
        return min((p.layer for p, _, _ in self.edits if p.layer is not None), default=None)

    def apply(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        """The quantity after all edits of it; the tensor given is left as it is."""
        for point, edit, reach in self.edits:
            if point.name == name and point.layer == layer:
                before, value = value, _edited(point, edit, reach, value)
                _check_divides(point, value, before)
                # Nobody looks at padding, and z is what these rows say.
                value = reach.keys_at.without_padding(value) if name == "probs" else value
        return value


def _edited(point: Point, edit: Edit, reach: Reach, value: Tensor) -> Tensor:
    """The quantity with one edit made."""
    part = value
    if point.heads is not None:
        heads = point.heads if isinstance(point.heads, int) else list(point.heads)
        part = value[:, heads]
    new = _limited(point, edit, reach, part)
    if edit.entries is not None:
        chosen = indices_of(edit.entries, part.shape[-1], "entry", EditError, f"{point}: ")
        some, new = new, part.clone()
        new[..., chosen] = some[..., chosen]
    if point.heads is None:
        return new
    changed = value.clone()
    changed[:, heads] = new
    return changed


def _limited(point: Point, edit: Edit, reach: Reach, part: Tensor) -> Tensor:
    """The new value of a quantity, or of its chosen heads, where the edit reaches."""
    if reach.keys is not None:
        hidden = reach.hidden_cells(part.shape).to(part.device)
        return part.masked_fill(hidden if part.dim() == 3 else hidden[:, None], -math.inf)
    if edit.traces and not edit.averages and point.row_axis is not None:
        return _taken(point, edit, reach, part)
    if reach.everywhere:
        return _fitted(point, _new_value(point, edit, part), part.shape)
    result = part.clone()
    indices = reach.indices(point, part)
    for number, index in enumerate(indices):
        chosen = part[index]
        new = _new_value(point, edit, chosen)
        if len(indices) > 1 and _one_each(new, chosen, len(indices)):
            # A value for each sentence: this one's.
            new = new[number : number + 1]
        if _broadcasts(new.shape, part.shape) and (
            edit.traces or not _broadcasts(new.shape, chosen.shape)
        ):
            # A value for the whole quantity: the same places of it.
            new = new.expand(part.shape)[index]
        result[index] = _fitted(point, new, chosen.shape)
    return result


def _taken(point: Point, edit: Edit, reach: Reach, part: Tensor) -> Tensor:
    """The quantity with values of a trace, from the same positions of its sentences."""
    new, axis = _new_value(point, edit, part), point.row_axis
    assert axis is not None
    assert isinstance(edit.change, FromTrace)
    theirs, ours = edit.change.traces[0].places_at(point), reach.places
    alike = all(theirs.at[number % len(theirs.at)] == at for number, at in enumerate(ours.at))
    if reach.everywhere and alike and _broadcasts(new.shape, part.shape):
        # With what stands in the padding, which nobody reads.
        return new.expand(part.shape)
    result, rows = part.movedim(axis, 1).clone(), new.movedim(axis, 1)
    for number, sentence in enumerate(reach.sentences):
        to, where = reach.chosen(number)
        chosen = range(len(where)) if reach.positions is None else reach.positions[number]
        row, at = theirs.index(sentence if len(theirs.at) > 1 else 0, chosen)
        result[to, where] = rows[row, at]
    return result.movedim(1, axis)


def _one_each(new: Tensor, chosen: Tensor, n_sentences: int) -> bool:
    """True for values of as many sentences, each of them shaped as what is chosen of one."""
    if new.dim() != chosen.dim() or new.shape[0] != n_sentences:
        return False
    return _broadcasts(new.shape[1:], chosen.shape[1:])


def _new_value(point: Point, edit: Edit, chosen: Tensor) -> Tensor:
    new = edit.change(point, chosen)
    if isinstance(new, int | float) and not isinstance(new, bool):
        return torch.as_tensor(new, dtype=chosen.dtype, device=chosen.device)
    if not isinstance(new, Tensor):
        raise EditError(f"{point}: expected a tensor or a number, found {new!r:.80}.")
    if new.dtype != chosen.dtype:
        raise _other_dtype(point, new.dtype, chosen.dtype)
    return new.to(chosen.device)


def _fitted(point: Point, new: Tensor, shape: Sequence[int]) -> Tensor:
    if not _broadcasts(new.shape, shape):
        raise _misfit(point, new.shape, shape)
    return new.expand(tuple(shape))
