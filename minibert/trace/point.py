"""A point: one place in a forward pass that an edit can write, and the key that names it."""

from dataclasses import dataclass
from typing import Any

from minibert.errors import EditError
from minibert.layers.config import Config
from minibert.layers.layer import absent_because
from minibert.quantities import QUANTITIES
from minibert.trace.places import check_index, indices_of

__all__ = ["Point", "as_point"]

_TEXT_TASKS = ("next-sentence", "sequence-classification")


@dataclass(frozen=True)
class Point:
    """One place in a forward pass: a quantity, its layer, and its heads (None: all of them)."""

    name: str
    layer: int | None = None
    heads: int | tuple[int, ...] | None = None
    of_text: bool = False
    """True for the logits of a whole text, which have no position axis."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the quantity here; a single head, given as a number, has no head axis."""
        gone = {"head", "kv_head"} if isinstance(self.heads, int) else set()
        if self.of_text:
            gone.add("position")
        return tuple(axis for axis in QUANTITIES[self.name].axes if axis not in gone)

    @property
    def has_positions(self) -> bool:
        """False for what there is one of in a whole text."""
        return not {"position", "query"}.isdisjoint(self.axes)

    @property
    def behind_layers(self) -> bool:
        """True for what is computed once every layer is."""
        return self.layer is None and self.name != "embed"

    @property
    def head_list(self) -> list[int]:
        """The heads as a list of numbers; empty for all heads."""
        if self.heads is None:
            return []
        return [self.heads] if isinstance(self.heads, int) else list(self.heads)

    def __str__(self) -> str:
        parts = (self.name, self.layer, self.heads)
        return "(" + ", ".join(str(part) for part in parts if part is not None) + ")"


def as_point(key: Any, config: Config) -> Point:
    """The Point of a key: a name, (name, layer) or (name, layer, head or heads)."""
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], str):
        raise EditError(
            f"{key!r} is not a point; expected (name, layer), (name, layer, head), "
            'or a name without layers, such as "embed" or "logits".'
        )
    name = parts[0]
    if name == "mask" or name not in QUANTITIES:
        editable = ", ".join(entry for entry in QUANTITIES if entry != "mask")
        raise EditError(f"{name!r} cannot be edited; there are {editable}.")
    if name in config.absent_quantities:
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if not QUANTITIES[name].per_layer:
        if len(parts) > 1:
            raise EditError(f"{key!r}: {name} has no layers; write {name!r} alone.")
        return Point(name, of_text=name == "logits" and config.task in _TEXT_TASKS)
    if len(parts) == 1:
        raise EditError(f"{key!r}: which layer? Write ({name!r}, layer).")
    where = f"{key!r}: "
    layer = check_index("layer", parts[1], config.n_layers, EditError, where)
    if name in config.absent_in(layer):
        raise EditError(f"{key!r} cannot be edited. {absent_because(name, config)}")
    if len(parts) == 2:
        return Point(name, layer)
    if not QUANTITIES[name].per_head:
        raise EditError(f"{key!r}: {name} has no heads; write ({name!r}, {layer}).")
    grouped = config.n_kv_heads < config.n_heads and "kv_head" in QUANTITIES[name].axes
    what, count = ("kv_head", config.n_kv_heads) if grouped else ("head", config.n_heads)
    if not isinstance(parts[2], tuple | list | range):
        return Point(name, layer, check_index(what, parts[2], count, EditError, where))
    return Point(name, layer, tuple(indices_of(parts[2], count, what, EditError, where)))
