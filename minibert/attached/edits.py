"""Edits of a live model's attention, by the names and functions of `minibert.trace.edit`.

    attached.trace(text, edit={("z", 3, 5): zero, ("decoder.cross", "scores", 1): hide(0)})

A key is (name, layer), (name, layer, head) or (name, layer, (head, head)), with the name of the
stack in front where a model has several. Heads of key and value are key-value heads. All edits are
checked before the pass; those of a whole layer are applied before those of single heads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from minibert.attached.call import Call
from minibert.attached.layout import READABLE, Stack
from minibert.errors import EditError, check_index
from minibert.trace.edit import Edit, FromTrace, Mean, Point, as_edit
from minibert.trace.identity import Sources
from minibert.trace.places import indices_of
from minibert.trace.plan import broadcasts, check_order
from minibert.trace.plan import misfit as shape_error

Places = tuple[str, int]
EditsOfLayer = dict[str, list[tuple[Point, Edit]]]
"""By the name of the quantity."""


@dataclass(frozen=True)
class StackPoint(Point):
    """A point of one stack of a model that has several."""

    stack: str = ""

    def __str__(self) -> str:
        inside = super().__str__()
        return f"({self.stack}, {inside[1:]}" if self.stack else inside


@dataclass
class Edits:
    """The edits of a pass, by stack and layer, then by the name of the quantity."""

    at: dict[Places, EditsOfLayer] = field(default_factory=dict)
    met: set[Places] = field(default_factory=set)
    """Where a pass has come by."""

    def __bool__(self) -> bool:
        return bool(self.at)

    def of(self, stack: str, layer: int) -> EditsOfLayer:
        """The edits of a layer, by name."""
        here = self.at.get((stack, layer), {})
        if here:
            self.met.add((stack, layer))
        return here

    def check_met(self) -> None:
        """Raise EditError for an edit of a layer that no pass came to."""
        for where in self.at.keys() - self.met:
            (point, _), *_ = next(iter(self.at[where].values()))
            raise EditError(
                f"{point}: no attention of stack {where[0]!r} and layer {where[1]} ran, so that "
                "nothing was edited. Give the inputs that make the model run it."
            )


def plan(
    edit: Mapping[object, object] | None, stacks: Mapping[str, Stack], sources: Sources
) -> Edits:
    """The edits of a mapping, in the order in which they are applied.

    Raises EditError for a place that does not exist, for a value that fits no quantity, for a trace
    of another model, and for two edits of the same heads.
    """
    if edit is None:
        return Edits()
    if not isinstance(edit, Mapping):
        raise EditError(f'edit={edit!r:.80}: expected a mapping, as {{("z", 3, 5): zero}}.')
    placed: dict[str, list[tuple[Point, Edit]]] = {}
    for key, value in edit.items():
        stack, point = _point(key, stacks)
        one = as_edit(value)
        if not one.other_model:
            sources.check_each(one.traces, str(point))
        one = _of_stack(one, stack, point)
        _check(point, one)
        placed.setdefault(stack, []).append((point, one))
    edits = Edits()
    for stack, points in placed.items():
        check_order([point for point, _ in points])
        # The more specific edit is applied last, and wins.
        for point, one in sorted(points, key=lambda each: -(len(each[0].head_list) or math.inf)):
            assert point.layer is not None
            here = edits.at.setdefault((stack, point.layer), {})
            here.setdefault(point.name, []).append((point, one))
    return edits


def _point(key: object, stacks: Mapping[str, Stack]) -> tuple[str, Point]:
    """The stack and the point that a key names."""
    parts = key if isinstance(key, tuple) else (key,)
    named = bool(parts) and isinstance(parts[0], str) and parts[0] in stacks
    names = ", ".join(map(repr, stacks))
    if named:
        stack, parts = parts[0], parts[1:]
    elif len(stacks) == 1:
        stack = next(iter(stacks))
    else:
        raise EditError(f"{key!r:.80}: this model has several stacks; begin with one of {names}.")
    if not 2 <= len(parts) <= 3 or parts[0] not in READABLE:
        raise EditError(
            f"{key!r:.80} is no point of stack {stack!r}; expected (name, layer) or "
            f"(name, layer, head) with one of {', '.join(READABLE)}; the stacks are {names}."
        )
    name, known, where = parts[0], stacks[stack], f"{key!r:.80}: "
    layer = check_index("layer", parts[1], len(known), EditError, where)
    label = stack if len(stacks) > 1 else ""
    if len(parts) == 2:
        return stack, StackPoint(name, layer, stack=label)
    what, count = known.heads_of(name, layer)
    if not isinstance(parts[2], tuple | list | range):
        head = check_index(what, parts[2], count, EditError, where)
        return stack, StackPoint(name, layer, head, stack=label)
    heads = tuple(indices_of(parts[2], count, what, EditError, where))
    return stack, StackPoint(name, layer, heads, stack=label)


def _of_stack(edit: Edit, stack: str, point: Point) -> Edit:
    """The edit, which reads from this stack of its traces."""
    if not edit.traces:
        return edit
    traces = []
    for trace in edit.traces:
        several = getattr(trace, "stacks", None)
        if several is not None and stack not in several:
            raise EditError(
                f"{point}: the trace to read from has no stack {stack!r}; it has "
                f"{', '.join(map(repr, several))}."
            )
        one = trace if several is None else replace(trace.of_stack(stack), by_kv_head=True)
        if point.layer is not None and point.layer >= len(one):
            raise EditError(f"{point}: the trace to read from has {len(one)} layers.")
        traces.append(one)
    change = Mean(tuple(traces)) if edit.averages else FromTrace(traces[0])
    return replace(edit, change=change, traces=tuple(traces))


def _check(point: Point, edit: Edit) -> None:
    if edit.hidden is not None and point.name != "scores":
        raise EditError(f'{point}: hide edits scores only; write ("scores", layer): hide(keys).')
    value = edit.constant
    if value is None:
        return
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.is_meta or not bool(value.isfinite().all()):
            raise EditError(
                f"{point}: the value is {value.dtype} on {value.device}, or holds NaN or infinite "
                "numbers; expected finite floats."
            )
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EditError(
            f"{point}: expected a finite number, a tensor or a trace; found {value!r:.80}."
        )


def edited(
    name: str, value: Tensor, edits: Mapping[str, Sequence[tuple[Point, Edit]]], call: Call
) -> Tensor:
    """The quantity of a call after its edits: (batch, head, position, ...)."""
    real = call.real_keys if name in ("key", "value") else call.real_queries
    for point, edit in edits.get(name, ()):
        rows = _rows(point, edit, _numbered(real, value))
        heads = point.heads if isinstance(point.heads, int) else point.head_list or slice(None)
        before = value[:, heads]
        if edit.hidden is None:
            after = _changed(point, edit, before, rows)
        else:
            after = _hidden(point, edit, before, rows, call)
        if point.heads is None:
            value = after
        else:
            value = value.clone()
            value[:, heads] = after
    return value


def _changed(point: Point, edit: Edit, before: Tensor, rows: list[list[int]]) -> Tensor:
    """What the edit makes of the quantity, in these rows of each sentence."""
    after = edit.change(point, before)
    if isinstance(after, int | float):
        after = torch.full_like(before, after)
    if not isinstance(after, Tensor) or not after.is_floating_point():
        raise EditError(f"{point}: the edit gave {after!r:.80}; expected a tensor of floats.")
    after = after.to(before)
    whole = broadcasts(after.shape, before.shape)
    if whole and edit.positions is None and edit.sentences is None:
        return after.expand(before.shape)
    axis = before.dim() - 2
    counts = {len(places) for places in rows if places}
    shape = list(before.shape)
    if whole:
        after = after.expand(shape)
    else:
        # It may hold the chosen positions only.
        shape[axis] = max(counts, default=0)
        if len(counts) != 1 or not broadcasts(after.shape, shape):
            raise shape_error(point, after.shape, before.shape)
        after = after.expand(shape)
    changed = before.clone()
    for sentence, places in enumerate(rows):
        index = torch.tensor(places, dtype=torch.long, device=before.device)
        new = after[sentence].index_select(axis - 1, index) if whole else after[sentence]
        if places:
            changed[sentence] = changed[sentence].index_copy(axis - 1, index, new)
    return changed


def _hidden(point: Point, edit: Edit, before: Tensor, rows: list[list[int]], call: Call) -> Tensor:
    """scores with −inf at the hidden keys of the chosen queries."""
    batch, n_queries, n_keys = before.shape[0], before.shape[-2], before.shape[-1]
    gone = torch.zeros(batch, n_queries, n_keys, dtype=torch.bool)
    numbers = _numbered(call.real_keys, call.key)
    for sentence, places in enumerate(rows):
        own, where = numbers[sentence % len(numbers)], f"{point}: sentence {sentence}: "
        keys = [own[key] for key in indices_of(edit.hidden, len(own), "key", EditError, where)]
        for row in places:
            gone[sentence, row, keys] = True
    gone = gone.to(before.device)
    mask = call.mask_rows().allowed
    allowed = torch.ones((), dtype=torch.bool, device=gone.device) if mask is None else mask
    left = allowed & ~gone[:, None]
    emptied = (~left.any(-1) & allowed.expand(left.shape).any(-1)).any(1)
    if bool(emptied.any()):
        sentence, row = emptied.nonzero()[0].tolist()
        raise EditError(
            f"{point}: without these keys the query at position {row} of sentence {sentence} has "
            "no key left to attend to. Limit the edit with hide(keys, positions=...)."
        )
    return before.masked_fill(gone if before.dim() == 3 else gone[:, None], -torch.inf)


def _rows(point: Point, edit: Edit, numbers: list[list[int]]) -> list[list[int]]:
    """The rows of each sentence that the edit applies to."""
    found: list[list[int]] = [[] for _ in numbers]
    for sentence in indices_of(edit.sentences, len(numbers), "sentence", EditError, f"{point}: "):
        own, where = numbers[sentence], f"{point}: sentence {sentence}: "
        chosen = indices_of(edit.positions, len(own), "position", EditError, where)
        found[sentence] = [own[one] for one in chosen]
    return found


def _numbered(real: Tensor | None, value: Tensor) -> list[list[int]]:
    """The places of each sentence's own positions on the position axis."""
    batch, n = value.shape[0], value.shape[-2]
    if real is None:
        return [list(range(n))] * batch
    return [row.nonzero()[:, 0].tolist() for row in real]
