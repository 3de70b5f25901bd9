"""Common mistakes in attention kernels, each written as a change to the inputs.

`causes.py` tries them in turn on a wrong kernel. When float64 with the change gives the kernel's
numbers, the kernel makes that mistake. Each mistake is declared beside the sentence that names it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from minibert.kernels.call import COMMON
from minibert.kernels.check.problem import Problem, all_of, allowed, by_eager, unfolded

TILES = (16, 32, 64, 128)
_VECTORS = ("query", "key", "value")
_LAYOUT = "expected (batch, head, position, d_head)"
_LN_2 = math.log(2)
#: Outputs made of the masked scores, as the softmax takes them, and the values of each head.
Computed = Callable[[Tensor, Tensor], dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Suspect:
    """A slip: the sentence that describes it, and the problem it solves instead of the right one.

    `written` puts the numbers of an output where the slip has them; a slip with `only` shows in
    this output alone. `computed` gives the outputs of a slip that is not another problem.
    """

    sentence: str
    problem: Problem
    written: Callable[[Tensor], Tensor] = lambda output: output
    only: str | None = None
    computed: Computed | None = None

    def gives(self, output: str) -> Tensor | None:
        """The output of a kernel that makes only this slip; None where it is unknown."""
        if self.only not in (None, output):
            return None
        problem = self.problem
        if self.computed is not None:
            return self.computed(*_scores(problem)).get(output)
        want = {name: one for name, one in problem.want.items() if name == output}
        if "key_sums" in want and want["key_sums"].shape[2] != problem.n_keys:
            return None
        # Eager and not the reference, which goes query by query: there are many suspects.
        right = by_eager(replace(problem, want=want), torch.float64).get(output)
        return None if right is None else self.written(right)


def suspects(problem: Problem) -> Iterator[Suspect]:
    """Every slip that can show in this problem, the most distinct ones first."""
    for slips in (
        _strides, _scale, _lengths, partial(_values, "mask"), partial(_values, "bias"), _causal,
        _groups, _window, partial(_values, "prefix"), _soft_cap, partial(_values, "alibi_slopes"),
        _alibi_distances, partial(_values, "sinks"), _packed, _pages, _vectors, _hidden,
        _softmax, _layout, _tiles,
    ):  # fmt: skip
        for one in slips(problem):
            yield one if isinstance(one, Suspect) else Suspect(*one)


#: Suspects; of those that solve another problem and no more, sentence and problem.
Slips = Iterator[Suspect | tuple[str, Problem]]
#: Of a `Problem` that has the option.
Changed = Callable[[Any], Any]
#: For each option that a problem may have: the slips that give it another value, in place of it.
_VALUES: dict[str, dict[str, Changed]] = {
    "mask": {
        "mask is ignored": lambda p: None,
        "mask is read the wrong way round: True is allowed": lambda p: ~p.mask,
    },
    "bias": {
        "bias is ignored": lambda p: None,
        "bias is scaled: it is added after the scale": lambda p: p.bias * p.scale,
    },
    "prefix": {
        "prefix is ignored: its keys are hidden from the queries before them": lambda p: None,
        "prefix is off by one: one key too many is seen in spite of the order; write "
        "key < prefix": lambda p: (p.prefix + 1).clamp(0, p.n_keys),
        "prefix is off by one: its last key is not seen in spite of the order; write "
        "key < prefix": lambda p: (p.prefix - 1).clamp(0, p.n_keys),
    },
    "alibi_slopes": {
        "the ALiBi slopes are ignored": lambda p: None,
        "ALiBi is added where it is subtracted: −slope · distance": lambda p: -p.alibi_slopes,
        "ALiBi is scaled: it is added after the scale": lambda p: p.alibi_slopes * p.scale,
        "the ALiBi slopes are those of other heads: slope h is of head h": lambda p: (
            p.alibi_slopes.flip(-1)
        ),
        "the ALiBi slope of the first head is used for all": lambda p: p.alibi_slopes[
            ..., :1
        ].expand_as(p.alibi_slopes),
        "the ALiBi slopes are multiplied by log2(e) once too often": lambda p: (
            p.alibi_slopes / _LN_2
        ),
        "the ALiBi slopes are not multiplied by log2(e)": lambda p: p.alibi_slopes * _LN_2,
    },
    "sinks": {
        "the sinks are left out": lambda p: None,
        "the sinks are scaled: a sink is a score as it is": lambda p: p.sinks * p.scale,
        "the sinks are those of other heads: sink h is of head h": lambda p: p.sinks.flip(-1),
        "the sink of the first head is used for all": lambda p: p.sinks[:1].expand_as(p.sinks),
        "the sinks are exponentiated: a sink is a score, whose exponential the softmax takes": (
            lambda p: p.sinks.exp()
        ),
        "the sinks are exponentials already: use exp(sink)": lambda p: (
            p.sinks.abs().clamp_min(1e-9).log()
        ),
    },
}


def _values(name: str, problem: Problem) -> Slips:
    """The slips of `_VALUES` with this option, where the problem has it."""
    if getattr(problem, name) is None:
        return
    if name == "sinks":
        said = "sinks left out of lse: lse = ln(exp(sink) + sum exp s), as in the softmax"
        yield Suspect(said, replace(problem, sinks=None), only="lse")
    for sentence, changed in _VALUES[name].items():
        yield sentence, replace(problem, **{name: changed(problem)})


def _masked(problem: Problem, **parts: Tensor | None) -> Problem:
    """The problem with these parts of the mask in place of its own; None leaves one out."""
    return replace(unfolded(problem), mask=all_of(allowed(problem) | parts))


def _from_the_start(problem: Problem) -> Tensor:
    """Position of the key − that of the query, were query i at position i."""
    device = problem.query.device
    queries = torch.arange(problem.query.shape[2], device=device)
    return torch.arange(problem.n_keys, device=device) - queries[:, None]


def _strides(problem: Problem) -> Slips:
    if all(getattr(problem, name).is_contiguous() for name in _VECTORS):
        return
    changed = dict[str, Tensor]()
    for name in _VECTORS:
        one = getattr(problem, name)
        _, H, N, D = one.shape
        changed[name] = one.as_strided(one.shape, (H * N * D, N * D, D, 1)).contiguous()
    said = (
        "strides are ignored: memory is read as if it were contiguous, and a model hands over "
        "views; use x.stride(), or x.contiguous() before the launch"
    )
    yield said, problem.changed(**changed)
    for name in _VECTORS:
        yield f"of {name} {said}", problem.changed(**{name: changed[name]})


#: How a wrong scale behaves, as a number made of d_head, d_value and the right one.
_SCALES: dict[str, Callable[[int, int, float], float]] = {
    "1: the scale is left out": lambda d, v, scale: 1.0,
    "1/d_head in place of 1/sqrt(d_head)": lambda d, v, scale: 1 / d,
    "sqrt(d_head): multiplied where it should divide": lambda d, v, scale: d**0.5,
    "1/sqrt(d_head): `scale` is ignored": lambda d, v, scale: d**-0.5,
    "1/sqrt(d_value) in place of 1/sqrt(d_head)": lambda d, v, scale: v**-0.5,
    "scale twice over": lambda d, v, scale: scale**2,
    "scale · ln 2: 2 to the power in place of e, without log2(e)": lambda d, v, scale: (
        scale * _LN_2
    ),
    "scale · log2(e): log2(e) without 2 to the power": lambda d, v, scale: scale / _LN_2,
    "1/d_head^(1/4): query and key need it both": lambda d, v, scale: d**-0.25,
    "1/sqrt(d_head + 1)": lambda d, v, scale: (d + 1) ** -0.5,
    "1/sqrt(d_head − 1)": lambda d, v, scale: max(d - 1, 1) ** -0.5,
    "scale / 2": lambda d, v, scale: scale / 2,
    "scale · 2": lambda d, v, scale: scale * 2,
}


def _scale(problem: Problem) -> Slips:
    scale, (_, H, _, D) = problem.scale, problem.query.shape
    factors = {name: f(D, problem.value.shape[-1], scale) for name, f in _SCALES.items()}
    factors["1/sqrt(d_model): d_head is the size of one head"] = (H * D) ** -0.5
    factors["1/sqrt(number of keys) in place of 1/sqrt(d_head)"] = problem.n_keys**-0.5
    for name, factor in factors.items():
        if not math.isclose(factor, scale):
            said = f"wrong scale: it behaves as {name} ({factor / scale:.5g} times what is right)"
            yield said, replace(problem, scale=factor)


def _lengths(problem: Problem) -> Slips:
    if problem.lengths is None:
        return
    K, everywhere = problem.n_keys, replace(problem, lengths=None)
    if problem.pages is not None:
        everywhere = replace(problem, lengths=torch.full_like(problem.pages[:, 0], K))
    elif problem.query.shape[2] == K:
        for output in ("received", "profile"):
            said = (
                f"{output} counts queries after the end of a sentence (padding): with lengths and "
                "as many queries as keys it is a sum over the real queries alone"
            )
            # Its lengths are in the mask: no query is left out.
            yield Suspect(said, unfolded(problem), only=output)
    first = problem.lengths[:1].expand_as(problem.lengths)
    if bool((first == K).all()):
        # Both slips look alike; the other call has other lengths and tells which it is.
        yield "", everywhere
    else:
        yield "lengths is ignored: padding keys are seen", everywhere
        said = "lengths of the first sentence is used for all: read lengths[batch], not lengths[0]"
        yield said, replace(problem, lengths=first)
    for slip, shift in (
        ("one key too many is seen after the length: write key < length, not key <= length", 1),
        ("the last real key is not seen: write key < length, not key < length - 1", -1),
    ):
        shifted = (problem.lengths + shift).clamp(0, K)
        yield f"lengths is off by one: {slip}", replace(problem, lengths=shifted)
    if problem.pages is None:
        said = "lengths, or the mask of padding, is read the wrong way round: padding is seen and "
        seen = allowed(problem)["lengths"]
        yield f"{said}real keys are not", _masked(problem, lengths=~seen)
        if problem.query.shape[2] == K:
            said = "the mask of padding hides queries, not keys: lay it out as [:, None, None, :]"
            yield Suspect(said, _masked(problem, lengths=seen.mT), computed=_with_nan)


def _causal(problem: Problem) -> Slips:
    if not problem.causal:
        said = "causal order is kept where it was not asked for: check a function that is always "
        yield f"{said}causal with --causal-only", replace(problem, causal=True)
    Q, K = problem.query.shape[2], problem.n_keys
    square = torch.ones(Q, K, dtype=torch.bool, device=problem.query.device)
    if Q == K:
        for own in (0, 1):
            said = "causal is the wrong way round: the past is hidden"
            yield said, _masked(problem, causal=square.triu(own))
    if not problem.causal:
        return
    said = "causal is ignored: the future is seen"
    yield said, replace(problem, causal=False, prefix=None)
    if Q != K and problem.packed is None and problem.pages is None and problem.prefix is None:
        said = "causal is aligned to the start: query i stands at position K − Q + i"
        changed = _masked(problem, causal=square.tril())
        # With its lengths, because statistics leave out padded queries.
        yield said, replace(changed, lengths=problem.lengths)
    for slip, late in (("leaves out the query's own position", -1), ("is one key too far", 1)):
        changed = _masked(problem, causal=allowed(problem, late)["causal"])
        padded = problem.packed is None and problem.pages is None
        yield f"causal {slip}", replace(changed, lengths=problem.lengths if padded else None)


def _groups(problem: Problem) -> Slips:
    heads, key_heads = problem.query.shape[1], problem.key.shape[1]
    head = torch.arange(heads, device=problem.key.device)
    right = head * key_heads // heads
    beside = "a neighbouring head is read: query head h reads key head h // groups"
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
        (beside, (right + 1) % key_heads),
        (beside, (right - 1) % key_heads),
    ):
        if bool((which == right).all()):
            continue
        for names in (("key", "value"), ("key",), ("value",)):
            changed = {
                name: getattr(problem, name)[:, which if name in names else right]
                for name in ("key", "value")
            }
            of_one = "" if names[1:] else f"of {names[0]}: "
            yield f"{of_one}{sentence}", problem.changed(**changed)

    if 1 < key_heads < heads:
        order = head.view(-1, key_heads).T.flatten()
        said = "query heads are split into (groups, kv_heads): it is (kv_heads, groups)"
        yield said, replace(problem, query=problem.query[:, order])


def _window(problem: Problem) -> Slips:
    if problem.window is None:
        return
    before, after = problem.window
    yield "the window is ignored: all keys are seen", replace(problem, window=None)
    if before is not None and after is not None:
        for name, left in (("before", (None, after)), ("after", (before, None))):
            said = f"the window's side {name} the query is ignored: all keys there are seen"
            yield said, replace(problem, window=left)
    for name, edge, size in (("before", "p − before", before), ("after", "p + after", after)):
        for slip, shift in (("many is", 1), ("few is", -1)):
            if size is None or size + shift < 0:
                continue
            shifted = (size + shift, after) if name == "before" else (before, size + shift)
            yield (
                f"the window is off by one: one key too {slip} seen {name} the query; the last one "
                f"seen is {edge}, so that {size} and the query's own are",
                replace(problem, window=shifted),
            )
    if before != after:
        said = "the window's sides are swapped: it is (before, after)"
        yield said, replace(problem, window=(after, before))
    if problem.query.shape[2] != problem.n_keys and problem.packed is None:
        distance = _from_the_start(problem)
        parts = {
            "before": None if before is None else distance >= -before,
            "after": None if after is None or problem.causal else distance <= after,
        }
        said = "the window is aligned to the start: query i stands at position K − Q + i"
        yield said, _masked(problem, **parts)


def _soft_cap(problem: Problem) -> Slips:
    scale, cap, plain = problem.scale, problem.soft_cap, unfolded(problem)
    if cap is None:
        return
    for sentence, (changed_cap, changed_scale) in {
        "the soft cap is left out": (None, scale),
        # scale · c · tanh(query·key / c) is a cap of scale · c.
        "the soft cap is applied before the scale: it is c · tanh(scale · query·key / c)": (
            cap * scale,
            scale,
        ),
        "the soft cap is tanh(s / c) alone: multiply by c again": (1.0, scale / cap),
        "the soft cap is c · tanh(s): divide by c first": (cap, scale * cap),
    }.items():
        yield sentence, replace(problem, soft_cap=changed_cap, scale=changed_scale)
    if plain.mask is not None:
        capped = cap * torch.tanh(plain.scale * plain.query @ plain.key.mT / cap)
        yield (
            "the soft cap is applied after the mask: masked keys get weight as of a score of -c",
            replace(plain, scale=0.0, soft_cap=None, mask=None,
                    bias=torch.where(plain.mask, capped, -cap)),
        )  # fmt: skip
    if plain.bias is not None:
        scores = plain.scale * plain.query @ plain.key.mT + plain.bias
        yield (
            "the soft cap is applied after the bias or ALiBi: they are added to what is capped",
            replace(plain, scale=0.0, soft_cap=None, bias=cap * torch.tanh(scores / cap)),
        )


def _alibi_distances(problem: Problem) -> Slips:
    slopes, (Q, K) = problem.alibi_slopes, (problem.query.shape[2], problem.n_keys)
    if slopes is None or problem.packed:
        return
    start, free = _from_the_start(problem), unfolded(replace(problem, alibi_slopes=None))
    for said, there, distance in (
        ("is aligned to the start: query i stands at position K − Q + i", Q != K, start.abs()),
        ("is of the signed distance: take |p − key|", not problem.causal, K - Q - start),
    ):
        if there:
            lost = -slopes.double()[:, None, None] * distance
            bias = lost[None] if free.bias is None else lost + free.bias
            yield f"ALiBi {said}", replace(free, bias=bias)


def _packed(problem: Problem) -> Slips:
    queries, keys = problem.packed, problem.packed_keys or problem.packed
    if queries is None or keys is None:
        return
    said = "the packed sentences see each other: a token sees its own sentence alone"
    yield said, replace(problem, packed=None, packed_keys=None)
    # The mask that is right, but for the last key of each sentence, or its first.
    ends, device = torch.tensor(keys).cumsum(0), problem.query.device
    for name, places in (("last", ends - 1), ("first", ends - torch.tensor(keys))):
        seen = torch.ones(problem.n_keys, dtype=torch.bool)
        seen[places] = False
        said = f"the {name} key of each packed sentence is not seen"
        yield said, _masked(problem, more=seen.to(device))
    if problem.packed_keys is None:
        return
    yield (
        "the keys of each packed sentence are those of its queries: cu_seqlens_k says where keys "
        "start, not cu_seqlens_q",
        _starts_of_queries(problem, sum(queries)),
    )
    if problem.causal:
        query, key = (torch.cat([torch.arange(n) for n in one]) for one in (queries, keys))
        yield (
            "causal is aligned to the start of each packed sentence: query i of a sentence stands "
            "at position K − Q + i",
            _masked(problem, causal=(key <= query[:, None]).to(device)),
        )


def _starts_of_queries(problem: Problem, kept: int) -> Problem:
    """cu_seqlens_q in place of cu_seqlens_k: as many keys of a sentence as queries."""
    key, value = (one[:, :, :kept] for one in (problem.key, problem.value))
    few = unfolded(replace(problem, packed_keys=None, key=key, value=value))
    whole, rest = unfolded(problem), problem.n_keys - kept
    bias, mask = (None if one is None else pad(one, (0, rest)) for one in (few.bias, few.mask))
    return replace(whole, bias=bias, mask=mask)


def _pages(problem: Problem) -> Slips:
    if problem.pages is None:
        return
    in_order = torch.arange(problem.pages.numel(), device=problem.pages.device)
    in_order = in_order.reshape(problem.pages.shape).to(problem.pages.dtype)
    said = "the page table is ignored: pages are read in the order of memory"
    yield said, replace(problem, pages=in_order)
    if problem.causal:
        Q, K = problem.query.shape[2], problem.n_keys
        square = torch.ones(Q, K, dtype=torch.bool, device=problem.query.device)
        said = "causal counts from the end of the page table: the last query stands at length − 1"
        yield said, _masked(problem, causal=square.tril(K - Q))
        said = "causal is aligned to the start: query i stands at position length − Q + i"
        yield said, _masked(problem, causal=square.tril())


def _vectors(problem: Problem) -> Slips:
    query, key, value = problem.query, problem.key, problem.value
    if value.shape == key.shape:
        said = "key and value are swapped: z = softmax(scale · query · keyᵀ) · value"
        yield said, replace(problem, key=value, value=key)
        yield "key is used in place of value: z = probs · value", replace(problem, value=key)
        yield "value is used in place of key: scores = query · keyᵀ", replace(problem, key=value)
    if query.shape == key.shape:
        said = "query and key are swapped: the softmax is over the keys of a query"
        yield said, replace(problem, query=key, key=query)
    for names in (("key", "value"), ("key",), ("value",)):
        if problem.pages is None and len(key) > 1:
            firsts = {
                name: getattr(problem, name)[:1].expand_as(getattr(problem, name)) for name in names
            }
            said = f"{' and '.join(names)} of the first sentence {'are' if names[1:] else 'is'} "
            yield f"{said}used for all", problem.changed(**firsts)


def _hidden(problem: Problem) -> Slips:
    """Scores of 0 where keys are hidden: by all that hides them, or by one part of it."""
    parts = allowed(problem)
    scores, _ = _scores(replace(unfolded(problem), mask=None))
    for names in dict.fromkeys([tuple(parts), *((name,) for name in parts)] if parts else []):
        seen = all_of({name: parts[name] for name in names})
        bias = scores if seen is None else scores.masked_fill(~seen, 0)
        other = _masked(problem, **dict.fromkeys(names))
        yield (
            "scores of hidden keys are set to 0, whose exp is 1: put −inf into the scores",
            replace(other, scale=0.0, soft_cap=None, bias=bias),
        )


def _scores(problem: Problem) -> tuple[Tensor, Tensor]:
    """The masked scores in float64, as the softmax takes them, and the values of each head."""
    plain = unfolded(problem)
    scores = plain.scale * plain.query @ plain.key.mT
    if plain.soft_cap is not None:
        scores = plain.soft_cap * torch.tanh(scores / plain.soft_cap)
    scores = scores if plain.bias is None else scores + plain.bias
    return scores if plain.mask is None else scores.masked_fill(~plain.mask, -math.inf), plain.value


#: Keys of a step of an online softmax, and what of it is left out.
_STEPS = (1, 4, 8, 16, 32, 64, 128)
_RESCALED = {
    (True, False): "the accumulator is not rescaled when the maximum of the row grows: "
    "acc ← acc · exp(old − new)",
    (False, True): "the sum of the row is not rescaled when its maximum grows: "
    "l ← l · exp(old − new)",
    (True, True): "neither accumulator nor sum is rescaled when the maximum of the row grows: "
    "both are multiplied by exp(old − new)",
}


def _softmax(problem: Problem) -> Slips:
    """Sums over another axis, or none, and statistics in base 2; without sinks more is told."""
    said = "entropy is in bits: it is in nats, −sum p·ln p"
    yield Suspect(said, problem, lambda entropy: entropy / _LN_2, only="entropy")
    if problem.sinks is not None:
        return
    found: list[tuple[str, Computed]] = []
    for axis, name in ((2, "queries"), (1, "heads"), (0, "sentences")):
        if problem.query.shape[axis] > 1:
            right = f"is over the {name}: it is over the keys of each query"
            found.append((f"the softmax {right}, dim=-1", partial(_over, axis, axis)))
            found.append((f"the sum of the softmax {right}", partial(_over, axis, 3)))
    said = "z is not divided by the sum of the row: softmax is exp / sum exp"
    found.append((said, partial(_over, None, 3)))
    if unfolded(problem).mask is not None:
        said = "the mask is applied after the softmax, whose sum counts hidden keys: put −inf into "
        found.append((f"{said}the scores", partial(_masked_after, problem)))
    whole = "lse = maximum + ln(sum exp(s − maximum))"
    of_lse: dict[str, Callable[[Tensor], Tensor]] = {
        "has the wrong sign": lambda s: -s.logsumexp(-1),
        f"lacks the maximum of the row: {whole}": _ln_sum,
        f"lacks the logarithm: {whole}": lambda s: s.amax(-1) + _ln_sum(s).exp(),
        "is the largest score of the row: add ln(sum exp(s − maximum))": lambda s: s.amax(-1),
        f"adds a maximum in base 2 to ln(sum): {whole}": lambda s: s.amax(-1) / _LN_2 + _ln_sum(s),
        f"adds log2(sum) to a maximum in base e: {whole}": lambda s: (
            s.amax(-1) + _ln_sum(s) / _LN_2
        ),
    }
    for said, lse in of_lse.items():
        found.append((f"lse {said}", partial(_lse_alone, lse)))
    for least in (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        for again in (True, False):
            said = f"probs below {least:g} are set to 0{', and rows divided by' * again}"
            said += " what is left" * again
            found.append((said, partial(_dropped, least, again)))
    for n in (2, 3, 4, 8):
        said = f"z is the mean over {n} parts of the keys: weigh each by exp(lse of the part − lse)"
        found.append((said, partial(_mean_of_parts, n)))
    # An online softmax (Milakov & Gimelshein 2018) that forgets what a new maximum changes.
    for step in _STEPS:
        for which, said in _RESCALED.items():
            if step < problem.n_keys:
                found.append((said, partial(_online, step, *which)))
    for said, computed in found:
        yield Suspect(said, problem, computed=computed)


def _over(axis: int | None, of_exp: int, scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    """A softmax whose sum is over another axis, or over none."""
    exp = (scores - scores.amax(of_exp, keepdim=True).nan_to_num(0, 0, 0)).exp()
    probs = exp if axis is None else (exp / exp.sum(axis, keepdim=True)).nan_to_num(0)
    return {"z": probs @ value, "probs": probs}


def _with_nan(scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    """The softmax, NaN in a row without a key: what a kernel gives there is not known."""
    probs = scores.softmax(-1)
    return {"z": probs @ value, "probs": probs}


def _masked_after(problem: Problem, scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Probs that a mask sets to 0 once they are made of all scores."""
    free, _ = _scores(replace(unfolded(problem), mask=None))
    probs = free.softmax(-1).masked_fill(scores == -math.inf, 0.0)
    return {"z": probs @ value, "probs": probs}


