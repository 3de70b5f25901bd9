"""Why a kernel is wrong: the suspects of the trade, each tried on the reference.

Place: called by `parity.check` on a failure. A suspect is a change to the inputs of the reference
(a mask left out, another scale); when the changed reference gives the kernel's numbers, it is it.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.cases import Problem, truth
from minibert.kernels.masks import allowed_keys
from minibert.kernels.rounding import rounding_cause

__all__ = ["distance", "likely_cause"]

_TILES = (16, 32, 64, 128)


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; an infinity where one is NaN or infinite and not both."""
    found = found.to(expected.dtype)
    same = found == expected
    return float((found - expected).abs().nan_to_num(math.inf, math.inf).masked_fill(same, 0).max())


def likely_cause(
    output: str,
    problem: Problem,
    found: Tensor,
    expected: Tensor,
    *,
    tolerance: float,
    previous: Tensor | None,
) -> str:
    """A sentence that says what is probably wrong with `output`, and where."""
    if previous is not None and torch.equal(found, previous):
        return (
            "the same numbers as in the previous call, which had other inputs: a stale output, "
            "kept or cached between calls"
        )
    if bool(found.isnan().any()):
        return _about_nan(problem, found)
    wrong = ((found.to(expected.dtype) - expected).abs() > tolerance) | (
        found.isinf() != expected.isinf()
    )
    if not bool(wrong.any()):
        return "within the tolerance at each value, but masked cells are not exactly 0"
    if previous is not None and (stale := _stale_part(wrong, found, previous)):
        return stale
    if _only_dead_rows(problem, wrong):
        return (
            "only rows without an allowed key are wrong: there z, probs and entropy are 0, lse and "
            "row_max −inf, argmax −1"
        )
    if _only_padded_queries(problem, wrong):
        return (
            "only rows of padded queries are wrong: a query behind the length of its sentence sees "
            "the real keys like any other"
        )
    if output == "lse" and distance(found * math.log(2), expected) <= tolerance:
        return "lse is in base 2: multiply by ln 2"
    for suspicion, changed in _suspects(problem):
        other = truth(changed)[output]
        if other.shape == found.shape and _fits(found, other, tolerance):
            return suspicion
    if rounded := rounding_cause(output, problem, found, expected):
        return rounded
    return _where(wrong, found, expected)


def _fits(found: Tensor, other: Tensor, tolerance: float) -> bool:
    """True when the numbers agree in every head; a suspect marks a head it cannot know by NaN."""
    unknown = other.isnan().flatten(2).any(dim=-1)
    if int(unknown.sum()) * 2 > unknown.numel():
        return False
    return distance(found[~unknown], other[~unknown]) <= tolerance


def _stale_part(wrong: Tensor, found: Tensor, previous: Tensor) -> str | None:
    """A sentence when nearly every wrong number is that of the previous call; 0 tells nothing."""
    kept = wrong & (found == previous) & (found != 0)
    if int(kept.sum()) < 0.9 * int(wrong.sum()):
        return None
    return (
        f"{int(kept.sum())} of {found.numel()} values, first at {_first(kept)}, are those of the "
        "previous call, which had other inputs: a stale output, of which a part is not written"
    )


def _suspects(problem: Problem) -> Iterator[tuple[str, Problem]]:
    yield from _about_strides(problem)
    yield from _about_scale(problem)
    yield from _about_options(problem)
    yield from _about_tiles(problem)


def _about_strides(problem: Problem) -> Iterator[tuple[str, Problem]]:
    vectors = {name: getattr(problem, name) for name in ("query", "key", "value")}
    if all(one.is_contiguous() for one in vectors.values()):
        return
    changed: dict[str, Any] = {}
    for name, one in vectors.items():
        _, H, N, D = one.shape
        changed[name] = one.as_strided(one.shape, (H * N * D, N * D, D, 1)).contiguous()
    yield (
        "strides are ignored: memory is read as if it were contiguous, and a model hands over "
        "views; use x.stride(), or x.contiguous() before the launch",
        replace(problem, **changed),
    )


