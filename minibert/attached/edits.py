"""Edits of a live model's attention, by the names and functions of `minibert.trace.edit`.

    attached.trace(text, edit={("z", 3, 5): zero, ("decoder.cross", "scores", 1): hide(0)})

A key is (name, layer), (name, layer, head) or (name, layer, (head, head)), with the name of the
stack in front where a model has several. Heads of key and value are key-value heads. What needs no
batch is checked before the pass, the rest in each call: only there is known what the model attends
with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from minibert.attached.call import Call
from minibert.attached.layout import READABLE, Stack
from minibert.errors import EditError
from minibert.trace.edit import Point, in_layer
from minibert.trace.identity import Sources
from minibert.trace.plan import Entry, Named, Plan, Reach, check_hidden, check_values, named

EditsOfLayer = Mapping[str, Named]
"""By the name of the quantity."""


@dataclass
class Edits:
    """The edits of a pass, by stack and layer, then by the name of the quantity."""

    at: dict[tuple[str, int], dict[str, Named]] = field(default_factory=dict)
    met: set[tuple[str, int]] = field(default_factory=set)
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


def plan(edit: object, stacks: Mapping[str, Stack], sources: Sources) -> Edits:
    """The edits of a mapping, in the order in which they are applied.

    Raises EditError for a place that does not exist, for a value that fits no quantity, for a trace
    of another model or without the quantity, and for two edits of the same heads.
    """
    edits = Edits()
    for point, one in named({} if edit is None else edit, partial(_point, stacks=stacks), None,
                            sources):  # fmt: skip
        assert point.layer is not None
        here = edits.at.setdefault((point.stack or next(iter(stacks)), point.layer), {})
        here.setdefault(point.name, []).append((point, one))
    return edits


def _point(key: object, stacks: Mapping[str, Stack]) -> Point:
    """The point that a key names; its stack where there are several."""
    parts = key if isinstance(key, tuple) else (key,)
    names = ", ".join(map(repr, stacks))
    if parts and isinstance(parts[0], str) and parts[0] in stacks:
        stack, parts = parts[0], parts[1:]
    elif len(stacks) == 1:
        stack = next(iter(stacks))
    else:
        raise EditError(f"{key!r:.80}: this model has several stacks; begin with one of {names}.")
    if not 2 <= len(parts) <= 3 or parts[0] not in READABLE:
        raise EditError(
            f"{key!r:.80} is not a point of stack {stack!r}; expected (name, layer) or "
            f"(name, layer, head) with one of {', '.join(READABLE)}; the stacks are {names}."
        )
    known = stacks[stack]
    heads_of = partial(known.heads_of, parts[0])
    return in_layer(key, parts, len(known), heads_of, stack if len(stacks) > 1 else "")


def edited(name: str, value: Tensor, edits: EditsOfLayer, call: Call) -> Tensor:
    """The quantity of a call after its edits: (batch, head, position, ...)."""
    entries: list[Entry] = []
    for point, edit in edits.get(name, ()):
        reach = Reach.of(point, edit, call.places(name), call.places("key"))
        heads = point.heads if isinstance(point.heads, int) else point.head_list or slice(None)
        check_values(point, edit, reach, tuple(value[:, heads].shape))
        entries.append((point, edit, reach))
    if not entries:
        return value
    check_hidden(entries, call.mask_rows().allowed, (len(value), *value.shape[2:]))
    return Plan(tuple(entries)).apply(name, entries[0][0].layer, value)
