"""Masked scores in blocks of a few MiB, so that N x N is never held.

They serve `row_blocks.py` (z and statistics in one pass; for torch's kernels only the statistics)
and `columns.py` (sums over queries). Formulas and units: `api.Statistics`.

A block is whole rows, some queries against every key they may see, so that its softmax is final and
nothing is rescaled later. It holds a head for each thread, or several, since a product of matrices
is cut between threads by heads best. The keys of more heads are made ready together. Padding keys,
and keys that lie ahead of every query of the block, are not computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from minibert.kernels.call import Call, wide
from minibert.kernels.work_memory import LEAST_ROWS, WorkMemory
from minibert.quantities import Float, Int


class Inputs:
    """A call as its blocks read it: what every block asks for is looked up once."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.query, self.key, self.scale = call.query, call.key, call.scale
        self.lengths, self.mask, self.causal = call.lengths, call.mask, call.causal
        self.window, self.prefix = call.window, call.prefix

    @property
    def dtype(self) -> torch.dtype:
        """The dtype everything is computed in."""
        return wide(self.query.dtype)

    @property
    def shift(self) -> int:
        """K − Q: query i stands at position i + shift."""
        return self.key.shape[2] - self.query.shape[2]

    @property
    def group(self) -> int:
        """Query heads that read one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def longest_prefix(self) -> int:
        """Keys that some sentence's queries see in spite of causal order."""
        return 0 if self.prefix is None else int(self.prefix.max())

    @cached_property
    def slopes(self) -> Float[Tensor, "#batch head 1 1"]:
        """`alibi_slopes` beside scores."""
        assert self.call.alibi_slopes is not None
        slopes = self.call.alibi_slopes.to(self.dtype)
        return (slopes if slopes.ndim == 2 else slopes[None])[..., None, None]

    def span(self, rows: slice, n_keys: int) -> slice:
        """The first n_keys keys as far as one of these rows may see them; empty where none may."""
        first, last = rows.start + self.shift, rows.stop - 1 + self.shift
        before, after = self.window or (None, None)
        start, stop = 0, n_keys
        if before is not None:
            start = max(0, first - before)
        if self.causal:
            stop = min(stop, max(last + 1, self.longest_prefix))
        if after is not None:
            stop = min(stop, last + 1 + after)
        return slice(start, max(start, stop))

    def widest(self, n_rows: int, n_keys: int) -> int:
        """The most keys that so many rows one after the other may see."""
        before, after = self.window or (None, None)
        if before is None or (after is None and not self.causal):
            return n_keys
        return min(n_keys, n_rows + before + (0 if after is None else after))

    def query_lengths(self) -> Int[Tensor, " batch"] | None:
        """Real queries of each sentence; None: all. Lengths count keys: known in self-attention."""
        return self.lengths if self.shift == 0 else None

    def real_rows(self) -> Float[Tensor, "batch 1 query"] | None:
        """1 for a real query and 0 for padding; None where every row counts."""
        lengths = self.query_lengths()
        if lengths is None:
            return None
        rows = torch.arange(self.query.shape[2], device=self.query.device)
        return (rows < lengths[:, None, None]).to(self.dtype)


