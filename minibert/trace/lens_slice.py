"""Slices as the methods of TransformerLens' cache take them: an int, list, tuple, slice or None."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minibert.errors import TraceError

__all__ = ["Slice", "as_slice"]


class Slice:
    """What is taken of one axis.

    None takes all. An int takes one place and its axis goes. A tuple is (start, stop) or
    (start, stop, step). A list, an array or a tensor names the places.
    Raises TraceError for anything else.
    """

    def __init__(self, input_slice: Any = None) -> None:
        self.slice, self.mode = _read(input_slice)

    def apply(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensor at these places of the axis `dim`."""
        if self.mode == "identity":
            return tensor
        places: list[Any] = [slice(None)] * tensor.dim()
        places[dim] = self.slice
        return tensor[tuple(places)]

    def indices(self, max_ctx: int | None = None) -> NDArray[np.int64]:
        """The places taken of an axis of that size. An int needs no size."""
        if self.mode == "int":
            return np.array([self.slice], dtype=np.int64)
        if max_ctx is None:
            raise TraceError(f"{self!r}.indices() was called without the size of the axis.")
        return np.arange(max_ctx, dtype=np.int64)[self.slice]

    @property
    def keeping_axis(self) -> "Slice":
        """The same, but an int takes one place and its axis stays."""
        return Slice([self.slice]) if self.mode == "int" else self

    @classmethod
    def unwrap(cls, slice_input: Any) -> "Slice":
        """A Slice that keeps the axis, of whatever a slice can be given as."""
        return slice_input if isinstance(slice_input, Slice) else cls(slice_input).keeping_axis

    def __repr__(self) -> str:
        return f"Slice({self.slice!r})"


def as_slice(given: Any) -> Slice:
    """The Slice, made of what stands for one where it is none."""
    return given if isinstance(given, Slice) else Slice(given)


def _read(given: Any) -> tuple[Any, str]:
    if given is None:
        return slice(None), "identity"
    if isinstance(given, bool):
        raise TraceError(f"{given} is no slice; expected an int, list, tuple, slice or None.")
    if isinstance(given, int | np.integer):
        return int(given), "int"
    if isinstance(given, slice):
        return given, "slice"
    if isinstance(given, tuple) and len(given) <= 3:
        return slice(*given), "slice"
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy(), "array"
    if isinstance(given, np.ndarray):
        return given, "array"
    if isinstance(given, Sequence) and not isinstance(given, str | tuple):
        return np.array(given, dtype=np.int64 if not len(given) else None), "array"
    raise TraceError(
        f"{given!r:.80} is no slice; expected an int, a list of ints, (start, stop), a slice or "
        "None."
    )
