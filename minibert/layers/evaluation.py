"""How the table of a layer is evaluated: which keys are seen, by which kernel, for which rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys, kept
from minibert.kernels.requests import Want
from minibert.quantities import Quantity

__all__ = ["EVERYTHING", "Evaluation", "Past", "Rows", "cut"]

EVERYTHING = slice(None)
Rows = slice | list[int]


@runtime_checkable
class Past(Protocol):
    """The keys and values of positions before those that are computed."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, those of the new positions behind the others."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How the table is evaluated, the same for every layer of a pass.

    allowed   which keys each query may see
    impl      which implementation of `minibert.kernels` gives z
    want      statistics that come from the same call
    of_layer  what is wanted beside these of one layer, from its `LayerPass` before z is computed
    first     the position at which the stream that is computed begins; those before it are a past
    key_columns   of the keys in want's key_mass, those that each sentence asked for; None: all
    """

    allowed: AllowedKeys
    impl: str = "auto"
    want: Want = field(default_factory=dict)
    of_layer: Callable[[Any], Want] | None = None
    first: int = 0
    key_columns: tuple[tuple[int, ...], ...] | None = None

    @kept
    def from_first(self) -> AllowedKeys:
        """The allowed keys of all queries that are computed."""
        return self.at_rows(EVERYTHING) if self.first else self.allowed

    def at_rows(self, rows: Rows) -> AllowedKeys:
        """The allowed keys of some of the queries that are computed."""
        computed = range(self.first, self.allowed.position)
        chosen = computed[rows] if isinstance(rows, slice) else [computed[row] for row in rows]
        return self.allowed.at(chosen)


def cut(value: Tensor, quantity: Quantity[Tensor], heads: slice, rows: Rows) -> Tensor:
    """A quantity, or its gradient, at the chosen heads and rows, where it has such axes."""
    # Untouched where all of it is wanted: gradients flow to what the pass really used.
    if quantity.per_head and heads != EVERYTHING:
        value = value[:, heads]
    if rows != EVERYTHING and not quantity.of_keys:
        axis = quantity.axes.index("query" if "query" in quantity.axes else "position")
        value = value[(*[EVERYTHING] * axis, rows)]
    return value
