"""Common mistakes with grouped heads, windows, prefixes, soft caps, ALiBi, sinks, packing, pages.

Each is written as a change to the inputs, as in `known_faults.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from minibert.kernels.check.problem import Problem, unfolded
from minibert.kernels.check.suspect import Suspect, with_mask

__all__ = ["about_fields"]


def about_fields(problem: Problem) -> Iterator[Suspect]:
    """The slips with the fields that this problem has."""
    yield from _about_groups(problem)
    yield from _about_window(problem)
    yield from _about_prefix(problem)
    yield from _about_soft_cap(problem)
    yield from _about_alibi(problem)
    yield from _about_sinks(problem)
    yield from _about_packed(problem)
    yield from _about_pages(problem)


def _about_groups(problem: Problem) -> Iterator[Suspect]:
    heads, key_heads = problem.query.shape[1], problem.key.shape[1]
    if heads == key_heads:
        return
    head = torch.arange(heads, device=problem.key.device)
    for sentence, which in (
        (
            "heads are repeated in the wrong order, interleaved in place of grouped: query head h "
            "reads key head h // groups, not h % kv_heads",
            head % key_heads,
        ),
        ("the first key head is read by all query heads", head * 0),
        (
            "query head h reads key head h, as if there were as many: it is h // groups",
            head.clamp_max(key_heads - 1),
        ),
    ):
        key, value = problem.key[:, which], problem.value[:, which]
        yield Suspect(sentence, replace(problem, key=key, value=value))


def _about_window(problem: Problem) -> Iterator[Suspect]:
    if problem.window is None:
        return
    before, after = problem.window
    yield Suspect("the window is ignored: all keys are seen", replace(problem, window=None))
    for side, size in enumerate((before, after)):
        if size is None:
            continue
        name, edge = (("before", "p − before"), ("after", "p + after"))[side]
        for slip, shift in (("many is", 1), ("few is", -1)):
            if size + shift < 0:
                continue
            shifted = (size + shift, after) if side == 0 else (before, size + shift)
            yield Suspect(
                f"the window is off by one: one key too {slip} seen {name} the query; the last one "
                f"seen is {edge}, so that {size} and the query's own are",
                replace(problem, window=shifted),
            )
    if before != after:
        yield Suspect(
            "the window's sides are swapped: it is (before, after)",
            replace(problem, window=(after, before)),
        )
    if problem.query.shape[2] != problem.n_keys and problem.packed is None:
        yield Suspect(
            "the window is aligned to the start: query i stands at position K − Q + i",
            with_mask(problem, _window_from_the_start(problem)),
        )


def _window_from_the_start(problem: Problem) -> Tensor:
    """The mask of a window around query i at position i; the rest of the mask is right."""
    free = unfolded(replace(problem, window=None)).mask
    Q, K = problem.query.shape[2], problem.n_keys
    distance = torch.arange(K) - torch.arange(Q)[:, None]
    before, after = problem.window or (None, None)
    near = torch.ones(Q, K, dtype=torch.bool)
    if before is not None:
        near &= distance >= -before
    if after is not None and not problem.causal:
        near &= distance <= after
    near = near.to(problem.query.device)[None, None]
    return near if free is None else free & near


def _about_prefix(problem: Problem) -> Iterator[Suspect]:
    if problem.prefix is None:
        return
    yield Suspect(
        "prefix is ignored: its keys are hidden from the queries before them",
        replace(problem, prefix=None),
    )
    for slip, shift in (("one key too many is", 1), ("its last key is not", -1)):
        shifted = (problem.prefix + shift).clamp(0, problem.n_keys)
        yield Suspect(
            f"prefix is off by one: {slip} seen in spite of the order; write key < prefix",
            replace(problem, prefix=shifted),
        )


def _about_soft_cap(problem: Problem) -> Iterator[Suspect]:
    cap, scale = problem.soft_cap, problem.scale
    if cap is None:
        return
    yield Suspect("the soft cap is left out", replace(problem, soft_cap=None))
    # scale · c · tanh(query·key / c) is a cap of scale · c.
    yield Suspect(
        "the soft cap is applied before the scale: it is c · tanh(scale · query·key / c)",
        replace(problem, soft_cap=cap * scale),
    )
    yield Suspect(
        "the soft cap is tanh(s / c) alone: multiply by c again",
        replace(problem, soft_cap=1.0, scale=scale / cap),
    )
    yield Suspect(
        "the soft cap is c · tanh(s): divide by c first",
        replace(problem, soft_cap=cap, scale=scale * cap),
    )
    plain = unfolded(problem)
    if plain.bias is not None:
        scores = plain.scale * plain.query @ plain.key.mT + plain.bias
        yield Suspect(
            "the soft cap is applied after the bias or ALiBi: they are added to what is capped",
            replace(plain, scale=0.0, soft_cap=None, bias=cap * torch.tanh(scores / cap)),
        )


def _about_alibi(problem: Problem) -> Iterator[Suspect]:
    slopes = problem.alibi_slopes
    if slopes is None:
        return
    for sentence, other in (
        ("the ALiBi slopes are ignored", None),
        ("ALiBi is added where it is subtracted: −slope · distance", -slopes),
        ("ALiBi is scaled: it is added after the scale", slopes * problem.scale),
        ("the ALiBi slopes are those of other heads: slope h is of head h", slopes.flip(-1)),
        ("the ALiBi slopes are multiplied by log2(e) once too often", slopes / math.log(2)),
        ("the ALiBi slopes are not multiplied by log2(e)", slopes * math.log(2)),
    ):
        yield Suspect(sentence, replace(problem, alibi_slopes=other))
    if problem.query.shape[2] != problem.n_keys and problem.packed is None:
        free = unfolded(replace(problem, alibi_slopes=None))
        Q, K, device = problem.query.shape[2], problem.n_keys, slopes.device
        distance = torch.arange(K, device=device) - torch.arange(Q, device=device)[:, None]
        lost = -slopes.double()[..., :, None, None] * distance.abs()
        bias = lost if free.bias is None else lost + free.bias
        yield Suspect(
            "ALiBi is aligned to the start: query i stands at position K − Q + i",
            replace(free, bias=bias if bias.ndim == 4 else bias[None]),
        )


def _about_sinks(problem: Problem) -> Iterator[Suspect]:
    sinks = problem.sinks
    if sinks is None:
        return
    without = replace(problem, sinks=None)
    yield Suspect(
        "sinks left out of lse: lse = ln(exp(sink) + sum exp s), as in the softmax",
        without,
        only="lse",
    )
    for sentence, other in (
        ("the sinks are left out", None),
        ("the sinks are scaled: a sink is a score as it is", sinks * problem.scale),
        ("the sinks are those of other heads: sink h is of head h", sinks.flip(-1)),
        ("the sinks are exponentials already: use exp(sink)", sinks.abs().clamp_min(1e-9).log()),
    ):
        yield Suspect(sentence, replace(problem, sinks=other))


def _about_packed(problem: Problem) -> Iterator[Suspect]:
    if problem.packed is None:
        return
    keys = problem.packed_keys or problem.packed
    whole = replace(problem, packed=None, packed_keys=None)
    yield Suspect("the packed sentences see each other: a token sees its own sentence alone", whole)
    plain = unfolded(problem)
    if plain.mask is None:
        return
    # The mask that is right, but for the last key of each sentence, or its first.
    ends = torch.tensor(keys).cumsum(0)
    for sentence, places in (
        ("the last key of each packed sentence is not seen", ends - 1),
        ("the first key of each packed sentence is not seen", ends - torch.tensor(keys)),
    ):
        seen = torch.ones(problem.n_keys, dtype=torch.bool)
        seen[places] = False
        yield Suspect(sentence, replace(plain, mask=plain.mask & seen.to(plain.mask.device)))
    if problem.packed_keys is not None and problem.causal:
        free = unfolded(replace(problem, causal=False)).mask
        assert free is not None
        query = torch.cat([torch.arange(n) for n in problem.packed])
        key = torch.cat([torch.arange(n) for n in keys])
        past = (key <= query[:, None]).to(free.device)
        yield Suspect(
            "causal is aligned to the start of each packed sentence: query i of a sentence stands "
            "at position K − Q + i",
            replace(plain, mask=free & past),
        )


def _about_pages(problem: Problem) -> Iterator[Suspect]:
    if problem.pages is None:
        return
    B, n = problem.pages.shape
    in_order = torch.arange(B * n, device=problem.pages.device).reshape(B, n)
    yield Suspect(
        "the page table is ignored: pages are read in the order of memory",
        replace(problem, pages=in_order.to(problem.pages.dtype)),
    )
    if problem.causal and problem.lengths is not None:
        free = unfolded(replace(problem, causal=False)).mask
        assert free is not None
        Q, K = problem.query.shape[2], problem.n_keys
        past = torch.ones(Q, K, dtype=torch.bool, device=free.device).tril(K - Q)
        yield Suspect(
            "causal counts from the end of the page table: the last query stands at length − 1",
            with_mask(problem, free & past),
        )
        yield Suspect(
            "causal is aligned to the start: query i stands at position length − Q + i",
            with_mask(problem, free & past.new_ones(Q, K).tril()),
        )
