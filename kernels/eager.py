"""Attention step by step in plain torch: any dtype, any device, differentiable.

A model calls the first functions below where scores or probs are edited. The statistics come from
the scores of all rows at once; `row_blocks.py` has the same formulas for some rows at a time.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from minibert.kernels.allowed_keys import additive_mask, open_dead_rows
from minibert.kernels.call import RANKED, Call, Outputs, most_ranks, ranked, wide
from minibert.kernels.folding import sentence_by_sentence
from minibert.quantities import Bool, Float, Int

_FROM_PROBS = {
    "received", "key_mass", "offset_mass", "map", "key_sums", "pair_mass", "profile", *RANKED,
}  # fmt: skip


def attention_scores(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    *,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """The scaled dot products, before any mask: scores = scale · query · keyᵀ.

    Source: Vaswani et al. 2017, equation 1, where scale is 1/sqrt(d_head).
    """
    # Scaling the query touches d_head columns and not key many, and keeps float16 from overflowing.
    return _by_groups(query * scale, key.transpose(-2, -1))


def soft_capped(scores: Float[Tensor, "*axes"], cap: float | None) -> Float[Tensor, "*axes"]:
    """cap · tanh(scores / cap), or the scores themselves (Gemma Team 2024, section 2)."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def attention_probs(
    scores: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The softmax of the allowed scores of each row: rows sum to 1, masked cells are exactly 0.

    probs = exp(scores − max) / sum(exp(scores − max)), maximum and sum over the allowed keys.
    A row without an allowed key is all zeros. `mask` is True where attention is allowed.
    With sinks each row has one more logit, which takes its share and is left out.
    `scores` is left as it is.
    """
    if sinks is not None:
        masked = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([masked, sink], dim=-1), dim=-1)[..., :-1]
    if mask is None:
        return torch.softmax(scores, dim=-1)
    opened, alive = open_dead_rows(mask)
    masked = scores + additive_mask(opened, scores.dtype)
    if masked.requires_grad or not masked.is_cpu:
        probs = torch.softmax(masked, dim=-1)
    else:
        # In place: a second fresh tensor of this size costs more than the softmax itself.
        probs = torch.softmax(masked, dim=-1, out=masked)
    return probs if alive is None else probs * alive


def weighted_values(
    probs: Float[Tensor, "batch head query key"], value: Float[Tensor, "batch kv_head key d_head"]
) -> Float[Tensor, "batch head query d_head"]:
    """The mean of the values, weighted by the probabilities: z = probs · value."""
    return _by_groups(probs, value)


def _by_groups(
    rows: Float[Tensor, "batch head query inner"], columns: Float[Tensor, "batch kv_head inner out"]
) -> Float[Tensor, "batch head query out"]:
    """The products of each head's rows with what it reads; nothing is repeated for a group."""
    heads, kv_heads = rows.shape[1], columns.shape[1]
    if heads == kv_heads:
        return torch.matmul(rows, columns)
    grouped = rows.unflatten(1, (kv_heads, heads // kv_heads)).flatten(2, 3)
    return torch.matmul(grouped, columns).unflatten(2, (heads // kv_heads, -1)).flatten(1, 2)


def attend(call: Call) -> Outputs:
    """z, scores and probs, and lse and the statistics that are wanted; gradients reach all of them.

    scores, probs and z are rounded to the dtype of the inputs, as torch does; lse and the
    statistics are computed from those scores in float32 (float64 for float64).
    """
    if call.packed is not None:
        return sentence_by_sentence(attend, call)
    scores = attention_scores(call.query, call.key, scale=call.scale)
    bias, allowed = call.biases, call.seen
    shaped = soft_capped(scores, call.soft_cap)
    shaped = shaped if bias is None else shaped + bias
    probs = attention_probs(shaped, allowed, call.sinks)
    found = {"z": weighted_values(probs, call.value), "scores": scores, "probs": probs}
    if call.want.keys() <= found.keys():
        return found
    opened, alive = (None, None) if allowed is None else open_dead_rows(allowed)
    return found | _statistics(call, shaped.to(wide(shaped.dtype)), opened, alive)


def _statistics(
    call: Call,
    scores: Float[Tensor, "batch head query key"],
    allowed: Bool[Tensor, "#batch #head #query #key"] | None,
    alive: Bool[Tensor, "#batch #head #query 1"] | None,
) -> Outputs:
    """lse and the wanted statistics of the rows.

    With t = scores − row_max, l = sum exp(t) and W = sum exp(t)·t:
    lse = row_max + ln l, max_prob = 1 / l, entropy = ln l − W / l, a sum of two terms >= 0.
    With a sink lse = ln(exp(row_max + ln l) + exp(sink)), and with the share k = exp(row_max +
    ln l − lse) that is left for the keys max_prob = k / l and entropy = k · (entropy − ln k).
    `allowed` has its dead rows opened and `alive` says which they are (`open_dead_rows`).
    """
    want = call.want
    if allowed is not None:
        # Finite: the weight of a masked cell is 0, and 0·(−inf) in W would be NaN.
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min / 2)
    row_max = scores.amax(dim=-1, keepdim=True)
    shifted = scores - row_max
    weights = shifted.exp()
    total = weights.sum(dim=-1, keepdim=True)
    keys_lse = row_max + total.log()
    lse, left = keys_lse, None
    if call.sinks is not None:
        sink = call.sinks.to(scores.dtype)[:, None, None]
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
    found = {name: _bury(call, name, one, alive).squeeze(-1) for name, one in found.items()}
    if _FROM_PROBS & want.keys():
        probs = weights / total
        probs = probs if left is None else probs * left
        probs = probs if alive is None else probs * alive
        found |= _from_probs(call, probs)
        if ranks := most_ranks(want):
            found |= ranked(want, *_strongest(scores, probs, alive, ranks))
    return found


def _strongest(
    scores: Float[Tensor, "batch head query key"],
    probs: Float[Tensor, "batch head query key"],
    alive: Bool[Tensor, "#batch #head #query 1"] | None,
    ranks: int,
) -> tuple[Int[Tensor, "batch head query rank"], Float[Tensor, "batch head query rank"]]:
    """The keys of the largest scores, masked ones finite, and their probs; −1 and 0 for none."""
    best, keys = scores.topk(min(ranks, scores.shape[-1]))
    there = best > torch.finfo(scores.dtype).min / 2
    there = there if alive is None else there & alive
    missing = (0, ranks - keys.shape[-1])
    keys, found = keys.masked_fill(~there, -1), probs.gather(-1, keys) * there
    return pad(keys, missing, value=-1), pad(found, missing)


def _bury(call: Call, name: str, values: Tensor, alive: Tensor | None) -> Tensor:
    """The numbers of rows, those of dead rows as `Statistics` promises."""
    if alive is None or (name == "lse" and call.sinks is not None):
        return values
    nothing = {"lse": -math.inf, "row_max": -math.inf, "argmax": -1}.get(name, 0)
    return values.masked_fill(~alive, nothing)


def _from_probs(call: Call, probs: Float[Tensor, "batch head query key"]) -> Outputs:
    """The statistics that are sums of probs."""
    (Q, K), want, found = probs.shape[2:], call.want, {}
    # Only in self-attention do the lengths, which count keys, also say which queries are real.
    query_lengths = call.lengths if Q == K else None
    if "key_mass" in want:
        found["key_mass"] = probs[..., list(want["key_mass"])]
    if "offset_mass" in want:
        found["offset_mass"] = _offset_mass(probs, want["offset_mass"])
    if "received" in want:
        real = _real(query_lengths, Q, probs)[:, None]
        found["received"] = (real.transpose(-2, -1) @ probs).squeeze(-2)
    if "map" in want:
        (blocks,) = want["map"]
        over_queries = _averaging(query_lengths, Q, blocks, probs)
        over_keys = _averaging(call.lengths, K, blocks, probs)
        found["map"] = over_queries @ probs @ over_keys.transpose(-2, -1)
    if "key_sums" in want:
        found["key_sums"] = probs @ want["key_sums"].to(probs)
    if "pair_mass" in want:
        found["pair_mass"] = _pair_mass(probs, want["pair_mass"])
    if "profile" in want:
        found["profile"] = _profile(probs * _real(query_lengths, Q, probs)[:, None])
    return found


def _pair_mass(
    probs: Float[Tensor, "batch head query key"], pairs: Int[Tensor, "#batch pair 2"]
) -> Float[Tensor, "batch head pair"]:
    B, H, Q, K = probs.shape
    query, key = pairs.unbind(-1)
    cells = (query * K + key).clamp(0, Q * K - 1)[:, None].expand(B, H, -1)
    return probs.flatten(2).gather(-1, cells) * (query >= 0)[:, None]


def _profile(probs: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head offset"]:
    B, H, Q, K = probs.shape
    queries = torch.arange(K - Q, K, device=probs.device)
    offset = torch.arange(K, device=probs.device) - queries[:, None]
    sums = probs.new_zeros(B, H, K + Q - 1)
    return sums.index_add(2, (offset + K - 1).flatten(), probs.flatten(2))


def _offset_mass(
    probs: Float[Tensor, "batch head query key"], offsets: tuple[int, ...]
) -> Float[Tensor, "batch head query offset"]:
    Q, K = probs.shape[2:]
    positions = torch.arange(K - Q, K, device=probs.device)
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
