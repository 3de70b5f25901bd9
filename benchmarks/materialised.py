"""Attention and its statistics as one writes them: the N x N probs, then a reduction for each."""

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["Found", "Given", "materialised", "materialised_in_place"]

Given = dict[str, Any]
Found = dict[str, Tensor]


def materialised(want: tuple[Any, ...], given: Given) -> Found:
    """As one writes it: scores, softmax, then a reduction for each statistic."""
    query, key, value = every_head(given)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    allowed = allowed_keys(given)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    probs = scores.softmax(-1)
    row_max = scores.amax(-1)
    found = {"z": probs @ value, "lse": row_max - probs.amax(-1).log(), "row_max": row_max}
    found["entropy"] = torch.special.entr(probs).sum(-1)
    return reductions(want, given, probs, found)


def materialised_in_place(want: tuple[Any, ...], given: Given) -> Found:
    """By somebody who counts passes: two N x N arrays, exp in place, entropy from its two sums."""
    query, key, value = every_head(given)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    allowed = allowed_keys(given)
    if allowed is not None:
        scores.masked_fill_(~allowed, -1e30)
    row_max = scores.amax(-1, keepdim=True)
    weights = scores.sub_(row_max).exp()
    total = weights.sum(-1, keepdim=True)
    entropy = total.log() - scores.mul_(weights).sum(-1, keepdim=True) / total
    probs = weights.div_(total)
    lse = (row_max + total.log()).squeeze(-1)
    found = {"z": probs @ value, "lse": lse, "row_max": row_max.squeeze(-1)}
    found["entropy"] = entropy.squeeze(-1)
    return reductions(want, given, probs, found)


def reductions(want: tuple[Any, ...], given: Given, probs: Tensor, found: Found) -> Found:
    """z, lse and of the statistics those that are wanted."""
    names = [one if isinstance(one, str) else one[0] for one in want]
    N, lengths = probs.shape[-1], given.get("lengths")
    found = {name: one for name, one in found.items() if name in ("z", "lse", *names)}
    if "max_prob" in names:
        found["max_prob"] = probs.amax(-1)
    if "argmax" in names:
        found["argmax"] = probs.argmax(-1)
    if "key_mass" in names:
        found["key_mass"] = probs[..., [0, 5]]
    if "offset_mass" in names:
        diagonals = [probs.diagonal(offset, -2, -1) for offset in (-1, 0, 1)]
        sides = ((1, 0), (0, 0), (0, 1))
        padded = map(torch.nn.functional.pad, diagonals, sides)
        found["offset_mass"] = torch.stack([*padded], -1)
    if "received" in names:
        rows = probs
        if lengths is not None:
            rows = probs * (torch.arange(N) < lengths[:, None])[:, None, :, None]
        found["received"] = rows.sum(-2)
        if "map" in names:
            found["map"] = pooled(rows, lengths)
    return found


def pooled(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean over the real cells of each of 64 x 64 blocks."""
    N = rows.shape[-1]
    size = math.ceil(N / 64)
    missing = -N % size
    cells = torch.nn.functional.pad(rows, (0, missing, 0, missing))
    sums = torch.nn.functional.avg_pool2d(cells, size, divisor_override=1)
    real = torch.full((1,), N) if lengths is None else lengths
    firsts = torch.arange(0, N, size)
    sides = (torch.minimum(firsts + size, real[:, None]) - firsts).clamp_min(0)
    return sums / (sides[:, None, :, None] * sides[:, None, None, :]).clamp_min(1)


def every_head(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """query, key and value, of fewer key heads each as often as it is read."""
    times = given["query"].shape[1] // given["key"].shape[1]
    key, value = (given[one].repeat_interleave(times, 1) for one in ("key", "value"))
    return given["query"], key, value


def allowed_keys(given: Given) -> Tensor | None:
    """True where a query may look; None where it may everywhere."""
    N, lengths = given["key"].shape[2], given.get("lengths")
    allowed = torch.ones(N, N, dtype=torch.bool).tril_() if given["causal"] else None
    if "window" in given and allowed is not None:
        allowed.triu_(-given["window"][0])
    if lengths is not None:
        real = (torch.arange(N) < lengths[:, None])[:, None, None, :]
        allowed = real if allowed is None else allowed & real
    return allowed
