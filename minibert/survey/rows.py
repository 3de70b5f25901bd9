"""What each row of attention spends, by kind of key: the numbers that all measures are made of.

A row is what one query gives to all keys, and sums to 1. `RowMasses` holds, for one layer, sums of
rows over kinds of keys: never an N x N matrix. They are made in the pass that computes the model
(`PassMasses`), or beside a live model that attends by its own kernel (`AttachedMasses`). The kernel
multiplies rows by columns over keys, one for each class of tokens; the norm-weighted ones are the
same columns times ‖f(x)‖ of each key (Kobayashi et al. 2020), and the sum of a row is a column of
its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.attached.call import Call, repeated
from minibert.attached.projection import Projection
from minibert.attached.read import attended
from minibert.errors import SurveyError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.api import Statistics
from minibert.kernels.call import Want
from minibert.layers.evaluation import Evaluation
from minibert.layers.finite import check_computed
from minibert.layers.layer import LayerPass
from minibert.layers.linear import values_of
from minibert.layers.parts import Layer
from minibert.model import Model
from minibert.quantities import Float
from minibert.survey.live import AttachedStack
from minibert.survey.segments import RELATIONS, Batch, SegmentTokens
from minibert.trace.run import embedded, run_layers

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.int64]
Visit = Callable[[int, "RowMasses"], None]

#: The key's position minus the query's: the offsets that every survey has.
OFFSETS = (-1, 0, 1)


@dataclass(frozen=True, eq=False)
class RowMasses:
    """The rows of one layer over the tokens of one segment, or of several one after the other.

    tokens          what is known of the tokens
    class_mass      (head, query, class): mass on the keys of each of `tokens.class_names`
    offset_mass     (head, query, offset): mass on the key at the query's position + offset
    relation_mass   (head, query, relation): mass on the keys of each of `RELATIONS`
    entropy         (head, query), in nats; None where rows are weighted by norms
    received        (head, key): the sum over queries
    profile         (head, 2n − 1), segment by segment: sums along the diagonals, from offset 1 − n
                    to n − 1; None where it was not asked for
    by_norm         the same of rows weighted by norms: each prob times ‖f(x)‖ of its key, divided
                    by the sum of the row (Kobayashi et al. 2020); None without norms
    """

    tokens: SegmentTokens
    class_mass: Floats
    offset_mass: Floats
    relation_mass: Floats
    entropy: Floats | None = None
    received: Floats | None = None
    profile: Floats | None = None
    by_norm: "RowMasses | None" = None
    offsets: tuple[int, ...] = OFFSETS

    def on(self, name: str) -> Floats:
        """(head, query): mass on the keys of a class."""
        return self.class_mass[..., self.tokens.class_names.index(name)]

    def at(self, offset: int) -> Floats:
        """(head, query): mass on the key at this offset from the query."""
        return self.offset_mass[..., self.offsets.index(offset)]

    def related(self, name: str) -> Floats:
        """(head, query): mass on the keys of a relation."""
        return self.relation_mass[..., RELATIONS.index(name)]

    @cached_property
    def on_other_text(self) -> Floats:
        """(head, query): mass on the tokens of the other text, of tokens of either text."""
        first, second = self.on("text_0"), self.on("text_1")
        text = self.tokens.text
        return np.where(text == 0, second, np.where(text == 1, first, 0))


def sums_of_pairs(cells: Floats, tokens: SegmentTokens) -> Floats:
    """(head, query, relation): for each query the sum over its pairs, given (head, pair)."""
    _, members = tokens.pairs
    found = np.zeros((len(members), len(cells), len(tokens)), dtype=cells.dtype)
    for own, (queries, first), sums in zip(members, tokens.queries, found, strict=True):
        if len(own):
            sums[:, queries] = np.add.reduceat(cells[:, own], first, axis=1)
    return np.moveaxis(found, 0, -1)


class BatchRows:
    """What is asked of a kernel for a batch, and its answers as rows of attention.

    A loaded model reads all segments one after the other, in one row of a batch; a live model has a
    row for each segment, and these are of one length. Equal classes are one column: some are empty
    and some the same, as [CLS] and the first position.
    """

    def __init__(
        self,
        batch: Batch,
        rows: int,
        device: torch.device,
        *,
        offsets: tuple[int, ...],
        profile: bool,
    ) -> None:
        self.tokens, self.offsets = batch.tokens, offsets
        columns = np.ascontiguousarray(self.tokens.classes.T)
        different: dict[bytes, int] = {}
        self.column = np.array([different.setdefault(c.tobytes(), len(different)) for c in columns])
        kept = columns[np.unique(self.column, return_index=True)[1]]
        length = len(self.tokens) // rows
        # In memory class by class, as the kernel multiplies them: (row, key, column).
        classes = torch.from_numpy(kept).to(device, torch.float32)
        self.classes = classes.mT.unflatten(0, (rows, length))
        # Where each pair stands in the table of its row.
        pairs, _ = self.tokens.pairs
        self.owner = pairs[:, 0] // length
        self.slot = np.arange(len(pairs)) - np.searchsorted(self.owner, self.owner)
        table = np.full((rows, self.slot.max(initial=-1) + 1, 2), -1, dtype=np.int64)
        table[self.owner, self.slot] = pairs - self.owner[:, None] * length
        self.want: Want = {
            "entropy": (),
            "received": (),
            "offset_mass": offsets,
            "pair_mass": torch.from_numpy(table).to(device),
        }
        if profile:
            self.want["profile"] = ()
        self.norms: Tensor | None = None

    def columns(
        self, value: Float[Tensor, "row head key d_head"], corner: Tensor | None
    ) -> Float[Tensor, "row #head key columns"]:
        """The columns for one layer; with its corner also by the norms of value · W_O.

        Raises MinibertError for norms that are NaN or infinite.
        """
        if corner is None:
            return self.classes[:, None]
        self.norms = torch.linalg.vector_norm(value @ corner, dim=-1)
        check_computed(self.norms, "norms of value · W_O")
        return columns_by_norm(self.classes, self.norms)

    def masses(self, found: Statistics | None) -> RowMasses:
        """The rows of the layer that the statistics are of."""
        assert found is not None
        of: dict[str, Tensor] = {name: getattr(found, name) for name in ("key_sums", *self.want)}
        pair_mass = of.pop("pair_mass").cpu().numpy()[self.owner, :, self.slot].T
        pair_mass = np.ascontiguousarray(pair_mass)
        numbers = {name: _side_by_side(value) for name, value in of.items()}
        sums, offset_mass = numbers["key_sums"], numbers["offset_mass"]
        return RowMasses(
            self.tokens,
            _columns(sums, self.column),
            offset_mass,
            sums_of_pairs(pair_mass, self.tokens),
            numbers["entropy"],
            numbers["received"],
            numbers.get("profile"),
            None if self.norms is None else self._by_norm(sums, offset_mass, pair_mass),
            self.offsets,
        )

    def _by_norm(self, sums: Floats, offset_mass: Floats, pair_mass: Floats) -> RowMasses:
        assert self.norms is not None
        norms, n_classes, total = _side_by_side(self.norms), self.classes.shape[-1], sums[..., -1]
        share = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        # One offset after the other, as they lie in memory.
        masses = np.moveaxis(np.empty((len(self.offsets), *norms.shape), norms.dtype), 0, -1)
        for number, offset in enumerate(self.offsets):
            # What lies outside of a text, and so is 0, meets any norm.
            of_key = np.roll(norms, -offset, axis=1)
            masses[..., number] = offset_mass[..., number] * of_key * share
        query, key = self.tokens.pairs[0].T
        return RowMasses(
            self.tokens,
            _columns(sums, n_classes + self.column) * share[..., None],
            masses,
            sums_of_pairs(pair_mass * norms[:, key] * share[:, query], self.tokens),
            offsets=self.offsets,
        )


def columns_by_norm(
    classes: Float[Tensor, "row key column"], norms: Float[Tensor, "row head key"]
) -> Float[Tensor, "row head key columns"]:
    """The columns of classes, the same times norms, and norms, whose sums `_by_norm` reads."""
    columns, norms = classes.mT[:, None], norms[:, :, None]
    plain = columns.expand(-1, norms.shape[1], -1, -1)
    return torch.cat([plain, columns * norms, norms], dim=2).mT


def widened(value: Tensor) -> Tensor:
    """The tensor, in float32 where it has fewer bits."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def corner_of(weight: Float[Tensor, "head d_head d_model"]) -> Float[Tensor, "head d_head corner"]:
    """For each head of W_O a matrix: value times this has the norm of value · W_O."""
    wide = values_of(weight).double().cpu()
    corner = torch.linalg.qr(wide.mT, mode="r")[1].mT
    return corner.to(weight.device, widened(weight).dtype)