def _about_scale(problem: Problem) -> Iterator[tuple[str, Problem]]:
    D, scale = problem.query.shape[-1], problem.scale
    for name, factor in (
        ("1: the scale is left out", 1.0),
        ("1/d_head in place of 1/sqrt(d_head)", 1 / D),
        ("sqrt(d_head): multiplied where it should divide", math.sqrt(D)),
        ("1/sqrt(d_head): `scale` is ignored", 1 / math.sqrt(D)),
        ("scale twice over", scale**2),
        ("scale · ln 2: 2 to the power in place of e, without log2(e)", scale * math.log(2)),
        ("scale · log2(e): log2(e) without 2 to the power", scale / math.log(2)),
        ("scale / 2", scale / 2),
        ("scale · 2", scale * 2),
    ):
        if not math.isclose(factor, scale):
            yield f"wrong scale: it behaves as {name}", replace(problem, scale=factor)


def _about_options(problem: Problem) -> Iterator[tuple[str, Problem]]:
    Q, K = problem.query.shape[2], problem.key.shape[2]
    device = problem.query.device
    if problem.lengths is not None:
        yield "lengths is ignored: padding keys are seen", replace(problem, lengths=None)
    if problem.mask is not None:
        yield "mask is ignored", replace(problem, mask=None)
        yield (
            "mask is read the wrong way round: True is allowed",
            replace(problem, mask=~problem.mask),
        )
    if problem.bias is not None:
        yield "bias is ignored", replace(problem, bias=None)
        scaled = problem.bias * problem.scale
        yield "bias is scaled: it is added after the scale", replace(problem, bias=scaled)
    if problem.causal:
        yield "causal is ignored: the future is seen", replace(problem, causal=False)
        square = torch.ones(1, 1, Q, K, dtype=torch.bool, device=device)
        yield (
            "causal is aligned to the start: query i stands at position K − Q + i",
            replace(problem, causal=False, mask=square.tril()),
        )
        for slip, shift in (("leaves out the query's own position", -1), ("is one key too far", 1)):
            mask = square.tril(K - Q + shift)
            yield f"causal {slip}", replace(problem, causal=False, mask=mask)


def _about_tiles(problem: Problem) -> Iterator[tuple[str, Problem]]:
    K, device = problem.key.shape[2], problem.query.device
    for tile in _TILES:
        tail = torch.arange(K, device=device) >= (K - 1) // tile * tile
        allowed = _allowed(problem)
        if allowed is not None:
            yield (
                f"the mask is missing on the last block of {tile} keys",
                _with_mask(problem, allowed | tail),
            )
        if problem.lengths is not None:
            edge = (problem.lengths[:, None, None, None] + tile - 1) // tile * tile
            seen = torch.arange(K, device=device) < edge
            yield (
                f"lengths is rounded up to blocks of {tile} keys or more: its edge has no mask",
                replace(problem, lengths=None, mask=seen),
            )
        if tile < K and K % tile:
            kept = ~tail if allowed is None else allowed & ~tail
            yield (
                f"the last, incomplete block of {tile} keys is left out",
                _with_mask(problem, kept.expand(1, 1, 1, K) if allowed is None else kept),
            )
        if K % tile:
            yield (
                "the mask is missing on the last block: keys are filled up with zeros to a "
                f"multiple of {tile}, and these are seen",
                _padded(problem, -K % tile),
            )
            yield (
                f"the mask is missing on the last block of {tile} keys: it reads on into the "
                "memory of the next head",
                _reading_on(problem, -K % tile),
            )


def _allowed(problem: Problem) -> Tensor | None:
    return allowed_keys(
        problem.query,
        problem.key,
        lengths=problem.lengths,
        mask=problem.mask,
        causal=problem.causal,
    )


def _with_mask(problem: Problem, mask: Tensor) -> Problem:
    return replace(problem, lengths=None, causal=False, mask=mask)


