"""Attention and its statistics in one pass over blocks of rows: O(N) memory, no gradient.

Place: `chunked.py` is this with values; `sdpa.py` asks it, without values, for what torch's fused
kernel does not give. `rows.py` has the same formulas for all rows at once, differentiable.

With t = scores − row_max, l = sum exp(t) and W = sum exp(t)·t of a row:
lse = row_max + ln l, max_prob = 1 / l, entropy = ln l − W / l, a sum of two terms >= 0.
probs = exp(t) / l are never made: what is summed over keys is divided by l afterwards, what is
summed over queries is summed with weights 1 / l.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from minibert.axes import Float, Int
from minibert.kernels.blocks import Block, Inputs, floor_of, parts_of
from minibert.kernels.wants import Want

__all__ = ["SoftmaxRows", "attend_in_blocks", "softmax_rows"]

#: What a row has that sees no key.
_DEAD = {"lse": -math.inf, "row_max": -math.inf, "argmax": -1}
_PER_ROW = ("row_max", "max_prob", "entropy", "argmax")


@dataclass(frozen=True, eq=False)
class SoftmaxRows:
    """The softmax of a block: weights exp(t), unnormalised, in the memory of the block."""

    block: Block
    weights: Float[Tensor, "sentence head rows key"]
    found: dict[str, Float[Tensor, "sentence head rows"]]
    """lse and the wanted of row_max, max_prob, entropy and argmax."""
    normaliser: Float[Tensor, "sentence head rows"]
    """1 / l; 0 for a dead row."""


def softmax_rows(block: Block, want: Want) -> SoftmaxRows:
    """The softmax of the rows of a block, and what `want` names of each row."""
    scores = block.scores
    if "argmax" in want:
        row_max, argmax = scores.max(dim=-1, keepdim=True)
    else:
        row_max, argmax = scores.amax(dim=-1, keepdim=True), None
    shifted = scores.sub_(row_max)
    # W needs both t and exp(t).
    weights = torch.exp(shifted, out=block.second() if "entropy" in want else shifted)
    total = weights.sum(dim=-1)
    row_max, normaliser = row_max.squeeze(-1), 1 / total
    found = {"lse": row_max + total.log()}
    if "row_max" in want:
        found["row_max"] = row_max
    if "max_prob" in want:
        found["max_prob"] = normaliser
    if "entropy" in want:
        # In place: a product of its own would be memory that is new for each block.
        found["entropy"] = total.log() - shifted.mul_(weights).sum(dim=-1) * normaliser
    if argmax is not None:
        found["argmax"] = argmax.squeeze(-1)
    if block.may_be_dead:
        dead = row_max == floor_of(scores)
        found = {n: values.masked_fill(dead, _DEAD.get(n, 0)) for n, values in found.items()}
        normaliser = normaliser.masked_fill(dead, 0)
    return SoftmaxRows(block, weights, found, normaliser)


def attend_in_blocks(
    inputs: Inputs, value: Float[Tensor, "batch head key d_head"] | None, want: Want
) -> dict[str, Tensor]:
    """lse and the wanted statistics, and z in the same pass where there are values."""
    with torch.no_grad():
        results = _Results(inputs, value, want)
        for part in parts_of(inputs):
            values = None if value is None else part.of_keys(value)
            for block in part.blocks():
                results.add(softmax_rows(block, want), values)
        return results.finished()


class _Results:
    """The outputs, filled block by block; what no block reaches stays as for a dead row."""

    def __init__(self, inputs: Inputs, value: Tensor | None, want: Want) -> None:
        self.inputs, self.want = inputs, want
        (B, H, Q, D), K = inputs.query.shape, inputs.key.shape[2]
        shapes: dict[str, tuple[int, ...]] = {"lse": (B, H, Q)}
        shapes |= {name: (B, H, Q) for name in _PER_ROW if name in want}
        shapes |= {n: (B, H, Q, len(want[n])) for n in ("key_mass", "offset_mass") if n in want}
        if "received" in want:
            shapes["received"] = (B, H, K)
        if "map" in want:
            shapes["map"] = (B, H, *(n_blocks(n, want["map"][0]) for n in (Q, K)))
        self.found = {name: self._new(name, shape, inputs.dtype) for name, shape in shapes.items()}
        if value is not None:
            self.found["z"] = self._new("z", (B, H, Q, D), inputs.query.dtype)

    def _new(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        dtype = torch.int64 if name == "argmax" else dtype
        device = self.inputs.query.device
        return torch.full(shape, _DEAD.get(name, 0), dtype=dtype, device=device)

    @cached_property
    def real(self) -> Tensor | None:
        return self.inputs.real_rows()

    def add(self, rows: SoftmaxRows, values: Float[Tensor, "unit key d_head"] | None) -> None:
        """Put the rows of a block in their place and add them to what is summed over queries."""
        block, found = rows.block, self.found
        for name, numbers in rows.found.items():
            found[name][block.place] = numbers
        flat = rows.weights.flatten(0, 1)
        if values is not None:
            z = torch.bmm(flat, values[:, : block.n_keys]).view(*rows.weights.shape[:3], -1)
            found["z"][block.place] = z.mul_(rows.normaliser.unsqueeze(-1))
        if "key_mass" in self.want or "offset_mass" in self.want:
            self._add_masses(rows)
        if "received" in self.want or "map" in self.want:
            self._add_columns(rows, flat)

    @cached_property
    def watched_keys(self) -> Int[Tensor, "query watched"]:
        """The keys each query's mass is wanted at: key_mass, then offset_mass; −1 for none."""
        Q, K = self.inputs.query.shape[2], self.inputs.key.shape[2]
        options: dict[str, Any] = {"device": self.inputs.query.device, "dtype": torch.int64}
        positions = torch.arange(Q, **options)[:, None] + self.inputs.shift
        fixed = torch.tensor(self.want.get("key_mass", ()), **options).expand(Q, -1)
        near = positions + torch.tensor(self.want.get("offset_mass", ()), **options)
        keys = torch.cat((fixed, near), dim=1)
        return torch.where((keys >= 0) & (keys < K), keys, -1)

    def _add_masses(self, rows: SoftmaxRows) -> None:
        block, last = rows.block, rows.block.n_keys - 1
        keys = self.watched_keys[block.rows]
        seen = (keys >= 0) & (keys <= last)
        keys = keys.clamp(0, last).expand(*rows.weights.shape[:2], -1, -1)
        mass = rows.weights.gather(-1, keys).mul_(seen * rows.normaliser.unsqueeze(-1))
        n_fixed = len(self.want.get("key_mass", ()))
        if "key_mass" in self.want:
            self.found["key_mass"][block.place] = mass[..., :n_fixed]
        if "offset_mass" in self.want:
            self.found["offset_mass"][block.place] = mass[..., n_fixed:]

    def _add_columns(self, rows: SoftmaxRows, flat: Tensor) -> None:
        block, found = rows.block, self.found
        counted = rows.normaliser
        if self.real is not None:
            counted = counted * block.part.of_rows(self.real, block.rows)
        counted = counted.flatten(0, 1).unsqueeze(1)  # unit 1 rows
        B, H = block.place[:2]
        if "map" not in found:
            sums = torch.bmm(counted, flat).squeeze(1)
            found["received"][B, H, : block.n_keys] += sums.view(*rows.weights.shape[:2], -1)
            return
        Q, K = self.inputs.query.shape[2], self.inputs.key.shape[2]
        size = math.ceil(Q / self.want["map"][0])
        first, stop = block.rows.start // size, n_blocks_of(block.rows.stop, size)
        positions = torch.arange(block.rows.start, block.rows.stop, device=flat.device)
        member = positions // size == torch.arange(first, stop, device=flat.device)[:, None]
        sums = torch.bmm(counted * member, flat).view(*rows.weights.shape[:2], stop - first, -1)
        if "received" in found:
            found["received"][B, H, : block.n_keys] += sums.sum(dim=2)
        pooled = _pooled(sums, math.ceil(K / self.want["map"][0]))
        found["map"][B, H, first:stop, : pooled.shape[-1]] += pooled

    def finished(self) -> dict[str, Tensor]:
        """The outputs, sums over cells of the map divided by their number."""
        if "map" in self.found:
            Q, K = self.inputs.query.shape[2], self.inputs.key.shape[2]
            blocks = self.want["map"][0]
            rows = _counts(self.inputs.query_lengths(), Q, blocks, self.found["map"])
            columns = _counts(self.inputs.lengths, K, blocks, self.found["map"])
            cells = rows[:, None, :, None] * columns[:, None, None, :]
            self.found["map"] /= cells.clamp_min(1)
        return self.found


def n_blocks(n: int, blocks: int) -> int:
    """Blocks that n rows or columns are cut into when at most `blocks` are asked for."""
    return n_blocks_of(n, math.ceil(n / blocks))


def n_blocks_of(n: int, size: int) -> int:
    """Blocks of `size` that hold n rows or columns."""
    return math.ceil(n / size)


def _pooled(sums: Float[Tensor, "*lead key"], size: int) -> Float[Tensor, "*lead key_block"]:
    missing = -sums.shape[-1] % size
    return torch.nn.functional.pad(sums, (0, missing)).unflatten(-1, (-1, size)).sum(dim=-1)


def _counts(lengths: Tensor | None, n: int, blocks: int, like: Tensor) -> Tensor:
    """Real rows or columns of each block: (batch or 1, block)."""
    real = like.new_ones(1, n)
    if lengths is not None:
        real = (torch.arange(n, device=like.device) < lengths[:, None]).to(like.dtype)
    return _pooled(real, math.ceil(n / blocks))
