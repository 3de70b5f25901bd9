"""Attention and its statistics in blocks of rows: O(N) memory on any machine, no N x N tensor.

What a block is, and which keys it spares, is in `blocks.py`; the formulas are in `row_blocks.py`.

Packed sentences without anything that needs a mask have blocks of their own here. torch's softmax
and log_softmax each read a row several times while it is in the cache, so together they take less
time than the same steps one by one. With p a row of probs: entropy = −sum p·ln p, max_prob = max p
and lse = row_max − ln max p. No gradient flows through it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from minibert.kernels import work_memory
from minibert.kernels.blocks import floor_of
from minibert.kernels.call import Call, Outputs, most_ranks, ranked
from minibert.kernels.folding import sentence_by_sentence
from minibert.kernels.row_blocks import Pairs, attend_in_blocks, diagonal_sums, skewed
from minibert.kernels.work_memory import WorkMemory

_NUMBERS = ("lse", "row_max", "max_prob", "entropy", "received")


def attend(call: Call) -> Outputs:
    """z, lse and the wanted statistics in one pass; no gradient flows through it.

    Computed in float32, in float64 for float64. Keys outside a window are not read. Beside the
    outputs it holds two blocks of 2^20 numbers for each thread (2^18 where that is all of a head),
    2^22 at most, or of 16 rows where those are longer; the sums of each row and z of a block; and
    copies of the keys of some heads, with their queries and values where these are of several
    sentences, in half precision, or not contiguous in d_head. A map with cells of less than four
    rows takes a third block. The memory of blocks and copies is kept for the next call
    (`work_memory.release` gives it back).
    """
    if call.packed is None:
        return attend_in_blocks(call, with_z=True)
    plain = call.query.shape[1] == call.key.shape[1] and call.key.shape == call.value.shape
    others = (call.packed_keys, call.window, call.prefix, call.soft_cap, call.alibi_slopes)
    if plain and call.sinks is None and all(one is None for one in others):
        return _attend_packed(call, call.packed)
    return sentence_by_sentence(attend, call)


def _attend_packed(call: Call, packed: tuple[int, ...]) -> Outputs:
    """z and what is wanted of each sentence alone, one after the other along the tokens."""
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        longest = call.query[:, :, : max(packed)]
        with WorkMemory(longest, n_keys=max(packed), causal=call.causal) as memory:
            sentences = _Sentences(call, memory)
            first = 0
            for length in packed:
                sentences.add(first, length, causal=call.causal)
                first += length
            return sentences.finished()


class _Sentences:
    """The outputs of all tokens, filled a sentence at a time."""

    def __init__(self, call: Call, memory: WorkMemory) -> None:
        query, want = call.query, call.want
        dtype, (_, H, T, _) = memory.dtype, query.shape
        self.want, self.memory, self.scale = want, memory, call.scale
        self.z = torch.empty_like(query)
        self.query, self.key, self.value = (
            one[0].to(dtype) for one in (query, call.key, call.value)
        )
        new = query.new_zeros
        self.rows = {name: new(H, T, dtype=dtype) for name in _NUMBERS if name in want}
        if "argmax" in want:
            self.rows["argmax"] = new(H, T, dtype=torch.int64)
        for name in ("key_mass", "offset_mass"):
            if name in want:
                self.rows[name] = new(len(want[name]), H, T, dtype=dtype)
        self.ranks = most_ranks(want)
        self.top_keys = query.new_full((H, T, self.ranks), -1, dtype=torch.int64)
        self.top_probs = new(H, T, self.ranks, dtype=dtype)
        #: What is asked of several tokens together, or by numbers of all of them.
        self.others: dict[str, Tensor] = {}
        if "key_sums" in want:
            # As rows: with few columns a product of matrices is several times slower.
            self.columns = want["key_sums"][0].to(dtype).expand(H, -1, -1).mT
            self.others["key_sums"] = new(H, self.columns.shape[1], T, dtype=dtype)
        if "pair_mass" in want:
            self.pairs = Pairs(want["pair_mass"][0])
            self.others["pair_mass"] = new(H, len(self.pairs.query), dtype=dtype)
        #: Of each sentence that is done.
        self.profiles: list[Tensor] = []

    def add(self, first: int, length: int, *, causal: bool) -> None:
        """Compute the sentence of so many tokens from the first one on."""
        tokens = slice(first, first + length)
        query, key = self.query[:, tokens], self.key[:, tokens]
        # Before and not after: a product may be more than a number can hold.
        scaled = self.memory.vectors("keys", tuple(key.shape))
        columns = torch.mul(key, self.scale, out=scaled).transpose(1, 2)
        value, z = self.value[:, tokens], self.z[0, :, tokens]
        rows = {name: numbers[..., tokens] for name, numbers in self.rows.items()}
        if "profile" in self.want:
            self.profiles.append(scaled.new_zeros(len(query), 2 * length - 1))
        for heads, start, stop in self._blocks(length, causal):
            n_keys = stop if causal else length
            shape = (heads.stop - heads.start, stop - start, n_keys)
            scores, logs = self.memory.scores(shape), self.memory.second(shape)
            torch.bmm(query[heads, start:stop], columns[heads, :, :n_keys], out=scores)
            if causal:
                ahead = self.memory.ahead[: stop - start, : stop - start]
                scores[..., start:].masked_fill_(ahead, floor_of(scores))
            self._put_scores(rows, scores, heads, start)
            if self.ranks:
                best, strongest = scores.topk(min(self.ranks, n_keys))
                here = (heads, slice(first + start, first + stop), slice(strongest.shape[-1]))
                self.top_keys[here] = strongest.masked_fill(~(best > floor_of(best)), -1)
            if "entropy" in rows:
                torch.log_softmax(scores, -1, out=logs)
            probs = torch.softmax(scores, -1, out=scores)
            if self.ranks:
                self.top_probs[here] = probs.gather(-1, strongest)
            products = self.memory.vectors("z", (*shape[:2], z.shape[-1]))
            z[heads, start:stop].copy_(torch.bmm(probs, value[heads, :n_keys], out=products))
            if "profile" in self.want:
                self._put_diagonals(rows, probs, heads, slice(start, stop))
            self._put_probs(rows, probs, heads, start)
            self._put_others(probs, heads, first, length, slice(start, stop))
            if "entropy" in rows:
                torch.sum(logs.mul_(probs), -1, out=rows["entropy"][heads, start:stop])

    def _blocks(self, length: int, causal: bool) -> Iterator[tuple[slice, int, int]]:
        """Heads, and from which row to which: as many as fit the memory of a block."""
        H, cells = len(self.query), self.memory.cells
        n_rows = min(length, max(work_memory.LEAST_ROWS, cells // length))
        if causal and length > 2 * work_memory.CAUSAL_ROWS:
            n_rows = min(n_rows, work_memory.CAUSAL_ROWS)
        n_heads = max(1, min(H, cells // (n_rows * length)))
        for head in range(0, H, n_heads):
            heads = slice(head, min(head + n_heads, H))
            for start in range(0, length, n_rows):
                yield heads, start, min(start + n_rows, length)

    def _put_scores(
        self, rows: dict[str, Tensor], scores: Tensor, heads: slice, start: int
    ) -> None:
        here = (heads, slice(start, start + scores.shape[1]))
        if "argmax" in rows:
            torch.argmax(scores, -1, out=rows["argmax"][here])
        for name in ("row_max", "lse"):
            if name in rows:
                torch.amax(scores, -1, out=rows[name][here])

    def _put_probs(self, rows: dict[str, Tensor], probs: Tensor, heads: slice, start: int) -> None:
        n_rows, n_keys = probs.shape[1:]
        here = (heads, slice(start, start + n_rows))
        if "max_prob" in rows or "lse" in rows:
            largest = probs.amax(-1)
            if "max_prob" in rows:
                rows["max_prob"][here] = largest
            if "lse" in rows:
                rows["lse"][here] -= largest.log_()
        if "received" in rows:
            rows["received"][heads, :n_keys] += probs.sum(1)
        for number, position in enumerate(self.want.get("key_mass", ())):
            if position < n_keys:
                rows["key_mass"][(number, *here)] = probs[..., position]
        if "profile" in self.want:
            # Their diagonals are columns there.
            return
        for number, offset in enumerate(self.want.get("offset_mass", ())):
            diagonal = probs.diagonal(start + offset, 1, 2)
            left = start + max(0, -(start + offset))
            rows["offset_mass"][number, heads, left : left + diagonal.shape[-1]] = diagonal

    def _put_others(
        self, probs: Tensor, heads: slice, first: int, length: int, rows: slice
    ) -> None:
        n_keys, here = probs.shape[2], slice(first + rows.start, first + rows.stop)
        if "key_sums" in self.others:
            columns = self.columns[heads, :, first : first + n_keys]
            self.others["key_sums"][heads, :, here] = torch.bmm(columns, probs.mT)
        if "pair_mass" in self.others:
            own = self.pairs.of(here)
            key = self.pairs.key[own]
            cells = torch.add(key, self.pairs.query[own], alpha=n_keys)
            cells -= here.start * n_keys + first
            if n_keys == length:
                masses = probs.flatten(1).index_select(1, cells)
            else:
                masses = probs.flatten(1).index_select(1, cells.clamp_(max=probs[0].numel() - 1))
                masses *= key < first + n_keys
            self.others["pair_mass"][heads, own] = masses

    def _put_diagonals(
        self, rows: dict[str, Tensor], probs: Tensor, heads: slice, here: slice
    ) -> None:
        """The sums of diagonals, and the mass at offsets, which are some of them."""
        columns, profile = skewed(probs, self.memory.diagonals), self.profiles[-1]
        last = (profile.shape[1] + 1) // 2 - here.stop
        ones = self.memory.ones[:, : probs.shape[1]].expand(len(probs), 1, -1)
        profile[heads, last : last + columns.shape[-1]] += diagonal_sums(ones, columns)
        for number, offset in enumerate(self.want.get("offset_mass", ())):
            column = here.stop - 1 + offset
            if 0 <= column < columns.shape[-1]:
                rows["offset_mass"][number, heads, here] = columns[..., column]

    def finished(self) -> dict[str, Tensor]:
        """The outputs by name, with the axis of the batch in front."""
        found = {n: numbers.unsqueeze(0) for n, numbers in (self.rows | self.others).items()}
        if "key_sums" in found:
            found["key_sums"] = found["key_sums"].mT
        if self.ranks:
            found |= ranked(self.want, self.top_keys[None], self.top_probs[None])
        if "pair_mass" in found:
            found["pair_mass"] = self.pairs.as_given(found["pair_mass"])
        if self.profiles:
            found["profile"] = torch.cat(self.profiles, dim=1).unsqueeze(0)
        if "entropy" in found:
            found["entropy"].neg_().clamp_(min=0)
        for name in ("key_mass", "offset_mass"):
            if name in found:
                found[name] = self.rows[name].permute(1, 2, 0).unsqueeze(0)
        return {"z": self.z} | found
