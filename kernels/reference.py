"""Attention in NumPy float64: the truth the other implementations are measured against.

The implementation to read first. It goes from one query to one head to a batch, with the formulas
of Vaswani et al. 2017, §3.2.1:

    Attention(Q, K, V) = softmax(Q·Kᵀ / sqrt(d_head))·V

Nothing here is made fast.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.kernels.packing import sentence_by_sentence
from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["HeadAttention", "attend", "attend_one_head", "attend_one_query", "softmax"]

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def softmax(scores: Array) -> tuple[Array, float]:
    """The probabilities exp(sᵢ) / sum exp(sⱼ), and ln sum exp(sⱼ), the normaliser's logarithm.

    The largest score is subtracted first: the quotient stays the same and exp cannot overflow
    (Milakov & Gimelshein 2018).
    """
    largest = scores.max()
    weights = np.exp(scores - largest)
    return weights / weights.sum(), float(largest + np.log(weights.sum()))


def attend_one_query(
    query: Array, keys: Array, values: Array, *, allowed: Flags, scale: float, bias: Array
) -> tuple[Array, Array, float, Array]:
    """What one query sees: its scores, its probs, its lse and its z.

    query is (d_head), keys and values are (key, d_head), allowed and bias are (key).
    """
    scores = scale * (keys @ query)  # (key)
    probs = np.zeros_like(scores)
    lse = -math.inf
    if allowed.any():
        # A key that is not allowed takes no part, as if it were not there.
        probs[allowed], lse = softmax((scores + bias)[allowed])
    z = probs @ values  # (d_head)
    return scores, probs, lse, z


@dataclass(frozen=True)
class HeadAttention:
    """All queries of one head: scores and probs (query, key), lse (query), z (query, d_head)."""

    scores: Array
    probs: Array
    lse: Array
    z: Array


def attend_one_head(
    query: Array, keys: Array, values: Array, *, allowed: Flags, scale: float, bias: Array
) -> HeadAttention:
    """One query after the other: query is (query, d_head), allowed and bias are (query, key)."""
    rows = [
        attend_one_query(one, keys, values, allowed=seen, scale=scale, bias=added)
        for one, seen, added in zip(query, allowed, bias, strict=True)
    ]
    scores, probs, lse, z = zip(*rows, strict=True)
    return HeadAttention(np.array(scores), np.array(probs), np.array(lse), np.array(z))


def allowed_keys(
    n_queries: int, n_keys: int, *, length: int | None, mask: Flags | None, causal: bool
) -> Flags:
    """True (query, key) where one sentence may attend: the key is real, unmasked, not ahead."""
    keys = np.arange(n_keys)
    positions = n_keys - n_queries + np.arange(n_queries)[:, None]
    allowed = np.ones((n_queries, n_keys), dtype=bool)
    if length is not None:
        allowed &= keys < length
    if causal:
        allowed &= keys <= positions
    return allowed if mask is None else allowed & mask


def statistics_of_head(
    head: HeadAttention, *, allowed: Flags, bias: Array, length: int | None, want: Want
) -> dict[str, npt.NDArray[Any]]:
    """The wanted statistics of one head, each as `api.Statistics` defines it."""
    Q, K = head.probs.shape
    alive = allowed.any(axis=1)
    masked = np.where(allowed, head.scores + bias, -math.inf)
    real_query = np.arange(Q) < (length if length is not None and Q == K else Q)
    real_key = np.arange(K) < (K if length is None else length)
    found: dict[str, npt.NDArray[Any]] = {}
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
    return found


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


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    causal: bool,
    scale: float,
    bias: Float[Tensor, "#batch #head #query #key"] | None,
    want: Want,
    packed: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Everything `want` names, head after head, in float64 whatever the dtype that came in."""
    if packed is not None:
        vectors = (query, key, value)
        options: dict[str, Any] = {"want": want, "causal": causal, "scale": scale}
        return sentence_by_sentence(attend, *vectors, packed=packed, **options)
    B, H, Q, K = (*query.shape[:3], key.shape[2])
    queries, keys, values = (_float64(tensor) for tensor in (query, key, value))
    masks = None if mask is None else mask.expand(B, H, Q, K).cpu().numpy()
    biases = np.zeros((B, H, Q, K)) if bias is None else _float64(bias.expand(B, H, Q, K))
    found: dict[str, list[Array]] = {}
    for b in range(B):
        length = None if lengths is None else int(lengths[b])
        for h in range(H):
            seen = None if masks is None else masks[b, h]
            allowed = allowed_keys(Q, K, length=length, mask=seen, causal=causal)
            head = attend_one_head(
                queries[b, h],
                keys[b, h],
                values[b, h],
                allowed=allowed,
                scale=scale,
                bias=biases[b, h],
            )
            statistics = statistics_of_head(
                head, allowed=allowed, bias=biases[b, h], length=length, want=of_head(want, b, h)
            )
            for name, numbers in (vars(head) | statistics).items():
                found.setdefault(name, []).append(numbers)
    return {
        name: torch.from_numpy(np.array(heads).reshape(B, H, *heads[0].shape)).to(query.device)
        for name, heads in found.items()
    }


def of_head(want: Want, batch: int, head: int) -> Want:
    """The same, the tensors as arrays of one head."""
    found = dict(want)
    if "key_sums" in want:
        columns = want["key_sums"]
        found["key_sums"] = _float64(columns[batch % len(columns), head % columns.shape[1]])
    if "pair_mass" in want:
        found["pair_mass"] = want["pair_mass"][batch % len(want["pair_mass"])].tolist()
    return found


def _float64(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()