def _columns(sums: Floats, numbers: npt.NDArray[np.int64]) -> Floats:
    """Some of (head, query, column); each column lies together in memory, as in `sums`."""
    return np.swapaxes(np.swapaxes(sums, 1, 2)[:, numbers], 1, 2)


def _side_by_side(numbers: Tensor) -> npt.NDArray[np.floating]:
    """(row, head, position, ...) as (head, all positions, ...)."""
    return numbers.transpose(0, 1).flatten(1, 2).cpu().numpy()


class PassMasses:
    """Gives the masses of every layer of a loaded model for batches of segments."""

    def __init__(
        self, model: Model, *, offsets: tuple[int, ...], by_norm: bool, profile: bool
    ) -> None:
        self.model = model
        self._rows = partial(BatchRows, offsets=offsets, profile=profile)
        layers: list[Layer] = list(model.body.layers)
        self.corners = [corner_of(one.attention.W_O) if by_norm else None for one in layers]

    @torch.no_grad()
    def __call__(self, batch: Batch, visit: Visit) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        body, device = self.model.body, self.model.body.device
        tokens, rows = batch.tokens, self._rows(batch, 1, device)
        allowed = AllowedKeys(
            1, len(tokens), device, self.model.config.causal, packed=tuple(tokens.lengths)
        )

        def of_layer(at: LayerPass) -> Want:
            # Several heads may read one key-value head.
            value = repeated(widened(at.value), self.model.config.n_heads)
            return {"key_sums": rows.columns(value, self.corners[at.index])}

        def told(at: LayerPass) -> None:
            visit(at.index, rows.masses(at.statistics))

        evaluation = Evaluation(allowed, self.model.impl, rows.want, of_layer)
        last = len(body.layers) - 1
        hidden = embedded(body, batch.inputs(device), allowed)
        hidden = run_layers(body, hidden, evaluation, stop=last, visit=told)
        at = LayerPass(body.layers[last], last, evaluation, known={"resid_pre": hidden})
        _ = at.z
        told(at)


