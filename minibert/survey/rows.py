"""What each row of attention spends, by kind of key: the numbers that all measures are made of.

A row is what one query gives to all keys, and sums to 1. `RowMasses` holds, for one layer, sums of
rows over kinds of keys: never an N x N matrix. They are made in the pass that computes the model
(`PassMasses`), or beside a live model that attends by its own kernel (`AttachedMasses`). The kernel
multiplies rows by columns over keys, one for each class of tokens; the norm-weighted ones are the
same columns times ‖f(x)‖ of each key (Kobayashi et al. 2020), and the sum of a row is a column of
its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.attached.call import Call, repeated
from minibert.attached.projection import Projection
from minibert.attached.stack import attended
from minibert.errors import SurveyError
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.kernels.call import Want
from minibert.layers.bodies import Body
from minibert.layers.evaluation import Evaluation
from minibert.layers.layer_pass import LayerPass
from minibert.layers.linear import values_of
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
    entropy         (head, query), in nats; None where rows are weighed by norms
    received        (head, key): the sum over queries
    profile         (head, 2n − 1), segment by segment: sums along the diagonals, from offset 1 − n
                    to n − 1; None where it was not asked for
    by_norm         the same of rows weighed by norms: each prob times ‖f(x)‖ of its key, divided
                    by the sum of the row (Kobayashi et al. 2020); None without norms
    gradient        the same of |∂L/∂α| in place of each prob α, for the loss L of the text
                    (Clark et al. 2019, §3.3); None where it was not asked for
    all_keys        (head, query): the sum of the whole row; None where it is 1
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
    gradient: "RowMasses | None" = None
    all_keys: Floats | None = None

    def on(self, name: str) -> Floats:
        """(head, query): mass on the keys of a class."""
        return self.class_mass[..., self.tokens.class_names.index(name)]

    def at(self, offset: int) -> Floats:
        """(head, query): mass on the key that stands so far behind the query."""
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


def sums_of_rows(rows: Floats, tokens: SegmentTokens, offsets: tuple[int, ...]) -> RowMasses:
    """The sums over kinds of keys of any numbers (head, query, key) of one segment."""
    n = len(tokens)
    places = np.arange(n)[:, None] + np.array(offsets)
    inside = (places >= 0) & (places < n)
    offset_mass = rows[:, np.arange(n)[:, None], places.clip(0, n - 1)] * inside
    pairs, _ = tokens.pairs
    return RowMasses(
        tokens,
        rows @ tokens.classes.astype(rows.dtype),
        offset_mass,
        sums_of_pairs(rows[:, pairs[:, 0], pairs[:, 1]], tokens),
        offsets=offsets,
        all_keys=rows.sum(-1),
    )


def joined_rows(parts: Sequence[RowMasses], tokens: SegmentTokens) -> RowMasses:
    """The sums of segments, each made by `sums_of_rows`, as those of all their `tokens`."""
    names = ("class_mass", "offset_mass", "relation_mass", "all_keys")
    joined = {name: np.concatenate([getattr(one, name) for one in parts], 1) for name in names}
    return RowMasses(tokens, **joined, offsets=parts[0].offsets)


# Every measure asks for those of a batch, and threads measure several batches side by side.
@lru_cache(maxsize=16)
def visible_keys(tokens: SegmentTokens, offsets: tuple[int, ...]) -> RowMasses:
    """How many keys of each kind each query sees, the same for every head: the head axis is 1.

    In layers with windows the tokens say theirs.
    """
    parts = []
    for number, length in enumerate(tokens.lengths):
        own = tokens.one(number)
        before, after = (length, length) if own.window is None else own.window
        seen = np.triu(np.ones((1, length, length)), -before)
        parts.append(sums_of_rows(np.tril(seen, 0 if own.causal else after), own, offsets))
    return joined_rows(parts, tokens)


def sums_of_pairs(cells: Floats, tokens: SegmentTokens) -> Floats:
    """(head, query, relation): for each query the sum over its pairs, given (head, pair)."""
    _, members = tokens.pairs
    found = np.zeros((len(members), len(cells), len(tokens)), dtype=cells.dtype)
    for own, (queries, first), sums in zip(members, tokens.queries, found, strict=True):
        if len(own):
            sums[:, queries] = np.add.reduceat(cells[:, own], first, axis=1)
    return np.moveaxis(found, 0, -1)


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
    wide = values_of(weight).double().cpu()
    per_head = wide.unflatten(1, (n_heads, -1)).transpose(0, 1)
    return torch.linalg.qr(per_head, mode="r")[1].mT.float().to(weight.device)


def _columns(sums: Floats, numbers: npt.NDArray[np.int64]) -> Floats:
    """Some of (head, query, column); each column lies together in memory, as in `sums`."""
    return np.swapaxes(np.swapaxes(sums, 1, 2)[:, numbers], 1, 2)


class PassMasses:
    """Gives the masses of every layer for batches of segments."""

    def __init__(
        self,
        model: Model,
        *,
        offsets: tuple[int, ...],
        by_norm: bool,
        profile: bool,
        impl: str | None = None,
    ) -> None:
        self.model, self.offsets, self.profile = model, offsets, profile
        self.impl = model.impl if impl is None else impl
        self.corners = _corners(model.body) if by_norm else None

    def __call__(self, batch: Batch, visit: Visit) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        body, device = self.model.body, self.model.body.word.weight.device
        with torch.no_grad():
            inputs = batch.inputs(device)
            tokens, n = batch.tokens, len(batch.tokens)
            allowed = AllowedKeys(
                1, n, device, self.model.config.causal, packed=tuple(tokens.lengths)
            )
            one = _OneBatch(self, tokens, device)
            evaluation = Evaluation(allowed, self.impl, one.want, one.of_layer)

            def told(at: LayerPass) -> None:
                visit(at.index, one.masses(at))

            last = len(body.layers) - 1
            hidden = embedded(body, inputs, allowed)
            hidden = run_layers(body, hidden, evaluation, stop=last, visit=told)
            at = LayerPass(body.layers[last], last, evaluation, known={"resid_pre": hidden})
            _ = at.z
            told(at)


class _OneBatch:
    """What is the same for all layers of a batch, and the norms of the layer that is computed."""

    def __init__(self, asked: PassMasses, tokens: SegmentTokens, device: torch.device) -> None:
        self.asked = asked
        self.rows = BatchRows(tokens, asked.offsets, device)
        pairs = torch.from_numpy(tokens.pairs[0]).to(device)
        self.want: Want = {
            "entropy": (),
            "received": (),
            "offset_mass": asked.offsets,
            "pair_mass": pairs[None],
        }
        if asked.profile:
            self.want["profile"] = ()
        self.norms: Tensor | None = None

    def of_layer(self, at: LayerPass) -> Want:
        classes = self.rows.classes
        if self.asked.corners is None:
            return {"key_sums": classes[None, None]}
        # Several heads may read one key-value head.
        value = at.value.float().repeat_interleave(at.attention.group, 1)
        moved = value @ self.asked.corners[at.index]
        self.norms = torch.linalg.vector_norm(moved, dim=-1)  # 1 head token
        return {"key_sums": columns_by_norm(classes[None], self.norms)}

    def masses(self, at: LayerPass) -> RowMasses:
        found: Any = at.statistics
        names = ("key_sums", "offset_mass", "pair_mass", "entropy", "received")
        numbers = {name: getattr(found, name)[0].cpu().numpy() for name in names}
        profile = found.profile[0].cpu().numpy() if self.asked.profile else None
        norms = None if self.norms is None else self.norms[0].cpu().numpy()
        return self.rows.masses(Numbers(**numbers, profile=profile), norms)


def _corners(body: Body) -> list[Tensor]:
    """That of each layer's output projection."""
    with torch.no_grad():
        return [
            corner_of(layer.attention.output.matrix.mT, layer.attention.n_heads)
            for layer in body.layers
        ]


class AttachedMasses:
    """Gives the masses of every layer of a stack for batches of segments of one length.

    Raises SurveyError for masses by norm where z does not go straight into an output projection.
    """

    def __init__(
        self, model: AttachedStack, *, offsets: tuple[int, ...], by_norm: bool, profile: bool
    ) -> None:
        self.model, self.offsets, self.profile = model, offsets, profile
        self.corners = _live_corners(model) if by_norm else None

    def __call__(self, batch: Batch, visit: Visit) -> None:
        """Hands the masses of layer 0, 1, ... in turn to `visit`."""
        one = _LiveBatch(self, batch, self.model.device)
        ids, kinds = (
            torch.tensor([getattr(segment, name) for segment in batch.segments])
            for name in ("ids", "kinds")
        )
        with torch.no_grad():
            self.model.run(ids, kinds, lambda layer, call: visit(layer, one.masses(layer, call)))


class _LiveBatch:
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


def _live_corners(model: AttachedStack) -> list[Tensor]:
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