@dataclass(frozen=True, eq=False)
class Part:
    """Heads of sentences that have the same number of real keys, `n_together` of them a block.

    A unit is one head of one sentence.
    """

    inputs: Inputs
    sentences: slice
    heads: slice
    n_together: int
    n_keys: int
    memory: WorkMemory

    def queries(self) -> Float[Tensor, "unit query d_head"]:
        """All their queries."""
        return self.rows_of("queries", self.inputs.query)

    def keys(self) -> Float[Tensor, "unit real_key d_head"]:
        """The real keys, times the scale."""
        key = self._of_keys(self.inputs.key)
        # Heads that are read by several come as often: a product takes them one by one.
        out = self.memory.vectors("keys", tuple(key.shape))
        # Before and not after: a product may be more than a number can hold.
        if key.dtype == out.dtype:
            return torch.mul(key, self.inputs.scale, out=out).flatten(0, 1)
        return out.copy_(key).mul_(self.inputs.scale).flatten(0, 1)

    def values(
        self, value: Float[Tensor, "batch kv_head key d_value"]
    ) -> Float[Tensor, "unit real_key d_value"]:
        """The values of the real keys."""
        return self._flat("values", self._of_keys(value))

    def rows_of(
        self, name: str, vectors: Float[Tensor, "batch head query d_head"]
    ) -> Float[Tensor, "unit query d_head"]:
        """Vectors of all queries; `name` is that of the memory for a copy."""
        return self._flat(name, vectors[self.sentences, self.heads])

    def _of_keys(self, vectors: Tensor) -> Tensor:
        group = self.inputs.group
        if group == 1:
            return vectors[self.sentences, self.heads, : self.n_keys]
        heads = torch.arange(self.heads.start, self.heads.stop, device=vectors.device) // group
        # index_select takes ten times as long.
        return vectors[self.sentences, :, : self.n_keys][:, heads]

    def _flat(self, name: str, vectors: Tensor) -> Tensor:
        # A matrix product reads the heads of one sentence where they are.
        here = len(vectors) == 1 and vectors.stride(-1) == 1
        if here and vectors.dtype == self.inputs.dtype:
            return vectors[0]
        return self.memory.vectors(name, tuple(vectors.shape)).copy_(vectors).flatten(0, 1)

    def blocks(self, rows: slice = slice(None), *, multiple: int = 1) -> Iterator["Block"]:
        """The blocks of rows from first to last; rows that see no key are left out.

        All blocks but the last have a multiple of `multiple` rows, where that leaves enough.
        """
        inputs = self.inputs
        first, stop, _ = rows.indices(inputs.query.shape[2])
        if inputs.causal and inputs.prefix is None:
            first = max(first, -inputs.shift)
        query, columns = self.queries(), self.keys().transpose(-2, -1)
        n_sentences = self.sentences.stop - self.sentences.start
        widest = inputs.widest(self.memory.most_rows, self.n_keys)
        step = self.memory.n_rows(n_sentences * self.n_together, widest)
        aligned = step // multiple * multiple
        step = aligned if aligned >= LEAST_ROWS else step
        for head in range(self.heads.start, self.heads.stop, self.n_together):
            heads = slice(head, min(head + self.n_together, self.heads.stop))
            for start in range(first, stop, step):
                rows = slice(start, min(start + step, stop))
                keys = inputs.span(rows, self.n_keys)
                if keys.start < keys.stop:
                    yield self._block(query, columns, (self.sentences, heads, rows), keys)

    def _block(
        self, query: Tensor, columns: Tensor, place: tuple[slice, slice, slice], keys: slice
    ) -> "Block":
        _, heads, rows = place
        units = self._units(heads)
        shape = (len(query[units]), rows.stop - rows.start, keys.stop - keys.start)
        flat = self.memory.scores(shape)
        torch.bmm(query[units, rows], columns[units, :, keys], out=flat)
        scores = flat.view(-1, heads.stop - heads.start, *shape[1:])
        self._shape(scores, place, keys)
        self._mask(scores, place, keys)
        return Block(self, place, units, keys, scores)

    def _shape(self, scores: Tensor, place: tuple[slice, slice, slice], keys: slice) -> None:
        """Soft cap, bias and ALiBi, in the scores of a block."""
        inputs, call, (sentences, heads, rows) = self.inputs, self.inputs.call, place
        if call.soft_cap is not None:
            scores.div_(call.soft_cap).tanh_().mul_(call.soft_cap)
        if call.bias is not None:
            scores += _cut(call.bias, (*place, keys))
        if call.alibi_slopes is not None:
            distance = self.memory.distances(rows.start + inputs.shift - keys.start, scores.shape)
            slopes = _cut(inputs.slopes, (sentences, heads))
            scores.addcmul_(slopes, distance.abs(), value=-1)

    def _mask(self, scores: Tensor, place: tuple[slice, slice, slice], keys: slice) -> None:
        """Puts `floor_of` where no key is allowed."""
        inputs, floor = self.inputs, floor_of(scores)
        if inputs.mask is not None:
            scores.masked_fill_(~_cut(inputs.mask, (*place, keys)), floor)
        rows = place[2]
        if inputs.window is not None or inputs.prefix is not None:
            first, shape = rows.start + inputs.shift - keys.start, scores.shape
            distance = self.memory.distances(first, shape)
            if inputs.prefix is None:
                far = self.memory.known("far", first, shape, lambda: self._far(distance))
            else:
                far = self._far(distance, inputs.prefix[place[0]], keys)
            scores.masked_fill_(far, floor)
        elif inputs.causal:
            # Only the last keys can lie ahead of any row of the block.
            left = min(rows.start + inputs.shift, keys.stop)
            tail = scores[..., left:]
            tail.masked_fill_(self.memory.ahead[: tail.shape[-2], : tail.shape[-1]], floor)

    def _far(
        self, distance: Tensor, prefix: Tensor | None = None, keys: slice = slice(0)
    ) -> Tensor:
        """True where the order, a window or a prefix lets no query look; distance (rows, key)."""
        inputs = self.inputs
        far = torch.zeros_like(distance, dtype=torch.bool)
        if inputs.causal:
            far = distance < 0
            if prefix is not None:
                numbers = torch.arange(keys.start, keys.stop, device=distance.device)
                far = far & (numbers >= prefix[:, None, None, None])
        before, after = inputs.window or (None, None)
        if before is not None:
            far = far | (distance > before)
        if after is not None:
            far = far | (distance < -after)
        return far

    def _units(self, heads: slice) -> slice:
        """Where the units of these heads are."""
        if heads == self.heads:
            return slice(None)
        return slice(heads.start - self.heads.start, heads.stop - self.heads.start)


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of scores with bias, masked cells at `floor_of`. The next block takes their memory."""

    part: Part
    place: tuple[slice, slice, slice]
    """Where its rows stand in (batch, head, query)."""
    units: slice
    """Where its heads stand among those of the part."""
    keys: slice
    """Which of the keys they are of."""
    scores: Float[Tensor, "sentence head rows key"]

    @property
    def rows(self) -> slice:
        """Which of the queries they are."""
        return self.place[2]

    @property
    def may_be_masked(self) -> bool:
        """Whether all the keys of a row can be masked."""
        inputs = self.part.inputs
        return any(one is not None for one in (inputs.mask, inputs.window, inputs.prefix))

    def of_rows(self, numbers: Tensor) -> Tensor:
        """The block's part of (batch, head, query, ...); an axis of 1 stays."""
        return _cut(numbers, self.place)

    def second(self) -> Tensor:
        """Memory for as many numbers, which the next block takes as well."""
        return self.part.memory.second(self.scores.shape)