class AttachedMasses:
    """Gives the masses of every layer of a stack for batches of segments of one length.

    Raises SurveyError for masses by norm where z does not go straight into an output projection.
    """

    def __init__(
        self, model: AttachedStack, *, offsets: tuple[int, ...], by_norm: bool, profile: bool
    ) -> None:
        self.model = model
        self._rows = partial(BatchRows, offsets=offsets, profile=profile)
        self.corners = [
            corner_of(_output_weight(model, layer, call)) if by_norm else None
            for layer, call in enumerate(model.calls)
        ]

    @torch.no_grad()
    def __call__(self, batch: Batch, visit: Visit) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        rows = self._rows(batch, len(batch.segments), self.model.device)
        plain = [name if value == () else (name, value) for name, value in rows.want.items()]

        def told(layer: int, call: Call) -> None:
            value = repeated(widened(call.read("value")), call.n_heads)
            columns = rows.columns(value, self.corners[layer])
            visit(layer, rows.masses(attended(call, [*plain, ("key_sums", columns)]).statistics))

        ids, kinds = (
            torch.tensor([getattr(segment, name) for segment in batch.segments])
            for name in ("ids", "kinds")
        )
        self.model.run(ids, kinds, told)


def _output_weight(
    model: AttachedStack, layer: int, call: Call
) -> Float[Tensor, "head d_head d_model"]:
    """W_O of a layer of a live model."""
    projection = call.projection
    if not isinstance(projection, Projection) or projection.module is None:
        problem = getattr(projection, "problem", "the output projection is not known")
        raise SurveyError(
            f"by_norm: {model.name}, {model.stack} {layer}: {problem}. Rows cannot be weighted "
            "by the norms of value · W_O: give by_norm=False."
        )
    weight = projection.module.weight
    assert isinstance(weight, Tensor)
    inward = values_of(weight if projection.transposed else weight.mT)
    return inward.unflatten(0, (call.n_heads, -1))
