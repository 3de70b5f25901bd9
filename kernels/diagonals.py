"""Sums along the diagonals of blocks of rows, as one matrix product."""

import torch
from torch import Tensor

from minibert.quantities import Float

__all__ = ["diagonal_sums"]


def diagonal_sums(
    counted: Float[Tensor, "unit 1 rows"], rows: Float[Tensor, "unit rows key"]
) -> Float[Tensor, "unit 1 diagonal"]:
    """For each diagonal, from that of the last row's first key on, its sum, rows times `counted`.

    With zeros in front of each row and the rows read one number further apart than they are, a
    diagonal becomes a column; so the sums are one product.
    """
    units, n_rows, n_keys = rows.shape
    width = n_rows + n_keys - 1
    # What is read behind the last row is zero as well.
    memory = rows.new_zeros(units, n_rows * width + n_rows)
    memory[:, : n_rows * width].view(units, n_rows, width)[..., n_rows - 1 :] = rows
    skewed = memory.as_strided((units, n_rows, width), (memory.shape[1], width + 1, 1))
    return torch.bmm(counted, skewed)