def parts_of(inputs: Inputs) -> Iterator[Part]:
    """All sentences and heads, in parts; sentences without a key are left out."""
    (B, H, _, D), K = inputs.query.shape, inputs.key.shape[2]
    counts = [K] * B if inputs.lengths is None else inputs.lengths.tolist()
    ordered = inputs.causal or inputs.window is not None
    with WorkMemory(inputs.query, n_keys=K, causal=ordered) as memory:
        for n_keys, run in groupby(range(B), key=lambda sentence: counts[sentence]):
            together = list(run)
            if not n_keys:
                continue
            n_sentences, n_together = memory.n_units(H, n_keys)
            n_sentences = memory.with_room(n_sentences, 1, H * n_keys * D)
            # Of several sentences a block has all the heads.
            n_heads = memory.with_room(H, n_together, n_keys * D) if n_sentences == 1 else H
            for first in range(together[0], together[-1] + 1, n_sentences):
                sentences = slice(first, min(first + n_sentences, together[-1] + 1))
                for head in range(0, H, n_heads):
                    heads = slice(head, min(head + n_heads, H))
                    yield Part(inputs, sentences, heads, n_together, n_keys, memory)


def floor_of(scores: Tensor) -> float:
    """The score of a masked cell: its weight is 0. Finite, since 0·(−inf) would be NaN."""
    return torch.finfo(scores.dtype).min / 2


def _cut(numbers: Tensor, where: tuple[slice, ...]) -> Tensor:
    chosen = (slice(None) if n == 1 else cut for n, cut in zip(numbers.shape, where, strict=False))
    return numbers[tuple(chosen)]
