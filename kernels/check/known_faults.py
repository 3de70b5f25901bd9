"""Common mistakes in attention kernels, each written as a change to the inputs.

`causes.py` tries them one after the other on a kernel that is wrong. When float64 with the change
gives the kernel's numbers, the kernel makes that mistake.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from minibert.kernels.check.known_faults_of_fields import about_fields
from minibert.kernels.check.problem import Problem, unfolded
from minibert.kernels.check.suspect import Suspect, as_it_is, with_mask

__all__ = ["suspects"]

_TILES = (16, 32, 64, 128)
_VECTORS = ("query", "key", "value")
_OLD = {"lengths", "mask", "causal", "scale", "bias", "want"}
_LAYOUT = "expected (batch, head, position, d_head)"


def suspects(problem: Problem) -> Iterator[Suspect]:
    """Every slip that can show in this problem, those that are easily told apart first."""
    yield from _about_strides(problem)
    yield from _about_scale(problem)
    yield from _about_options(problem)
    yield from about_fields(problem)
    yield from _about_vectors(problem)
    yield from _about_layout(problem)
    yield from _about_tiles(problem)


def _about_strides(problem: Problem) -> Iterator[Suspect]:
    vectors = {name: getattr(problem, name) for name in _VECTORS}
    if all(one.is_contiguous() for one in vectors.values()):
        return
    changed: dict[str, Any] = {}
    for name, one in vectors.items():
        _, H, N, D = one.shape
        changed[name] = one.as_strided(one.shape, (H * N * D, N * D, D, 1)).contiguous()
    yield Suspect(
        "strides are ignored: memory is read as if it were contiguous, and a model hands over "
        "views; use x.stride(), or x.contiguous() before the launch",
        replace(problem, **changed),
    )


def _about_scale(problem: Problem) -> Iterator[Suspect]:
    D, scale = problem.query.shape[-1], problem.scale
    of_values = 1 / math.sqrt(problem.value.shape[-1])
    for name, factor in (
        ("1: the scale is left out", 1.0),
        ("1/d_head in place of 1/sqrt(d_head)", 1 / D),
        ("sqrt(d_head): multiplied where it should divide", math.sqrt(D)),
        ("1/sqrt(d_head): `scale` is ignored", 1 / math.sqrt(D)),
        ("1/sqrt(d_value) in place of 1/sqrt(d_head)", of_values),
        ("scale twice over", scale**2),
        ("scale · ln 2: 2 to the power in place of e, without log2(e)", scale * math.log(2)),
        ("scale · log2(e): log2(e) without 2 to the power", scale / math.log(2)),
        ("1/sqrt(d_head + 1)", 1 / math.sqrt(D + 1)),
        ("1/sqrt(d_head − 1)", 1 / math.sqrt(max(D - 1, 1))),
        ("scale / 2", scale / 2),
        ("scale · 2", scale * 2),
    ):
        if not math.isclose(factor, scale):
            said = f"wrong scale: it behaves as {name} ({factor / scale:.5g} times what is right)"
            yield Suspect(said, replace(problem, scale=factor))


def _about_options(problem: Problem) -> Iterator[Suspect]:
    yield from _about_lengths(problem)
    if problem.mask is not None:
        yield Suspect("mask is ignored", replace(problem, mask=None))
        yield Suspect(
            "mask is read the wrong way round: True is allowed",
            replace(problem, mask=~problem.mask),
        )
    if problem.bias is not None:
        yield Suspect("bias is ignored", replace(problem, bias=None))
        scaled = problem.bias * problem.scale
        yield Suspect("bias is scaled: it is added after the scale", replace(problem, bias=scaled))
    if problem.causal:
        yield from _about_causal(problem)
    else:
        yield Suspect(
            "causal order is kept where it was not asked for: check a function that is always "
            "causal with --causal-only",
            replace(problem, causal=True),
        )


def _about_lengths(problem: Problem) -> Iterator[Suspect]:
    if problem.lengths is None:
        return
    K = problem.n_keys
    yield from _about_padded_queries(problem)
    first = problem.lengths[:1].expand_as(problem.lengths)
    if bool((first == K).all()):
        # Both slips look alike; the other call has other lengths and tells which it is.
        yield Suspect("", _all_keys(problem))
    else:
        yield Suspect("lengths is ignored: padding keys are seen", _all_keys(problem))
        yield Suspect(
            "lengths of the first sentence is used for all: read lengths[batch], not lengths[0]",
            replace(problem, lengths=first),
        )
    for slip, shift in (
        ("one key too many is seen behind the length: write key < length, not key <= length", 1),
        ("the last real key is not seen: write key < length, not key < length - 1", -1),
    ):
        shifted = (problem.lengths + shift).clamp(0, K)
        yield Suspect(f"lengths is off by one: {slip}", replace(problem, lengths=shifted))


def _about_padded_queries(problem: Problem) -> Iterator[Suspect]:
    if problem.pages is None and problem.query.shape[2] == problem.n_keys:
        for output in ("received", "profile"):
            yield Suspect(
                f"{output} counts queries behind the end of a sentence (padding): with lengths and "
                "as many queries as keys it is a sum over the real queries alone",
                # Its lengths are in the mask: no query is left out.
                unfolded(problem),
                only=output,
            )


def _all_keys(problem: Problem) -> Problem:
    if problem.pages is None:
        return replace(problem, lengths=None)
    return replace(problem, lengths=torch.full_like(problem.pages[:, 0], problem.n_keys))


def _about_causal(problem: Problem) -> Iterator[Suspect]:
    Q, K = problem.query.shape[2], problem.n_keys
    yield Suspect(
        "causal is ignored: the future is seen", replace(problem, causal=False, prefix=None)
    )
    if problem.packed is not None or problem.pages is not None or problem.prefix is not None:
        return
    square = torch.ones(1, 1, Q, K, dtype=torch.bool, device=problem.query.device)
    free = replace(problem, causal=False)
    slips = [("leaves out the query's own position", K - Q - 1), ("is one key too far", K - Q + 1)]
    if Q != K:
        slips.insert(0, ("is aligned to the start: query i stands at position K − Q + i", 0))
    for slip, last in slips:
        changed = with_mask(free, _both(unfolded(free).mask, square.tril(last)))
        # With its lengths, because statistics leave out padded queries.
        yield Suspect(f"causal {slip}", replace(changed, lengths=problem.lengths))


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _about_vectors(problem: Problem) -> Iterator[Suspect]:
    query, key, value = problem.query, problem.key, problem.value
    if value.shape == key.shape:
        yield Suspect(
            "key and value are swapped: z = softmax(scale · query · keyᵀ) · value",
            replace(problem, key=value, value=key),
        )
    if query.shape == key.shape:
        yield Suspect(
            "query and key are swapped: the softmax is over the keys of a query",
            replace(problem, query=key, key=query),
        )


def _about_layout(problem: Problem) -> Iterator[Suspect]:
    """Axes taken for one another, when memory is read or z is written; told by z and lse alone."""
    problem = replace(problem, want={})
    for layout, read, written in (
        ("(batch, position, head, d_head)", _read_by_position, _written_by_position),
        ("(batch, head, d_head, position)", _read_by_dimension, _written_by_dimension),
    ):
        for names, writes in (
            (_VECTORS, True),
            (_VECTORS, False),
            ((), True),
            (("query", "key"), False),
            *(((name,), False) for name in _VECTORS),
        ):
            changed: dict[str, Any] = {name: read(getattr(problem, name)) for name in names}
            parts = [f"{', '.join(names)} {'are' if names[1:] else 'is'} read"] if names else []
            parts += ["z is written"] if writes else []
            yield Suspect(
                f"layout: {' and '.join(parts)} as {layout}; {_LAYOUT}",
                replace(problem, **changed),
                written if writes else as_it_is,
            )
    if problem.options().keys() <= _OLD and problem.mask is None and _same_shapes(problem):
        lengths, H = problem.lengths, problem.query.shape[1]
        turned: dict[str, Any] = {name: getattr(problem, name).transpose(1, 2) for name in _VECTORS}
        yield Suspect(
            "layout: the axes are taken for (batch, position, head, d_head), so that heads attend "
            f"to heads; {_LAYOUT}",
            replace(problem, lengths=None if lengths is None else lengths.clamp_max(H), **turned),
            lambda output: output.transpose(1, 2),
        )


def _same_shapes(problem: Problem) -> bool:
    shapes = {getattr(problem, name).shape for name in _VECTORS}
    return len(shapes) == 1 and problem.bias is None


def _read_by_position(vectors: Tensor) -> Tensor:
    B, H, N, D = vectors.shape
    return vectors.reshape(B, N, H, D).transpose(1, 2)


def _written_by_position(output: Tensor) -> Tensor:
    return output.transpose(1, 2).reshape(output.shape)


def _read_by_dimension(vectors: Tensor) -> Tensor:
    B, H, N, D = vectors.shape
    return vectors.reshape(B, H, D, N).transpose(2, 3)


def _written_by_dimension(output: Tensor) -> Tensor:
    return output if output.ndim < 4 else output.transpose(2, 3).reshape(output.shape)


def _about_tiles(problem: Problem) -> Iterator[Suspect]:
    plain, device = unfolded(problem), problem.query.device
    K, allowed = problem.n_keys, plain.mask
    padded = problem.packed is None and problem.pages is None
    for tile in _TILES:
        tail = torch.arange(K, device=device) >= (K - 1) // tile * tile
        if allowed is not None:
            yield Suspect(
                f"the mask is missing on the last block of {tile} keys",
                replace(plain, mask=allowed | tail),
            )
        if problem.lengths is not None and padded:
            edge = (problem.lengths[:, None, None, None] + tile - 1) // tile * tile
            seen = torch.arange(K, device=device) < edge
            free = unfolded(replace(problem, lengths=None))
            yield Suspect(
                f"lengths is rounded up to blocks of {tile} keys or more: its edge has no mask",
                replace(free, mask=_both(free.mask, seen)),
            )
        if tile < K and K % tile:
            kept = (~tail)[None, None, None]
            yield Suspect(
                f"the last, incomplete block of {tile} keys is left out",
                replace(plain, mask=_both(allowed, kept)),
            )
        if K % tile and padded:
            yield Suspect(
                "the mask is missing on the last block: keys are filled up with zeros to a "
                f"multiple of {tile}, and these are seen",
                _padded(plain, -K % tile),
            )
            yield Suspect(
                f"the mask is missing on the last block of {tile} keys: it reads on into the "
                "memory of the next head",
                _reading_on(problem, -K % tile),
            )
    if K > 1:
        last = torch.arange(K, device=device) < K - 1
        yield Suspect(
            "the last key is not seen, where there is no length",
            replace(plain, mask=_both(allowed, last[None, None, None])),
        )


def _padded(plain: Problem, extra: int) -> Problem:
    """The problem with `extra` keys and values of zero behind, which every query sees."""
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
    """The problem with the memory behind each head's keys and values as `extra` keys and values.

    Behind the last heads stands what nobody knows: their values are NaN.
    """
    B, H, K, _ = problem.key.shape
    starts = torch.arange(B * H, device=problem.key.device)[:, None] * K
    places = starts + torch.arange(K + extra, device=problem.key.device)
    unknown = places[:, -1] >= B * H * K
    groups = problem.query.shape[1] // H

    def read_on(vectors: Tensor) -> Tensor:
        memory = vectors.double().reshape(B * H * K, vectors.shape[3])
        return memory[places.clamp_max(B * H * K - 1)].clone()

    def repeated(vectors: Tensor) -> Tensor:
        heads = vectors.reshape(B, H, K + extra, vectors.shape[2])
        return heads.repeat_interleave(groups, dim=1)

    value = read_on(problem.value)
    value[unknown] = math.nan
    plain = _padded(unfolded(problem), extra)
    return replace(plain, key=repeated(read_on(problem.key)), value=repeated(value))
