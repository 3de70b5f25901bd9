"""Blocks of rows read along their diagonals.

With zeros in front of each row, and rows read one number further apart than they lie, a diagonal
becomes a column: then the sums of all diagonals are one product of matrices.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from minibert.quantities import Float

__all__ = ["diagonal_sums", "skewed"]


def skewed(
    rows: Float[Tensor, "unit rows key"], memory: Callable[[tuple[int, ...]], Tensor]
) -> Float[Tensor, "unit rows diagonal"]:
    """The rows with each diagonal in a column, from that of the last row's first key on.

    What lies outside is 0. They lie in what `memory` gives for a shape.
    """
    units, n_rows, n_keys = rows.shape
    width = n_rows + n_keys - 1
    # What is read behind the last row is zero as well.
    numbers = memory((units, n_rows * width + n_rows))
    numbers[:, n_rows * width :] = 0
    table = numbers[:, : n_rows * width].view(units, n_rows, width)
    table[..., : n_rows - 1] = 0
    table[..., n_rows - 1 :] = rows
    return numbers.as_strided((units, n_rows, width), (numbers.shape[1], width + 1, 1))


def diagonal_sums(
    counted: Float[Tensor, "unit 1 rows"], columns: Float[Tensor, "unit rows diagonal"]
) -> Float[Tensor, "unit diagonal"]:
    """For each diagonal of what `skewed` gave the sum over rows, each times `counted`."""
    return torch.bmm(counted, columns).squeeze(1)
