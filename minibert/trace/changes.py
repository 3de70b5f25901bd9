"""What edits do to a quantity: each a small object that can be pickled and copied.

Called with the point and the quantity there, each gives the new value, of any shape that broadcasts
to the quantity's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.errors import EditError
from minibert.quantities import QUANTITIES
from minibert.trace.point import Point

__all__ = ["Change", "Constant", "FromTrace", "Function", "Mean", "Noise", "unchanged", "zeros"]

Change = Callable[[Point, Tensor], Any]


def zeros(point: Point, value: Tensor) -> Tensor:
    """0 everywhere."""
    return torch.zeros_like(value)


def unchanged(point: Point, value: Tensor) -> Tensor:
    """The quantity as it is."""
    return value


@dataclass(frozen=True, eq=False)
class Constant:
    """A number or a tensor."""

    value: Any

    def __call__(self, point: Point, value: Tensor) -> Any:
        """The value."""
        # A copy each time: a learned vector may change after the pass, and the trace must not.
        return self.value.clone() if isinstance(self.value, Tensor) else self.value


@dataclass(frozen=True, eq=False)
class FromTrace:
    """The same quantity of another trace."""

    trace: Any

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The quantity there, detached."""
        return _read(self.trace, point)


class Mean:
    """The mean of the same quantity over other traces, computed once for each point."""

    def __init__(self, traces: tuple[Any, ...]) -> None:
        self.traces = traces
        self._known: dict[Point, Tensor] = {}

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The mean."""
        if point not in self._known:
            self._known[point] = _mean_of(self.traces, point)
        return self._known[point].to(value.device)


@dataclass(frozen=True)
class Noise:
    """The quantity and normal numbers of this standard deviation."""

    seed: int
    std: float

    def __call__(self, point: Point, value: Tensor) -> Tensor:
        """The sum."""
        # Drawn on the CPU, where every machine draws the same numbers; each point has its own seed.
        text = f"{point.name} {point.layer} {point.heads}"
        mixed = (self.seed * 1_000_003 + sum(ord(c) * 31**n for n, c in enumerate(text))) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        return value + self.std * _normal_like(value, point.axes, generator).to(value)


@dataclass(frozen=True)
class Function:
    """What a user's function makes of the quantity. It can be pickled where the function can."""

    function: Callable[[Tensor], Any]

    def __call__(self, point: Point, value: Tensor) -> Any:
        """What the function returns."""
        # The function gets a copy, so that a change in place does not reach the trace.
        result = self.function(value.clone())
        if result is None:
            raise EditError(f"{point}: the function returned None; expected the changed tensor.")
        return result


def _normal_like(value: Tensor, axes: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Normal numbers, position after position, the same for each sentence of the batch."""
    row = "query" if "query" in axes else "position"
    axis = axes.index(row) if row in axes else 1
    shape = value.movedim(axis, 1).shape[1:]
    # Not torch.randn: how many numbers it draws decides what the first ones are.
    size, angle = torch.rand((*shape, 2), generator=generator, dtype=torch.float64).unbind(-1)
    drawn = (-2 * torch.log1p(-size)).sqrt() * (2 * math.pi * angle).cos()
    return drawn.unsqueeze(0).movedim(1, axis)


def _read(trace: Any, point: Point) -> Tensor:
    """The quantity of a trace at a point, detached: no gradient flows into that trace."""
    if point.layer is None:
        value = getattr(trace, point.name)
    elif isinstance(point.heads, int) and "kv_head" not in QUANTITIES[point.name].axes:
        value = getattr(trace[point.layer, point.heads], point.name)
    elif isinstance(point.heads, int):
        # A point names a key-value head, and trace[layer, head] the key that a head reads.
        value = getattr(trace[point.layer], point.name)[:, point.heads]
    else:
        value = getattr(trace[point.layer], point.name)
        value = value if point.heads is None else value[:, list(point.heads)]
    # A tensor made in torch.inference_mode() can only be used outside of it as a copy.
    return value.clone() if value.is_inference() else value.detach()


def _mean_of(traces: Sequence[Any], point: Point) -> Tensor:
    values = [_read(trace, point) for trace in traces]
    if "position" not in point.axes:
        return torch.cat(values).mean(0, keepdim=True)
    axis = point.axes.index("position")
    rows = [
        value.movedim(axis, 1)[real]
        for value, real in zip(values, map(_real_tokens, traces), strict=True)
    ]
    average = torch.cat(rows).mean(0)
    return average.unsqueeze(axis - 1).unsqueeze(0)


def _real_tokens(trace: Any) -> Tensor:
    allowed = trace.allowed
    if allowed.tokens is not None:
        return allowed.tokens
    return torch.ones(allowed.batch, allowed.position, dtype=torch.bool, device=allowed.device)
