"""The rows of a batch, out of the sums that a kernel made of them.

A kernel multiplies rows by columns over keys, one for each class of tokens; the norm-weighted ones
are the same columns times ‖f(x)‖ of each key (Kobayashi et al. 2020), and the sum of a row is a
column of its own. Here are these columns, and what becomes of their sums.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.quantities import Float
from minibert.survey.rows import RowMasses, sums_of_pairs
from minibert.survey.token_kinds import SegmentTokens

__all__ = ["BatchRows", "Numbers", "columns_by_norm", "corner_of"]

Floats = npt.NDArray[np.floating]


class Numbers(NamedTuple):
    """What a kernel gave for the tokens of a batch, one segment after the other.

    key_sums     (head, query, column)
    offset_mass  (head, query, offset)
    pair_mass    (head, pair)
    entropy, received  (head, token)
    profile      (head, 2n − 1), segment by segment; None where it was not asked for
    """

    key_sums: Floats
    offset_mass: Floats
    pair_mass: Floats
    entropy: Floats
    received: Floats
    profile: Floats | None


class BatchRows:
    """What is the same for all layers of a batch: the columns of its classes.

    classes   (token, column): 1 where a token is of the class; equal classes are one column
    """

    def __init__(
        self, tokens: SegmentTokens, offsets: tuple[int, ...], device: torch.device
    ) -> None:
        self.tokens, self.offsets = tokens, offsets
        # Some classes are empty here and some the same, as [CLS] and the first position.
        columns = np.ascontiguousarray(tokens.classes.T)
        different: dict[bytes, int] = {}
        self.column = np.array([different.setdefault(c.tobytes(), len(different)) for c in columns])
        kept = columns[np.unique(self.column, return_index=True)[1]]
        # In memory class by class, as the kernel multiplies them.
        self.classes = torch.from_numpy(kept).to(device, torch.float32).mT

    def masses(self, found: Numbers, norms: Floats | None) -> RowMasses:
        """The rows of one layer; `norms`, (head, token), where its columns were by norm, too."""
        return RowMasses(
            self.tokens,
            _columns(found.key_sums, self.column),
            found.offset_mass,
            sums_of_pairs(found.pair_mass, self.tokens),
            found.entropy,
            found.received,
            found.profile,
            None if norms is None else self._by_norm(found, norms),
            self.offsets,
        )

    def _by_norm(self, found: Numbers, norms: Floats) -> RowMasses:
        n_classes, total = self.classes.shape[1], found.key_sums[..., -1]
        share = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        # One offset after the other, as they lie in memory.
        masses = np.moveaxis(np.empty((len(self.offsets), *norms.shape), norms.dtype), 0, -1)
        for number, offset in enumerate(self.offsets):
            # What lies outside of a text, and so is 0, meets any norm.
            of_key = np.roll(norms, -offset, axis=1)
            masses[..., number] = found.offset_mass[..., number] * of_key * share
        query, key = self.tokens.pairs[0].T
        return RowMasses(
            self.tokens,
            _columns(found.key_sums, n_classes + self.column) * share[..., None],
            masses,
            sums_of_pairs(found.pair_mass * norms[:, key] * share[:, query], self.tokens),
            offsets=self.offsets,
        )


def columns_by_norm(
    classes: Float[Tensor, "batch key column"], norms: Float[Tensor, "batch head key"]
) -> Float[Tensor, "batch head key columns"]:
    """The columns of classes, the same times norms, and norms, whose sums `_by_norm` reads."""
    columns, norms = classes.mT[:, None], norms[:, :, None]
    plain = columns.expand(-1, norms.shape[1], -1, -1)
    return torch.cat([plain, columns * norms, norms], dim=2).mT


def corner_of(
    weight: Float[Tensor, "d_model head_d_head"], n_heads: int
) -> Float[Tensor, "head d_head corner"]:
    """For each head a matrix: value times this has the norm of value · W_O."""
    wide = torch.Tensor.detach(weight).double().cpu()
    per_head = wide.unflatten(1, (n_heads, -1)).transpose(0, 1)
    return torch.linalg.qr(per_head, mode="r")[1].mT.float().to(weight.device)


def _columns(sums: Floats, numbers: npt.NDArray[np.int64]) -> Floats:
    """Some of (head, query, column); each column lies together in memory, as in `sums`."""
    return np.swapaxes(np.swapaxes(sums, 1, 2)[:, numbers], 1, 2)
