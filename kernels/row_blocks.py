"""Attention and its statistics in one pass over blocks of rows: O(N) memory, no gradient.

`chunked.py` is this with values; torch's kernels ask it, without values, for what they do not give.
`eager.py` has the same formulas for all rows at once, differentiable.

With t = scores − row_max, l = sum exp(t) and W = sum exp(t)·t of a row:
lse = row_max + ln l, max_prob = 1 / l, entropy = ln l − W / l, a sum of two terms >= 0.
probs = exp(t) / l are never made. Blocks leave m, l, W and sums of exp(t), and all rows are divided
by their l at the end; only z, and what is summed over queries, has the weights 1 / l at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from minibert.kernels.blocks import Block, Inputs, floor_of, parts_of
from minibert.kernels.call import Call, Outputs, Want, most_ranks, ranked, wide
from minibert.quantities import Float, Int

#: Cells of fewer rows than this are summed faster by a product of matrices with all rows.
_SEPARATE = 4


@dataclass(frozen=True, eq=False)
class RowSums:
    """What the softmax of rows is made of: of all rows, or, by `of`, of those of a block."""

    row_max: Float[Tensor, "sentence head rows 1"]
    total: Float[Tensor, "sentence head rows 1"]
    """l"""
    product: Float[Tensor, "sentence head rows 1"] | None = None
    """W; None where it is not needed."""
    argmax: Int[Tensor, "sentence head rows 1"] | None = None
    sink: Float[Tensor, "1 head 1 1"] | None = None

    @classmethod
    def empty(
        cls,
        rows: Float[Tensor, "sentence head rows any"],
        want: Want,
        sinks: Float[Tensor, " head"] | None = None,
    ) -> "RowSums":
        """The sums of as many rows, none of which sees a key."""
        numbers = rows.new_ones((*rows.shape[:3], 1), dtype=wide(rows.dtype))
        return cls(
            numbers * floor_of(numbers),
            numbers,
            torch.zeros_like(numbers) if "entropy" in want else None,
            torch.full_like(numbers, -1, dtype=torch.int64) if "argmax" in want else None,
            None if sinks is None else sinks.to(numbers.dtype)[None, :, None, None],
        )

    def of(self, block: Block) -> "RowSums":
        """Views of the rows of a block."""
        return RowSums(
            self.row_max[block.place],
            self.total[block.place],
            None if self.product is None else self.product[block.place],
            None if self.argmax is None else self.argmax[block.place],
            None if self.sink is None else self.sink[:, block.place[1]],
        )

    def weights(self, block: Block) -> Float[Tensor, "sentence head rows key"]:
        """exp(t) of the block these sums are of, in its memory; the sums are written."""
        scores = block.scores
        if self.argmax is None:
            torch.amax(scores, dim=-1, keepdim=True, out=self.row_max)
        else:
            torch.max(scores, dim=-1, keepdim=True, out=(self.row_max, self.argmax))
            if block.keys.start:
                self.argmax.add_(block.keys.start)
        shifted = scores.sub_(self.row_max)
        # W needs both t and exp(t).
        weights = torch.exp(shifted, out=shifted if self.product is None else block.second())
        torch.sum(weights, dim=-1, keepdim=True, out=self.total)
        if self.product is not None:
            # In place: a product of its own would be memory that is new for each block.
            torch.sum(shifted.mul_(weights), dim=-1, keepdim=True, out=self.product)
        return weights

    def normaliser(self, *, dead_rows: bool) -> Float[Tensor, "sentence head rows 1"]:
        """1 / (l + exp(sink − m)); with `dead_rows` 0 for a row without an allowed key."""
        total = self.total
        if self.sink is not None:
            total = total + (self.sink - self.row_max).exp()
        normaliser = total.reciprocal()
        return normaliser.masked_fill_(self.dead, 0) if dead_rows else normaliser

    def log_total(self) -> Float[Tensor, "sentence head rows 1"]:
        """lse − m."""
        if self.sink is None:
            return self.total.log()
        return torch.logaddexp(self.total.log(), self.sink - self.row_max)

    @property
    def dead(self) -> Tensor:
        """Which rows have no allowed key."""
        return self.row_max == floor_of(self.row_max)


def attend_in_blocks(call: Call, *, with_z: bool) -> Outputs:
    """lse and the wanted statistics, and z in the same pass where it is asked for."""
    # Half precision is in the inputs already; statistics are wider.
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        results = _Results(call, with_z=with_z)
        for part in parts_of(results.inputs):
            values = part.values(call.value) if with_z else None
            for block in part.blocks(multiple=results.cell[0]):
                results.add(block, values)
        return results.finished()


class _Results:
    """The sums of all rows, filled block by block, and the outputs that are made of them."""

    def __init__(self, call: Call, *, with_z: bool) -> None:
        inputs, want = Inputs(call), call.want
        self.inputs, self.want = inputs, want
        (B, H, Q), K = inputs.query.shape[:3], inputs.key.shape[2]
        self.sums = RowSums.empty(inputs.query, want, call.sinks)
        self.z: Tensor | None = None
        if with_z:
            # Where no row is dead all of it is written.
            new = inputs.query.new_zeros if self.dead_rows else inputs.query.new_empty
            self.z = new((B, H, Q, call.value.shape[3]))
        #: Still without the normalisers of their rows.
        self.masses: dict[str, Tensor] = {}
        for name in ("key_mass", "offset_mass"):
            if name in want:
                self.masses[name] = self._zeros(B, H, Q, len(want[name]))
        if "key_sums" in want:
            columns = want["key_sums"].to(inputs.dtype)
            self.columns = columns.expand(B, H, -1, -1)
            self.masses["key_sums"] = self._zeros(B, H, Q, columns.shape[-1])
        self.ranks = most_ranks(want)
        if self.ranks:
            self.top_keys = inputs.query.new_full((B, H, Q, self.ranks), -1, dtype=torch.int64)
            self.masses["top_probs"] = self._zeros(B, H, Q, self.ranks)
        self.pair_mass: Tensor | None = None
        if "pair_mass" in want:
            self.pair_mass = self._zeros(B, H, want["pair_mass"].shape[1])
            self.pairs = [Pairs(one) for one in want["pair_mass"]]
        self.of_keys: dict[str, Tensor] = {}
        if "profile" in want:
            self.of_keys["profile"] = self._sums(B, H, Q + K - 1)
        if "received" in want:
            self.of_keys["received"] = self._sums(B, H, K)
        #: Queries and keys of a cell of the map.
        self.cell = (1, 1)
        if "map" in want:
            self.cell = (cell_size(Q, want["map"][0]), cell_size(K, want["map"][0]))
            sizes = (n_cells(Q, self.cell[0]), n_cells(K, self.cell[1]))
            self.of_keys["map"] = self._sums(B, H, *sizes)

    def _zeros(self, *shape: int) -> Tensor:
        return self.inputs.query.new_zeros(shape, dtype=self.inputs.dtype)

    def _sums(self, *shape: int) -> Tensor:
        # Of many blocks: in float32 each would round what is there. Not every device has float64.
        zeros = self._zeros(*shape)
        return zeros.double() if zeros.is_cpu else zeros

    @cached_property
    def real(self) -> Tensor | None:
        return self.inputs.real_rows()

    def add(self, block: Block, values: Float[Tensor, "unit key d_head"] | None) -> None:
        """Put the sums of its rows in their place and add to what is summed over queries."""
        sums = self.sums.of(block)
        strongest = self._put_top_keys(block) if self.ranks else None
        weights = sums.weights(block)
        if strongest is not None:
            mass = self.masses["top_probs"][block.place][..., : strongest.shape[-1]]
            mass.copy_(weights.gather(-1, strongest))
        if "key_mass" in self.want:
            self._add_key_mass(block, weights)
        if "offset_mass" in self.want:
            self._add_offset_mass(block, weights)
        if "key_sums" in self.want:
            self._add_key_sums(block, weights)
        if self.of_keys or self.pair_mass is not None or values is not None:
            normaliser = sums.normaliser(dead_rows=block.may_be_masked)
            flat = weights.flatten(0, 1)
            if values is not None:
                self._put_z(block, normaliser, flat, values[block.units, block.keys])
            if self.pair_mass is not None:
                self._put_pair_mass(block, normaliser, weights)
            if self.of_keys:
                self._add_columns(block, normaliser, flat)

    def _put_top_keys(self, block: Block) -> Int[Tensor, "sentence head rows rank"]:
        """Where in the block the largest scores of its rows are; their keys are put in place."""
        best, found = block.scores.topk(min(self.ranks, block.scores.shape[-1]))
        keys = (found + block.keys.start).masked_fill_(~(best > floor_of(best)), -1)
        self.top_keys[block.place][..., : keys.shape[-1]] = keys
        return found

    def _put_z(
        self,
        block: Block,
        normaliser: Tensor,
        weights: Float[Tensor, "unit rows key"],
        values: Float[Tensor, "unit key d_head"],
    ) -> None:
        assert self.z is not None
        z = self.z[block.place]
        if z.is_contiguous() and z.dtype == weights.dtype:
            torch.bmm(weights, values, out=z.flatten(0, 1))
            z *= normaliser
            return
        # A matrix product into rows that are apart takes a third longer than one and a copy.
        products = block.part.memory.vectors("z", tuple(z.shape))
        torch.bmm(weights, values, out=products.flatten(0, 1))
        torch.mul(products, normaliser, out=z)

    @cached_property
    def watched_keys(self) -> Int[Tensor, " watched"]:
        return torch.tensor(self.want["key_mass"], device=self.inputs.query.device)

    def _add_key_mass(self, block: Block, weights: Tensor) -> None:
        last, first = block.keys.stop - 1, block.keys.start
        mass = self.masses["key_mass"][block.place]
        where = self.watched_keys.clamp(first, last) - first
        torch.index_select(weights, -1, where, out=mass)
        if max(self.want["key_mass"]) > last or min(self.want["key_mass"]) < first:
            # Not computed, since no query of the block sees it.
            mass *= (self.watched_keys <= last) & (self.watched_keys >= first)

    def _add_offset_mass(self, block: Block, weights: Tensor) -> None:
        mass = self.masses["offset_mass"][block.place]
        position = block.rows.start + self.inputs.shift - block.keys.start
        for number, offset in enumerate(self.want["offset_mass"]):
            diagonal = weights.diagonal(position + offset, -2, -1)
            first = max(0, -(position + offset))
            mass[..., first : first + diagonal.shape[-1], number] = diagonal

    def _add_key_sums(self, block: Block, weights: Tensor) -> None:
        sentences, heads, _ = block.place
        columns = self.columns[sentences, heads, block.keys]
        # As rows: with few columns a product of matrices is several times slower.
        self.masses["key_sums"][block.place] = (columns.mT @ weights.mT).mT

    def _put_pair_mass(self, block: Block, normaliser: Tensor, weights: Tensor) -> None:
        assert self.pair_mass is not None
        sentences, heads, rows = block.place
        for number, sentence in enumerate(range(sentences.start, sentences.stop)):
            pairs = self.pairs[sentence % len(self.pairs)]
            own = pairs.of(rows)
            query, key = pairs.query[own] - rows.start, pairs.key[own]
            first, last = block.keys.start, block.keys.stop - 1
            seen = (key >= first) & (key <= last)
            masses = weights[number][:, query, key.clamp(first, last) - first]
            masses *= normaliser[number, :, query, 0] * seen
            self.pair_mass[sentence, heads, own] = masses

    def _add_columns(self, block: Block, counted: Tensor, flat: Tensor) -> None:
        if self.real is not None:
            counted = counted * block.of_rows(self.real).unsqueeze(-1)
        counted = counted.flatten(0, 1).transpose(-2, -1)  # unit 1 rows
        (B, H, _), found = block.place, self.of_keys
        heads = block.scores.shape[:2]
        if "profile" in found:
            sums = diagonal_sums(counted, skewed(flat, block.part.memory.diagonals))
            last = self.inputs.query.shape[2] - block.rows.stop + block.keys.start
            found["profile"][B, H, last : last + sums.shape[-1]] += sums.view(*heads, -1)
        if "map" not in found:
            if "received" in found:
                sums = torch.bmm(counted, flat)
                found["received"][B, H, block.keys] += sums.view(*heads, -1)
            return
        size, width = self.cell
        sums = sums_of_cells(counted, flat, block.rows.start, size).unflatten(0, heads)
        if "received" in found:
            found["received"][B, H, block.keys] += sums.sum(dim=2)
        # Cells of the map begin at the first key: zeros stand for the keys before those seen.
        in_cells = pooled(pad(sums, (block.keys.start % width, 0)), width)
        rows, column = block.rows.start // size, block.keys.start // width
        cells = slice(rows, rows + in_cells.shape[2])
        found["map"][B, H, cells, column : column + in_cells.shape[3]] += in_cells

    def finished(self) -> dict[str, Tensor]:
        """z, lse and the statistics of all rows."""
        sums, want = self.sums, self.want
        log_total, normaliser = sums.log_total(), sums.normaliser(dead_rows=self.dead_rows)
        found = {"lse": sums.row_max + log_total}
        if "row_max" in want:
            found["row_max"] = sums.row_max
        if "max_prob" in want:
            found["max_prob"] = normaliser
        if sums.product is not None:
            # What a sink takes is not a key's: of ln l only the keys' share counts.
            share = log_total if sums.sink is None else log_total * sums.total * normaliser
            found["entropy"] = share.addcmul_(sums.product, normaliser, value=-1)
        if sums.argmax is not None:
            found["argmax"] = sums.argmax
        if self.dead_rows:
            dead, nothing = sums.dead, {"lse": -math.inf, "row_max": -math.inf, "argmax": -1}
            found = {n: rows.masked_fill(dead, nothing.get(n, 0)) for n, rows in found.items()}
            if sums.sink is not None:
                found["lse"] = torch.where(dead, sums.sink, found["lse"])
        found = {name: rows.squeeze(-1) for name, rows in found.items()}
        found |= {name: rows.mul_(normaliser) for name, rows in self.masses.items()}
        if self.ranks:
            found |= ranked(want, self.top_keys, found.pop("top_probs"))
        if self.pair_mass is not None:
            every = self.pairs * (len(self.pair_mass) // len(self.pairs))
            given = [p.as_given(one) for p, one in zip(every, self.pair_mass, strict=True)]
            found["pair_mass"] = torch.stack(given)
        if self.z is not None:
            found["z"] = self.z
        return found | self._means()

    @property
    def dead_rows(self) -> bool:
        """Whether a row can be without an allowed key, by mask, length or causal order."""
        inputs = self.inputs
        masks = (inputs.mask, inputs.lengths, inputs.window, inputs.prefix)
        masked = any(one is not None for one in masks)
        return masked or not inputs.key.shape[2] or (inputs.causal and inputs.shift < 0)

    def _means(self) -> dict[str, Tensor]:
        """What is summed over queries; sums over cells of the map divided by their number."""
        if "map" in self.of_keys:
            Q, K = self.inputs.query.shape[2], self.inputs.key.shape[2]
            rows = counts(self.inputs.query_lengths(), Q, self.cell[0], self.of_keys["map"])
            columns = counts(self.inputs.lengths, K, self.cell[1], self.of_keys["map"])
            cells = rows[:, None, :, None] * columns[:, None, None, :]
            self.of_keys["map"] /= cells.clamp_min(1)
        return {name: sums.to(self.inputs.dtype) for name, sums in self.of_keys.items()}


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


def skewed(
    rows: Float[Tensor, "unit rows key"], memory: Callable[[tuple[int, ...]], Tensor]
) -> Float[Tensor, "unit rows diagonal"]:
    """The rows with each diagonal in a column, from that of the last row's first key on.

    What lies outside is 0. They lie in what `memory` gives for a shape.
    """
    units, n_rows, n_keys = rows.shape
    width = n_rows + n_keys - 1
    # What is read after the last row is zero as well.
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


class Pairs:
    """Pairs sorted by query: `query` and `key`."""

    def __init__(self, pairs: Int[Tensor, "pair 2"]) -> None:
        self._place: Tensor | None = None
        query = pairs[:, 0]
        if bool((query[1:] < query[:-1]).any()):
            order = query.argsort(stable=True)
            self._place = torch.empty_like(order)
            self._place[order] = torch.arange(len(order), device=order.device)
            pairs = pairs[order]
        self.query, self.key = pairs.T.contiguous()
        self._queries = self.query.cpu().numpy()

    def of(self, rows: slice) -> slice:
        """The pairs whose query is one of these rows."""
        first, stop = self._queries.searchsorted((rows.start, rows.stop)).tolist()
        return slice(first, stop)

    def as_given(self, masses: Float[Tensor, "*lead pair"]) -> Float[Tensor, "*lead pair"]:
        """Numbers of the pairs in the order in which the pairs were given."""
        return masses if self._place is None else masses[..., self._place]
