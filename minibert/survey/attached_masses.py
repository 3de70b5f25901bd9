"""The masses of rows of a live model, from the attention calls that it makes, layer by layer.

The model attends by its own kernel, which gives no statistics: rows are computed once more, block
by block, by `minibert.attend`, of the same query and key. Segments of a batch are of one length, so
that there is neither padding nor a mask against it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.attached.call import Call, repeated
from minibert.attached.projection import Projection
from minibert.attached.statistics import attended
from minibert.errors import SurveyError
from minibert.survey.attached_stack import AttachedStack
from minibert.survey.batch_rows import BatchRows, Numbers, columns_by_norm, corner_of
from minibert.survey.rows import RowMasses
from minibert.survey.segments import Batch

__all__ = ["AttachedMasses"]

Whole = npt.NDArray[np.int64]


class AttachedMasses:
    """Gives the masses of every layer of a stack for batches of segments of one length.

    Raises SurveyError for masses by norm where z does not go straight into an output projection.
    """

    def __init__(
        self, model: AttachedStack, *, offsets: tuple[int, ...], by_norm: bool, profile: bool
    ) -> None:
        self.model, self.offsets, self.profile = model, offsets, profile
        self.corners = _corners(model) if by_norm else None

    def __call__(self, batch: Batch, visit: Callable[[int, RowMasses], None]) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        one = _OneBatch(self, batch, self.model.device)
        with torch.no_grad():
            self.model(batch, lambda layer, call: visit(layer, one.masses(layer, call)))


class _OneBatch:
    """What is the same for all layers of a batch of B segments of n tokens."""

    def __init__(self, asked: AttachedMasses, batch: Batch, device: torch.device) -> None:
        self.asked, tokens = asked, batch.tokens
        self.size, length = len(tokens.lengths), tokens.lengths[0]
        self.rows = BatchRows(tokens, asked.offsets, device)
        self.classes = self.rows.classes.unflatten(0, (self.size, length))
        pairs, _ = tokens.pairs
        # Where each pair stands in the table of its segment.
        self.owner = pairs[:, 0] // length
        self.slot = np.arange(len(pairs)) - np.searchsorted(self.owner, self.owner)
        table = np.full((self.size, self.slot.max(initial=0) + 1, 2), -1, dtype=np.int64)
        table[self.owner, self.slot] = pairs - self.owner[:, None] * length
        self.pairs = torch.from_numpy(table).to(device)

    def masses(self, layer: int, call: Call) -> RowMasses:
        """Those of one layer."""
        norms: Tensor | None = None
        columns = self.classes[:, None]
        if self.asked.corners is not None:
            value = repeated(call.read("value").float(), call.n_heads)
            norms = torch.linalg.vector_norm(value @ self.asked.corners[layer], dim=-1)
            columns = columns_by_norm(self.classes, norms)
        want: list[Any] = ["entropy", "received", ("offset_mass", self.asked.offsets)]
        want += [("key_sums", columns), ("pair_mass", self.pairs)]
        want += ["profile"] if self.asked.profile else []
        found: Any = attended(call, want).statistics
        pair_mass = found.pair_mass.cpu().numpy()[self.owner, :, self.slot].T
        numbers = {
            name: _side_by_side(getattr(found, name))
            for name in ("key_sums", "offset_mass", "entropy", "received")
        }
        profile = _side_by_side(found.profile) if self.asked.profile else None
        return self.rows.masses(
            Numbers(**numbers, pair_mass=np.ascontiguousarray(pair_mass), profile=profile),
            None if norms is None else _side_by_side(norms),
        )


def _side_by_side(numbers: Tensor) -> npt.NDArray[np.floating]:
    """(batch, head, position, ...) as (head, all positions, ...)."""
    return numbers.transpose(0, 1).flatten(1, 2).cpu().numpy()


def _corners(model: AttachedStack) -> list[Tensor]:
    """For each layer what a value is multiplied by, to have the norm of value · W_O."""
    found = []
    for layer, call in enumerate(model.calls):
        projection = call.projection
        if not isinstance(projection, Projection) or projection.module is None:
            problem = getattr(projection, "problem", "the output projection is not known")
            raise SurveyError(
                f"by_norm: {model.name}, {model.stack} {layer}: {problem}. Rows cannot be weighed "
                "by the norms of value · W_O: give by_norm=False."
            )
        weight: Any = projection.module.weight
        found.append(corner_of(weight.T if projection.transposed else weight, call.n_heads))
    return found
