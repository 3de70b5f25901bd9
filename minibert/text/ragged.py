"""Whole numbers in any form as a table; lists of different lengths are filled up on the right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.errors import TokenizationError
from minibert.quantities import Bool, Int

__all__ = ["table_of"]

_REFUSED = (TypeError, ValueError, RuntimeError, OverflowError)


def table_of(
    values: Any, name: str, *, booleans: bool = False
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """The numbers as int64, one axis as one row, and True where a row has one; None: everywhere.

    `booleans` may stand for 1 and 0. Raises TokenizationError for what is no table of whole
    numbers, which names the row of a list of rows, and for an empty one.

    >>> table_of([[3, 1, 4], [1]], "ids")[0].tolist()
    [[3, 1, 4], [1, 0, 0]]
    """
    try:
        table = _whole(torch.as_tensor(values), name, booleans)
    except _REFUSED as error:
        rows = _rows(values, name)
        if rows is None:
            raise _no_table(name, error) from error
        return _filled_up([_row(row, f"{name} row {n}", booleans) for n, row in enumerate(rows)])
    if table.ndim not in (1, 2):
        raise TokenizationError(
            f"{name} must have one axis (position) or two (batch, position), "
            f"but have shape {tuple(table.shape)}"
        )
    if table.numel() == 0:
        raise TokenizationError(f"{name} are empty (shape {tuple(table.shape)}); give at least one")
    return table[None] if table.ndim == 1 else table, None


def _filled_up(rows: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    real = torch.zeros_like(table, dtype=torch.bool)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
        real[number, : len(row)] = True
    return table, None if bool(real.all()) else real


def _rows(values: Any, name: str) -> list[Any] | None:
    """The rows of a list of lists, arrays or tensors; None for anything else."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return None
    kinds = [_is_row(row) for row in values]
    if not any(kinds):
        return None
    if not all(kinds):
        number = kinds.index(not kinds[0])
        raise TokenizationError(
            f"{name} row {number} is {values[number]!r:.40}, and row 0 is {values[0]!r:.40}; "
            "expected a list of numbers each"
        )
    return list(values)


def _is_row(row: Any) -> bool:
    if isinstance(row, Tensor | np.ndarray):
        return row.ndim > 0
    return isinstance(row, Sequence) and not isinstance(row, str)


def _row(values: Any, name: str, booleans: bool) -> Int[Tensor, " position"]:
    try:
        row = _whole(torch.as_tensor(values), name, booleans)
    except _REFUSED as error:
        raise _no_table(name, error) from error
    if row.ndim != 1 or not len(row):
        raise TokenizationError(
            f"{name} has shape {tuple(row.shape)}; expected a list of at least one number"
        )
    return row.cpu()


def _whole(table: Tensor, name: str, booleans: bool) -> Tensor:
    kind = table.dtype
    if booleans and kind is torch.bool:
        return table.long()
    # An empty list has no dtype of its own; it is reported as empty, not as float.
    if table.numel() and (kind.is_floating_point or kind.is_complex or kind is torch.bool):
        raise TokenizationError(
            f"{name} must be whole numbers, not {kind}; convert them with .long() if they are"
        )
    return table.to(torch.int64)


def _no_table(name: str, error: Exception) -> TokenizationError:
    return TokenizationError(
        f"{name} must be a list of whole numbers, a list of such lists, or a tensor ({error}); "
        'a text that is split into words is given as minibert.Words(["The", "horse"])'
    )