def _dropped(least: float, again: bool, scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Without the probs below `least`; rows sum to 1 `again`, or do not."""
    probs = scores.softmax(-1).nan_to_num(0)
    probs = probs.masked_fill(probs < least, 0)
    probs = (probs / probs.sum(-1, keepdim=True)).nan_to_num(0) if again else probs
    return {"z": probs @ value, "probs": probs}


def _mean_of_parts(n: int, scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    """z as the mean of what each of n parts of the keys gives by itself."""
    parts = zip(scores.tensor_split(n, -1), value.tensor_split(n, -2), strict=True)
    found = [s.softmax(-1).nan_to_num(0) @ v for s, v in parts if s.shape[-1]]
    return {"z": torch.stack(found).mean(0)}


def _lse_alone(lse: Callable[[Tensor], Tensor], scores: Tensor, value: Tensor) -> dict[str, Tensor]:
    return {"lse": lse(scores)}


def _ln_sum(scores: Tensor) -> Tensor:
    return scores.logsumexp(-1) - scores.amax(-1)


def _online(
    step: int, of_z: bool, of_sum: bool, scores: Tensor, value: Tensor
) -> dict[str, Tensor]:
    """z and lse in steps of so many keys, without the rescaling of z or of the sum."""
    maximum = torch.full_like(scores[..., :1], torch.finfo(scores.dtype).min)
    z, total = torch.zeros_like(scores[..., :1]) * value[..., :1, :], torch.zeros_like(maximum)
    for first in range(0, scores.shape[-1], step):
        part = scores[..., first : first + step]
        higher = torch.maximum(maximum, part.amax(-1, keepdim=True))
        factor, exp = (maximum - higher).exp(), (part - higher).exp()
        total = (total if of_sum else total * factor) + exp.sum(-1, keepdim=True)
        z = (z if of_z else z * factor) + exp @ value[..., first : first + step, :]
        maximum = higher
    return {"z": (z / total).nan_to_num(0), "lse": (maximum + total.log())[..., 0]}


def _layout(problem: Problem) -> Slips:
    """Axes mistaken for one another when memory is read or z is written; seen in z and lse."""
    problem = replace(problem, want={})
    for names, writes in (
        (_VECTORS, True),
        (_VECTORS, False),
        ((), True),
        (("query", "key"), False),
        *(((name,), False) for name in _VECTORS),
    ):
        changed = {name: _read_by_position(getattr(problem, name)) for name in names}
        parts = [f"{', '.join(names)} {'are' if names[1:] else 'is'} read"] if names else []
        parts += ["z is written"] if writes else []
        said = f"layout: {' and '.join(parts)} as (batch, position, head, d_head); {_LAYOUT}"
        other = problem.changed(**changed)
        yield Suspect(said, other, _written_by_position) if writes else Suspect(said, other)
    B, H, N, D = problem.z_shape
    for said, written in (
        (
            "heads are put side by side before z is turned to (batch, position, head, d_head): "
            "z.transpose(1, 2).reshape(B, N, H * D)",
            _read_by_position,
        ),
        (
            "(batch x head) is taken apart as (head, batch)",
            lambda z: z.reshape(H, B, N, D).transpose(0, 1),
        ),
        (
            "heads are joined as (d_head x head): it is (head x d_head), "
            "z.transpose(1, 2).reshape(B, N, H * D)",
            lambda z: z.permute(0, 2, 3, 1).reshape(B, N, H, D).transpose(1, 2),
        ),
    ):
        yield Suspect(f"layout: {said}", problem, written, only="z")
    shapes = {getattr(problem, name).shape for name in _VECTORS}
    if len(shapes) == 1 and problem.options().keys() <= {*COMMON} - {"mask", "bias"}:
        lengths, H = problem.lengths, problem.query.shape[1]
        turned = {name: getattr(problem, name).transpose(1, 2) for name in _VECTORS}
        yield Suspect(
            "layout: the axes are taken for (batch, position, head, d_head), so that heads attend "
            f"to heads; {_LAYOUT}",
            problem.changed(lengths=None if lengths is None else lengths.clamp_max(H), **turned),
            lambda output: output.transpose(1, 2),
        )


def _read_by_position(vectors: Tensor) -> Tensor:
    B, H, N, D = vectors.shape
    return vectors.reshape(B, N, H, D).transpose(1, 2)


def _written_by_position(output: Tensor) -> Tensor:
    return output.transpose(1, 2).reshape(output.shape)


def _tiles(problem: Problem) -> Slips:
    plain, K = unfolded(problem), problem.n_keys
    key = torch.arange(K, device=problem.query.device)
    padded = problem.packed is None and problem.pages is None
    missing = "the mask is missing on the last block"
    for tile in TILES:
        tail = key >= (K - 1) // tile * tile
        if plain.mask is not None:
            yield f"{missing} of {tile} keys", replace(plain, mask=plain.mask | tail)
        if problem.lengths is not None and padded:
            edge = (problem.lengths[:, None, None, None] + tile - 1) // tile * tile
            said = f"lengths is rounded up to blocks of {tile} keys or more: its edge has no mask"
            yield said, _masked(problem, lengths=key < edge)
        if tile < K and K % tile > 1:
            said = f"the last, incomplete block of {tile} keys is left out"
            yield said, _masked(problem, more=~tail)
        if K % tile and padded:
            said = f"{missing}: keys are filled up with zeros to a multiple of {tile}, and these "
            yield f"{said}are seen", _padded(plain, -K % tile)
            said = f"{missing} of {tile} keys: it reads on into the memory of the next head"
            yield said, _reading_on(problem, -K % tile)
    if K > 1:
        yield "the last key is left out", _masked(problem, more=key < K - 1)


def _padded(plain: Problem, extra: int) -> Problem:
    """The problem with `extra` zero keys and values appended, which every query sees."""
    B, H, Q, K = (*plain.query.shape[:3], plain.n_keys)
    mask, bias = plain.mask, plain.bias
    return replace(
        plain,
        key=pad(plain.key, (0, 0, 0, extra)),
        value=pad(plain.value, (0, 0, 0, extra)),
        mask=None if mask is None else pad(mask.expand(B, H, Q, K), (0, extra), value=True),
        bias=None if bias is None else pad(bias, (0, extra)),
    )


def _reading_on(problem: Problem, extra: int) -> Problem:
    """The problem with the memory after each head's keys and values read as `extra` ones.

    The memory after the last head is unknown: its values are NaN.
    """
    B, H, K, _ = problem.key.shape
    starts = torch.arange(B * H, device=problem.key.device)[:, None] * K
    places = starts + torch.arange(K + extra, device=problem.key.device)
    read = []
    for vectors in (problem.key, problem.value):
        memory = vectors.double().reshape(B * H * K, vectors.shape[3])
        read.append(memory[places.clamp_max(B * H * K - 1)].clone())
    read[1][places[:, -1] >= B * H * K] = math.nan
    key, value = (
        one.reshape(B, H, K + extra, -1).repeat_interleave(problem.query.shape[1] // H, dim=1)
        for one in read
    )
    return replace(_padded(unfolded(problem), extra), key=key, value=value)
