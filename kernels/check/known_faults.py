"""Common mistakes in attention kernels, each written as a change to the inputs.

`causes.py` tries them one after the other on a kernel that is wrong. When float64 with the change
gives the kernel's numbers, the kernel makes that mistake.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.kernels import eager
from minibert.kernels.check.cases import Problem
from minibert.kernels.masks import allowed_keys

__all__ = ["Suspect", "allowed_in", "suspects"]

_TILES = (16, 32, 64, 128)
_VECTORS = ("query", "key", "value")
_LAYOUT = "expected (batch, head, position, d_head)"


def _as_it_is(output: Tensor) -> Tensor:
    return output


@dataclass(frozen=True, eq=False)
class Suspect:
    """A slip: what is said of it, and the problem it solves in place of the right one.

    `written` puts the numbers of an output where the slip has them.
    """

    sentence: str
    problem: Problem
    written: Callable[[Tensor], Tensor] = _as_it_is

    def gives(self, output: str) -> Tensor | None:
        """The output of a kernel that makes this slip and no other; None where it is not known."""
        problem = self.problem
        vectors = (one.double() for one in (problem.query, problem.key, problem.value))
        options = problem.options()
        if problem.bias is not None:
            options["bias"] = problem.bias.double()
        # Eager and not the reference, which goes query by query: there are many suspects.
        right = eager.attend(*vectors, **options).get(output)
        return None if right is None else self.written(right)


def suspects(problem: Problem) -> Iterator[Suspect]:
    """Every slip that can show in this problem, those that are easily told apart first."""
    yield from _about_strides(problem)
    yield from _about_scale(problem)
    yield from _about_options(problem)
    yield from _about_vectors(problem)
    yield from _about_layout(problem)
    yield from _about_tiles(problem)


def allowed_in(problem: Problem) -> Tensor | None:
    """Where attention is allowed, (batch, head, query, key) with any axis 1; None: everywhere."""
    return allowed_keys(
        problem.query,
        problem.key,
        lengths=problem.lengths,
        mask=problem.mask,
        causal=problem.causal,
    )


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
            yield Suspect(f"wrong scale: it behaves as {name}", replace(problem, scale=factor))


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


def _about_lengths(problem: Problem) -> Iterator[Suspect]:
    if problem.lengths is None:
        return
    K = problem.key.shape[2]
    yield Suspect("lengths is ignored: padding keys are seen", replace(problem, lengths=None))
    for slip, shift in (
        ("one key too many is seen behind the length: write key < length, not key <= length", 1),
        ("the last real key is not seen: write key < length, not key < length - 1", -1),
    ):
        shifted = (problem.lengths + shift).clamp(0, K)
        yield Suspect(f"lengths is off by one: {slip}", replace(problem, lengths=shifted))


def _about_causal(problem: Problem) -> Iterator[Suspect]:
    Q, K = problem.query.shape[2], problem.key.shape[2]
    yield Suspect("causal is ignored: the future is seen", replace(problem, causal=False))
    square = torch.ones(1, 1, Q, K, dtype=torch.bool, device=problem.query.device)
    yield Suspect(
        "causal is aligned to the start: query i stands at position K − Q + i",
        replace(problem, causal=False, mask=square.tril()),
    )
    for slip, shift in (("leaves out the query's own position", -1), ("is one key too far", 1)):
        mask = square.tril(K - Q + shift)
        yield Suspect(f"causal {slip}", replace(problem, causal=False, mask=mask))


def _about_vectors(problem: Problem) -> Iterator[Suspect]:
    query, key, value = problem.query, problem.key, problem.value
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
                written if writes else _as_it_is,
            )
    if problem.mask is None and problem.bias is None and problem.query.shape == problem.key.shape:
        lengths, H = problem.lengths, problem.query.shape[1]
        turned: dict[str, Any] = {name: getattr(problem, name).transpose(1, 2) for name in _VECTORS}
        yield Suspect(
            "layout: the axes are taken for (batch, position, head, d_head), so that heads attend "
            f"to heads; {_LAYOUT}",
            replace(problem, lengths=None if lengths is None else lengths.clamp_max(H), **turned),
            lambda output: output.transpose(1, 2),
        )


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
    K, device = problem.key.shape[2], problem.query.device
    for tile in _TILES:
        tail = torch.arange(K, device=device) >= (K - 1) // tile * tile
        allowed = allowed_in(problem)
        if allowed is not None:
            yield Suspect(
                f"the mask is missing on the last block of {tile} keys",
                _with_mask(problem, allowed | tail),
            )
        if problem.lengths is not None:
            edge = (problem.lengths[:, None, None, None] + tile - 1) // tile * tile
            seen = torch.arange(K, device=device) < edge
            yield Suspect(
                f"lengths is rounded up to blocks of {tile} keys or more: its edge has no mask",
                replace(problem, lengths=None, mask=seen),
            )
        if tile < K and K % tile:
            kept = ~tail if allowed is None else allowed & ~tail
            yield Suspect(
                f"the last, incomplete block of {tile} keys is left out",
                _with_mask(problem, kept.expand(1, 1, 1, K) if allowed is None else kept),
            )
        if K % tile:
            yield Suspect(
                "the mask is missing on the last block: keys are filled up with zeros to a "
                f"multiple of {tile}, and these are seen",
                _padded(problem, -K % tile),
            )
            yield Suspect(
                f"the mask is missing on the last block of {tile} keys: it reads on into the "
                "memory of the next head",
                _reading_on(problem, -K % tile),
            )


def _with_mask(problem: Problem, mask: Tensor) -> Problem:
    return replace(problem, lengths=None, causal=False, mask=mask)


def _padded(problem: Problem, extra: int) -> Problem:
    """The problem with `extra` keys and values of zero behind, which every query sees."""
    allowed, key, value = allowed_in(problem), problem.key, problem.value
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
