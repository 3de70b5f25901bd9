"""The cells of a map: rows and columns of attention, pooled into blocks of equal size."""

import math

import torch
from torch import Tensor

from minibert.quantities import Float

__all__ = ["cell_size", "counts", "n_cells", "pooled", "sums_of_cells"]

#: Cells of fewer rows than this are summed faster by a product of matrices with all rows.
_SEPARATE = 4


def cell_size(n: int, cells: int) -> int:
    """Rows or columns of a cell when n of them are cut into at most `cells`."""
    return max(1, math.ceil(n / cells))


def n_cells(n: int, size: int) -> int:
    """Cells of `size` that hold n rows or columns."""
    return math.ceil(n / size)


def sums_of_cells(
    counted: Float[Tensor, "unit 1 rows"],
    weights: Float[Tensor, "unit rows key"],
    start: int,
    size: int,
) -> Float[Tensor, "unit cell key"]:
    """For each cell that a row of the block is in, the sum of its weights, each times `counted`."""
    units, n_rows, n_keys = weights.shape
    if size == 1:
        return weights * counted.transpose(-2, -1)
    if size >= _SEPARATE and start % size == 0 and n_rows % size == 0:
        # Only the rows of a cell are multiplied, instead of all rows for each cell.
        cells = units * n_rows // size
        sums = torch.bmm(counted.reshape(cells, 1, size), weights.view(cells, size, n_keys))
        return sums.view(units, -1, n_keys)
    positions = torch.arange(start, start + n_rows, device=weights.device) // size
    numbers = torch.arange(start // size, n_cells(start + n_rows, size), device=weights.device)
    return torch.bmm(counted * (positions == numbers[:, None]), weights)


def pooled(sums: Float[Tensor, "*lead key"], size: int) -> Float[Tensor, "*lead key_cell"]:
    """The sums over `size` keys each."""
    missing = -sums.shape[-1] % size
    return torch.nn.functional.pad(sums, (0, missing)).unflatten(-1, (-1, size)).sum(dim=-1)


def counts(lengths: Tensor | None, n: int, size: int, like: Tensor) -> Tensor:
    """Real rows or columns of each cell: (batch or 1, cell)."""
    real = like.new_ones(1, n)
    if lengths is not None:
        real = (torch.arange(n, device=like.device) < lengths[:, None]).to(like.dtype)
    return pooled(real, size)
