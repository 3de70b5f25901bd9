"""Attention in NumPy float64: the truth the other implementations are measured against.

The implementation to read first. It goes from one query to one head to a batch, with the formulas
of Vaswani et al. 2017, §3.2.1:

    Attention(Q, K, V) = softmax(Q·Kᵀ / sqrt(d_head))·V

Nothing here is made fast.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.kernels.allowed_keys import Window
from minibert.kernels.call import RANKED, Call, Outputs, Want, most_ranks
from minibert.kernels.folding import sentence_by_sentence

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def softmax(scores: Array, sink: float | None = None) -> tuple[Array, float]:
    """The probabilities exp(sᵢ) / sum exp(sⱼ), and ln sum exp(sⱼ), the normaliser's logarithm.

    A sink is one more term of the sum. The largest score is subtracted first: the quotient stays
    the same and exp cannot overflow (Milakov & Gimelshein 2018).
    """
    logits = scores if sink is None else np.append(scores, sink)
    largest = logits.max()
    weights = np.exp(logits - largest)
    return weights[: len(scores)] / weights.sum(), float(largest + np.log(weights.sum()))


@dataclass(frozen=True)
class Shaping:
    """The changes to the scores of one head: bias is (query, key), with ALiBi; of a row (key)."""

    scale: float
    bias: Array
    soft_cap: float | None = None
    sink: float | None = None

    def of_row(self, row: int) -> "Shaping":
        """The shaping of one query."""
        return replace(self, bias=self.bias[row])

    def shaped(self, scores: Array) -> Array:
        """The scores with soft cap, bias and ALiBi: what the softmax is of."""
        cap = self.soft_cap
        capped = scores if cap is None else cap * np.tanh(scores / cap)
        return capped + self.bias


def attend_one_query(
    query: Array, keys: Array, values: Array, *, allowed: Flags, shaping: Shaping
) -> tuple[Array, Array, float, Array]:
    """The attention of one query: its scores, probs, lse and z.

    query is (d_head), keys (key, d_head), values (key, d_value), allowed (key).
    """
    scores = shaping.scale * (keys @ query)  # (key)
    probs = np.zeros_like(scores)
    lse = -math.inf if shaping.sink is None else shaping.sink
    if allowed.any():
        # A key that is not allowed takes no part, as if it were not there.
        probs[allowed], lse = softmax(shaping.shaped(scores)[allowed], shaping.sink)
    z = probs @ values  # (d_value)
    return scores, probs, lse, z


@dataclass(frozen=True)
class HeadAttention:
    """All queries of one head: scores and probs (query, key), lse (query), z (query, d_head)."""

    scores: Array
    probs: Array
    lse: Array
    z: Array


def attend_one_head(
    query: Array, keys: Array, values: Array, *, allowed: Flags, shaping: Shaping
) -> HeadAttention:
    """One query after the other: query is (query, d_head), allowed (query, key)."""
    rows = [
        attend_one_query(one, keys, values, allowed=seen, shaping=shaping.of_row(row))
        for row, (one, seen) in enumerate(zip(query, allowed, strict=True))
    ]
    scores, probs, lse, z = zip(*rows, strict=True)
    return HeadAttention(np.array(scores), np.array(probs), np.array(lse), np.array(z))


def allowed_keys(
    n_queries: int,
    n_keys: int,
    *,
    length: int | None,
    mask: Flags | None,
    causal: bool,
    window: Window | None,
    prefix: int | None,
) -> Flags:
    """True (query, key) where one sentence may attend, by all that is given."""
    keys = np.arange(n_keys)
    positions = positions_of(n_queries, n_keys)
    allowed = np.ones((n_queries, n_keys), dtype=bool)
    if length is not None:
        allowed &= keys < length
    if causal:
        allowed &= (keys <= positions) | (keys < (prefix or 0))
    before, after = window or (None, None)
    if before is not None:
        allowed &= keys >= positions - before
    if after is not None:
        allowed &= keys <= positions + after
    return allowed if mask is None else allowed & mask


def positions_of(n_queries: int, n_keys: int) -> npt.NDArray[np.int64]:
    """The position (query, 1) of each query, aligned to the end of the keys."""
    return n_keys - n_queries + np.arange(n_queries)[:, None]


def statistics_of_head(
    head: HeadAttention, *, allowed: Flags, shaping: Shaping, length: int | None, want: Want
) -> dict[str, npt.NDArray[np.generic]]:
    """The wanted statistics of one head, each as `api.Statistics` defines it."""
    Q, K = head.probs.shape
    alive = allowed.any(axis=1)
    masked = np.where(allowed, shaping.shaped(head.scores), -math.inf)
    real_query = np.arange(Q) < (length if length is not None and Q == K else Q)
    real_key = np.arange(K) < (K if length is None else length)
    found: dict[str, npt.NDArray[np.generic]] = {}
    if "row_max" in want:
        found["row_max"] = masked.max(axis=1)
    if "max_prob" in want:
        found["max_prob"] = head.probs.max(axis=1)
    if "entropy" in want:
        found["entropy"] = np.array([entropy(row) for row in head.probs])
    if "argmax" in want:
        found["argmax"] = np.where(alive, masked.argmax(axis=1), -1)
    if "received" in want:
        found["received"] = head.probs[real_query].sum(axis=0)
    if "key_mass" in want:
        found["key_mass"] = head.probs[:, list(want["key_mass"])]
    if "offset_mass" in want:
        found["offset_mass"] = offset_mass(head.probs, want["offset_mass"])
    if "map" in want:
        found["map"] = block_map(head.probs, want["map"][0], real_query, real_key)
    if "key_sums" in want:
        found["key_sums"] = head.probs @ want["key_sums"]
    if "pair_mass" in want:
        found["pair_mass"] = np.array(
            [head.probs[i, j] if i >= 0 else 0.0 for i, j in want["pair_mass"]]
        )
    if "profile" in want:
        rows = head.probs[real_query]
        first = K - Q  # position of the first query
        found["profile"] = np.array([np.trace(rows, first + k) for k in range(1 - K, Q)])
    for name, numbers in zip(RANKED, strongest(head.probs, masked, most_ranks(want)), strict=True):
        if name in want:
            found[name] = numbers[:, : want[name][0]]
    return found


def strongest(probs: Array, masked: Array, ranks: int) -> tuple[npt.NDArray[np.int64], Array]:
    """The keys (query, rank) with the largest masked scores, the largest first, and their probs.

    −1 and 0 where a query sees fewer keys.
    """
    keys = np.full((len(probs), ranks), -1)
    found = np.zeros((len(probs), ranks))
    for row, scores in enumerate(masked):
        order = np.argsort(-scores)[:ranks]
        order = order[scores[order] > -math.inf]
        keys[row, : len(order)], found[row, : len(order)] = order, probs[row, order]
    return keys, found


def entropy(probs: Array) -> float:
    """The entropy −sum p·ln p of one row, in nats; 0·ln 0 counts as 0 (Clark et al. 2019)."""
    # Not `> 0`, which would drop a NaN.
    positive = probs[probs != 0]
    # Subtracting from 0 makes the entropy of a certain row 0 and not −0.
    return float(0.0 - (positive * np.log(positive)).sum())


def offset_mass(probs: Array, offsets: tuple[int, ...]) -> Array:
    """The probability (query, offset) on the key that stands `offset` after the query."""
    Q, K = probs.shape
    found = np.zeros((Q, len(offsets)))
    for i in range(Q):
        for column, offset in enumerate(offsets):
            j = K - Q + i + offset
            if 0 <= j < K:
                found[i, column] = probs[i, j]
    return found


def block_map(probs: Array, blocks: int, real_query: Flags, real_key: Flags) -> Array:
    """The mean probability (block, block) over the real cells of each block."""
    n_rows, n_columns = (math.ceil(n / blocks) for n in probs.shape)
    found = []
    for top in range(0, probs.shape[0], n_rows):
        rows = np.arange(top, min(top + n_rows, probs.shape[0]))
        rows = rows[real_query[rows]]
        line = []
        for left in range(0, probs.shape[1], n_columns):
            columns = np.arange(left, min(left + n_columns, probs.shape[1]))
            columns = columns[real_key[columns]]
            cells = probs[np.ix_(rows, columns)]
            line.append(cells.mean() if cells.size else 0.0)
        found.append(line)
    return np.array(found)


def attend(call: Call) -> Outputs:
    """Everything the call wants, head by head, in float64 whatever the dtype of the inputs."""
    if call.packed is not None:
        return sentence_by_sentence(attend, call)
    B, H, Q, K = (*call.query.shape[:3], call.key.shape[2])
    queries, keys, values = (_float64(tensor) for tensor in (call.query, call.key, call.value))
    masks = None if call.mask is None else call.mask.expand(B, H, Q, K).cpu().numpy()
    biases = _biases((B, H, Q, K), call.bias, call.alibi_slopes)
    group = H // call.key.shape[1]
    found: dict[str, list[Array]] = {}
    for b in range(B):
        length = None if call.lengths is None else int(call.lengths[b])
        prefix = None if call.prefix is None else int(call.prefix[b])
        order: dict[str, Any] = {"causal": call.causal, "window": call.window, "prefix": prefix}
        for h in range(H):
            seen = None if masks is None else masks[b, h]
            allowed = allowed_keys(Q, K, length=length, mask=seen, **order)
            sink = None if call.sinks is None else float(call.sinks[h])
            shaping = Shaping(call.scale, biases[b, h], call.soft_cap, sink)
            vectors = (queries[b, h], keys[b, h // group], values[b, h // group])
            head = attend_one_head(*vectors, allowed=allowed, shaping=shaping)
            wanted = of_head(call.want, b, h)
            statistics = statistics_of_head(
                head, allowed=allowed, shaping=shaping, length=length, want=wanted
            )
            for name, numbers in (vars(head) | statistics).items():
                found.setdefault(name, []).append(numbers)
    return {
        name: torch.from_numpy(np.array(heads).reshape(B, H, *heads[0].shape)).to(call.query.device)
        for name, heads in found.items()
    }


def _biases(
    shape: tuple[int, int, int, int], bias: Tensor | None, alibi_slopes: Tensor | None
) -> Array:
    """What is added to the scores, ALiBi with it, (batch, head, query, key)."""
    B, H, Q, K = shape
    added = np.zeros(shape) if bias is None else _float64(bias.expand(shape))
    if alibi_slopes is None:
        return added
    slopes = _float64(alibi_slopes.expand(B, H))[..., None, None]
    return added - slopes * np.abs(positions_of(Q, K) - np.arange(K))


def of_head(want: Want, batch: int, head: int) -> Want:
    """The shaping of one head, with tensors as arrays."""
    found = dict(want)
    if "key_sums" in want:
        columns = want["key_sums"]
        found["key_sums"] = _float64(columns[batch % len(columns), head % columns.shape[1]])
    if "pair_mass" in want:
        found["pair_mass"] = want["pair_mass"][batch % len(want["pair_mass"])].tolist()
    return found


def _float64(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()
