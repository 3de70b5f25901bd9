"""The statistics of attention rows, in torch, from their scores.

All rows are computed at once, and gradients flow. `row_blocks.py` has the same formulas for some
rows at a time, in place, so that N x N is never held. Formulas and units: `api.Statistics`.
"""

import math

import torch
from torch import Tensor

from minibert.kernels.requests import Want
from minibert.quantities import Bool, Float, Int

__all__ = ["statistics_of_rows"]

_FROM_PROBS = (
    "received",
    "key_mass",
    "offset_mass",
    "map",
    "key_sums",
    "pair_mass",
    "profile",
)


def statistics_of_rows(
    scores: Float[Tensor, "batch head rows key"],
    *,
    allowed: Bool[Tensor, "#batch #head #rows #key"] | None,
    alive: Bool[Tensor, "#batch #head #rows 1"] | None,
    lengths: Int[Tensor, " batch"] | None,
    want: Want,
    first: int,
    n_queries: int,
    sinks: Float[Tensor, " head"] | None = None,
) -> dict[str, Tensor]:
    """lse and the wanted statistics of the rows `first`, `first + 1`, ... of `n_queries`.

    With t = scores − row_max, l = sum exp(t) and W = sum exp(t)·t:
    lse = row_max + ln l, max_prob = 1 / l, entropy = ln l − W / l, a sum of two terms >= 0.
    With a sink lse = ln(exp(row_max + ln l) + exp(sink)), and with the share k = exp(row_max +
    ln l − lse) that is left for the keys max_prob = k / l and entropy = k · (entropy − ln k).
    `allowed` has its dead rows opened and `alive` says which they are (`masks.open_dead_rows`).
    """
    if allowed is not None:
        # Finite: the weight of a masked cell is 0, and 0·(−inf) in W would be NaN.
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min / 2)
    row_max = scores.amax(dim=-1, keepdim=True)
    shifted = scores - row_max
    weights = shifted.exp()
    total = weights.sum(dim=-1, keepdim=True)
    keys_lse = row_max + total.log()
    lse, left = keys_lse, None
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None]
        lse = torch.logaddexp(keys_lse, sink)
        left = (keys_lse - lse).exp()
        if alive is not None:
            lse = torch.where(alive, lse, sink)
    found = {"lse": lse}
    if "row_max" in want:
        found["row_max"] = row_max
    if "max_prob" in want:
        found["max_prob"] = 1 / total if left is None else left / total
    if "entropy" in want:
        product = torch.linalg.vecdot(weights, shifted).unsqueeze(-1)
        found["entropy"] = total.log() - product / total
        if left is not None:
            found["entropy"] = left * (found["entropy"] + (lse - keys_lse))
    if "argmax" in want:
        found["argmax"] = scores.argmax(dim=-1, keepdim=True)
    dead = None if alive is None else ~alive
    found = {name: _bury(name, one, dead, sinks).squeeze(-1) for name, one in found.items()}
    if any(name in want for name in _FROM_PROBS):
        probs = weights / total
        probs = probs if left is None else probs * left
        probs = probs if alive is None else probs * alive
        found |= _from_probs(probs, lengths=lengths, want=want, first=first, n_queries=n_queries)
    return found


def _from_probs(
    probs: Float[Tensor, "batch head rows key"],
    *,
    lengths: Int[Tensor, " batch"] | None,
    want: Want,
    first: int,
    n_queries: int,
) -> dict[str, Tensor]:
    rows, K = probs.shape[2:]
    # Only in self-attention do the lengths, which count keys, also say which queries are real.
    query_lengths = lengths if n_queries == K else None
    found = {}
    if "key_mass" in want:
        found["key_mass"] = probs[..., list(want["key_mass"])]
    if "offset_mass" in want:
        found["offset_mass"] = _offset_mass(probs, want["offset_mass"], K - n_queries + first)
    if "received" in want:
        real = _real(query_lengths, n_queries, probs)[:, None, first : first + rows]
        found["received"] = (real.transpose(-2, -1) @ probs).squeeze(-2)
    if "map" in want:
        (blocks,) = want["map"]
        over_queries = _averaging(query_lengths, n_queries, blocks, probs)
        over_keys = _averaging(lengths, K, blocks, probs)
        found["map"] = over_queries[..., first : first + rows] @ probs @ over_keys.transpose(-2, -1)
    if "key_sums" in want:
        found["key_sums"] = probs @ want["key_sums"].to(probs)
    if "pair_mass" in want:
        found["pair_mass"] = _pair_mass(probs, want["pair_mass"], first)
    if "profile" in want:
        real = _real(query_lengths, n_queries, probs)[:, None, first : first + rows]
        found["profile"] = _profile(probs * real, K - n_queries + first, n_queries)
    return found


def _pair_mass(
    probs: Float[Tensor, "batch head rows key"], pairs: Int[Tensor, "#batch pair 2"], first: int
) -> Float[Tensor, "batch head pair"]:
    (B, H), (rows, K) = probs.shape[:2], probs.shape[2:]
    query, key = (pairs - pairs.new_tensor([first, 0])).unbind(-1)
    inside = (query >= 0) & (query < rows)
    cells = (query * K + key).clamp(0, rows * K - 1)[:, None].expand(B, H, -1)
    return probs.flatten(2).gather(-1, cells) * inside[:, None]


def _profile(
    probs: Float[Tensor, "batch head rows key"], position: int, n_queries: int
) -> Float[Tensor, "batch head offset"]:
    B, H, rows, K = probs.shape
    queries = torch.arange(position, position + rows, device=probs.device)
    offset = torch.arange(K, device=probs.device) - queries[:, None]
    sums = probs.new_zeros(B, H, K + n_queries - 1)
    return sums.index_add(2, (offset + K - 1).flatten(), probs.flatten(2))


def _offset_mass(
    probs: Float[Tensor, "batch head rows key"], offsets: tuple[int, ...], position: int
) -> Float[Tensor, "batch head rows offset"]:
    rows, K = probs.shape[2:]
    positions = torch.arange(position, position + rows, device=probs.device)
    keys = positions[:, None] + torch.tensor(offsets, device=probs.device)
    inside = (keys >= 0) & (keys < K)
    keys = keys.clamp(0, K - 1).expand(*probs.shape[:2], -1, -1)
    return probs.gather(-1, keys) * inside


def _real(
    lengths: Int[Tensor, " batch"] | None, n: int, like: Tensor
) -> Float[Tensor, "batch n 1"]:
    """1 for a real token, 0 for padding."""
    if lengths is None:
        return like.new_ones(like.shape[0], n, 1)
    return (torch.arange(n, device=like.device) < lengths[:, None]).to(like.dtype).unsqueeze(-1)


def _averaging(
    lengths: Int[Tensor, " batch"] | None, n: int, blocks: int, like: Tensor
) -> Float[Tensor, "batch 1 block n"]:
    """The matrix that takes the mean over the real tokens of each of at most `blocks` blocks."""
    size = math.ceil(n / blocks)
    block = torch.arange(n, device=like.device) // size
    member = block == torch.arange(math.ceil(n / size), device=like.device)[:, None]
    weights = member * _real(lengths, n, like).transpose(-2, -1)
    return (weights / weights.sum(dim=-1, keepdim=True).clamp_min(1)).unsqueeze(1)


def _bury(name: str, values: Tensor, dead: Tensor | None, sinks: Tensor | None) -> Tensor:
    if dead is None or (name == "lse" and sinks is not None):
        return values
    nothing = {"lse": -math.inf, "row_max": -math.inf, "argmax": -1}.get(name, 0)
    return values.masked_fill(dead, nothing)
