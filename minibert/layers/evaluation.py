"""How the table of a layer is evaluated: which keys are seen, by which kernel, for which rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys, Window, kept
from minibert.kernels.call import Want
from minibert.layers.rotary import Rotary
from minibert.layers.turns import Turns, turns
from minibert.quantities import Int, Quantity

EVERYTHING = slice(None)
Rows = slice | list[int]


@runtime_checkable
class Past(Protocol):
    """The keys and values of positions before those that are computed."""

    @property
    def allowed(self) -> AllowedKeys | None:
        """Which of all keys the new queries may see; None: what the evaluation says."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, with those of the new positions last."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How the table is evaluated, the same for every layer of a pass.

    allowed   which keys each query may see
    impl      which implementation of `minibert.kernels` gives z
    want      statistics that come from the same call
    of_layer  what is wanted beside these of one layer, from its `LayerPass` before z is computed
    key_columns   of the keys in want's key_mass, those that each sentence asked for; None: all
    standing  where in its sentence each token that is computed stands; None: as `allowed` says
    """

    allowed: AllowedKeys
    impl: str = "auto"
    want: Want = field(default_factory=dict)
    of_layer: Callable[[Any], Want] | None = None
    key_columns: tuple[tuple[int, ...], ...] | None = None
    standing: Int[Tensor, "#batch position"] | None = None

    def in_window(self, window: Window) -> "Evaluation":
        """This evaluation for a layer whose queries see only a window of keys around their own."""
        if window not in self._in_windows:
            allowed = replace(self.allowed, window=window)
            self._in_windows[window] = replace(self, allowed=allowed)
        return self._in_windows[window]

    @kept
    def _in_windows(self) -> "dict[Window, Evaluation]":
        return {}

    def turns(self, rotary: Rotary, dtype: torch.dtype) -> Turns:
        """By what the queries and keys that are computed are turned. Made once."""
        if (rotary, dtype) not in self._turns:
            made = turns(rotary, self.positions, self._lengths, dtype)
            self._turns[rotary, dtype] = made
        return self._turns[rotary, dtype]

    @kept
    def _turns(self) -> dict[tuple[Rotary, torch.dtype], Turns]:
        return {}

    @kept
    def positions(self) -> Int[Tensor, "#batch position"]:
        """Where in its sentence each token that is computed stands."""
        if self.standing is not None:
            return self.standing
        device, packed = self.allowed.device, self.allowed.packed
        if packed is not None:
            return torch.cat([torch.arange(length, device=device) for length in packed])[None]
        return torch.arange(self.allowed.position, device=device)[None]

    @property
    def _lengths(self) -> Int[Tensor, "#batch position"] | None:
        """Tokens of the sentence of each token; None: up to its last position."""
        packed, lengths = self.allowed.packed, self.allowed.length_tensor
        if packed is not None:
            each = torch.tensor(packed, device=self.allowed.device)
            return each.repeat_interleave(each)[None]
        return None if lengths is None else lengths[:, None].expand(-1, self.positions.shape[1])

    def at_rows(self, rows: Rows) -> AllowedKeys:
        """The allowed keys of some of the queries."""
        every = range(self.allowed.position)
        return self.allowed.at(every[rows] if isinstance(rows, slice) else rows)


def cut(
    value: Tensor, quantity: Quantity[Tensor], heads: slice, rows: Rows, group: int = 1
) -> Tensor:
    """A quantity, or its gradient, at the chosen heads and rows, where it has such axes.

    Of keys and values it is those that each chosen head reads: head h reads key-value head
    h // group.
    """
    # Untouched where all of it is wanted: gradients flow to what the pass really used.
    if quantity.per_head and heads != EVERYTHING:
        of_keys = group > 1 and "kv_head" in quantity.axes
        value = value[:, read_by(heads, value.shape[1] * group, group) if of_keys else heads]
    if rows != EVERYTHING and not quantity.of_keys:
        axis = quantity.axes.index("query" if "query" in quantity.axes else "position")
        value = value[(*[EVERYTHING] * axis, rows)]
    return value


def read_by(heads: slice, n_heads: int, group: int) -> slice | list[int]:
    """The key-value heads that these heads read, one each."""
    chosen = [head // group for head in range(n_heads)[heads]]
    # One head: a view.
    return slice(chosen[0], chosen[0] + 1) if len(chosen) == 1 else chosen