def _padded(problem: Problem, extra: int) -> Problem:
    """The problem with `extra` keys and values of zero behind, which every query sees."""
    allowed, key, value = _allowed(problem), problem.key, problem.value
    if allowed is not None:
        B, H, Q, K = (*problem.query.shape[:3], key.shape[2])
        allowed = torch.nn.functional.pad(allowed.expand(B, H, Q, K), (0, extra), value=True)
    bias = problem.bias
    return Problem(
        query=problem.query,
        key=torch.nn.functional.pad(key, (0, 0, 0, extra)),
        value=torch.nn.functional.pad(value, (0, 0, 0, extra)),
        scale=problem.scale,
        mask=allowed,
        bias=None if bias is None else torch.nn.functional.pad(bias, (0, extra)),
        want=problem.want,
    )


def _reading_on(problem: Problem, extra: int) -> Problem:
    """The problem with the memory behind each head's keys and values as `extra` keys and values.

    Behind the last heads stands what nobody knows: their values are NaN.
    """
    B, H, K, D = problem.key.shape
    starts = torch.arange(B * H, device=problem.key.device)[:, None] * K
    places = starts + torch.arange(K + extra, device=problem.key.device)
    unknown = places[:, -1] >= B * H * K

    def read_on(vectors: Tensor) -> Tensor:
        memory = vectors.reshape(B * H * K, D)
        return memory[places.clamp_max(B * H * K - 1)].clone()

    padded = _padded(problem, extra)
    value = read_on(problem.value)
    value[unknown] = math.nan
    shape = (B, H, K + extra, D)
    return replace(padded, key=read_on(problem.key).reshape(shape), value=value.reshape(shape))


def _dead_rows(problem: Problem) -> Tensor:
    B, H, Q, K = (*problem.query.shape[:3], problem.key.shape[2])
    allowed = _allowed(problem)
    if allowed is None:
        return torch.zeros(B, H, Q, dtype=torch.bool, device=problem.query.device)
    return ~allowed.expand(B, H, Q, K).any(dim=-1)


def _only_dead_rows(problem: Problem, wrong: Tensor) -> bool:
    dead = _dead_rows(problem)
    if wrong.shape[:3] != dead.shape:
        return False
    rows = wrong if wrong.ndim == 3 else wrong.any(dim=-1)
    return bool(rows.any()) and not bool((rows & ~dead).any())


def _only_padded_queries(problem: Problem, wrong: Tensor) -> bool:
    Q = problem.query.shape[2]
    if problem.lengths is None or problem.key.shape[2] != Q or wrong.shape[2] != Q:
        return False
    padded = torch.arange(Q, device=wrong.device) >= problem.lengths[:, None, None]
    rows = wrong if wrong.ndim == 3 else wrong.any(dim=-1)
    return bool(rows.any()) and not bool((rows & ~padded).any())


def _about_nan(problem: Problem, found: Tensor) -> str:
    nan = found.isnan()
    share = f"NaN in {int(nan.sum())} of {nan.numel()} values"
    if _only_dead_rows(problem, nan):
        return f"{share}, only in rows without an allowed key: a softmax over −inf alone"
    return (
        f"{share}, first at {_first(nan)}: memory that was never written (it is poisoned with NaN "
        "before each call), or 0·(−inf) at a masked key"
    )


def _where(wrong: Tensor, found: Tensor, expected: Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    numbers = f"{float(found[index]):.6g} where {float(expected[index]):.6g} is right"
    rows = wrong.transpose(0, 2).flatten(1).any(dim=-1).nonzero().flatten()
    n_rows = wrong.shape[2]
    if len(rows) < n_rows and int(rows[0]) == n_rows - len(rows):
        return (
            f"only the last {len(rows)} of {n_rows} rows are wrong: an incomplete last block? "
            f"{numbers}"
        )
    return f"{int(wrong.sum())} of {wrong.numel()} values, first at {_first(wrong)}: {numbers}"


def _first(flags: Tensor) -> str:
    return f"[{', '.join(str(i) for i in flags.nonzero()[0].tolist())}]"
