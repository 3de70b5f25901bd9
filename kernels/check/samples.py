"""Some rows of a call that is too large to be judged as a whole, drawn when its outputs are there.

What is looked at cannot be foreseen. The truth is eager in float64, which parity proves equal to
the reference; the tolerance is parity's, from eager in the dtype of the inputs on the same rows.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.check.gradients import right_gradients, tolerances
from minibert.kernels.check.problem import (
    Problem,
    all_of,
    allowed_at,
    bias_at,
    by_eager,
    distance,
    error_of,
    mean_distance,
    mean_tolerance,
    tolerance_of,
)

_ROWS, _HEADS = 48, 2
#: Outputs with a number, or a vector, for each row, that need nothing but the row.
_OF_ROWS = ("z", "lse", "row_max", "max_prob", "entropy")
#: The error of an output in the rows looked at, and what is allowed there.
Looked = tuple[float, float]
_NOTHING: Looked = (math.inf, 0.0)


def sampled(problem: Problem, found: Mapping[str, Tensor]) -> dict[str, Looked]:
    """How far outputs are off in some rows of some heads, z on average as well; the worst."""
    if tuple(found["z"].shape) != problem.z_shape:
        return {"z": _NOTHING}
    worst: dict[str, Looked] = {}
    names = [name for name in _OF_ROWS if name in found]
    for _ in range(_HEADS):
        sentence, (batch, first, Q) = _sentence(problem)
        head = secrets.randbelow(problem.query.shape[1])
        drawn = torch.Generator().manual_seed(secrets.randbits(63))
        rows = torch.randperm(Q, generator=drawn)[:_ROWS]
        rows[0] = Q - 1
        rows = rows.sort().values.to(found["z"].device)
        one = replace(
            part(problem, sentence, slice(head, head + 1), rows),
            want=dict.fromkeys(names[1:], ()),
        )
        mine = {n: found[n][batch : batch + 1, head : head + 1][:, :, first + rows] for n in names}
        truth, eager = by_eager(one, torch.float64), by_eager(one, one.query.dtype)
        looked = {
            n: (error_of(n, one, mine, truth), tolerance_of(n, one, eager, truth)) for n in names
        }
        looked["z, mean"] = (
            mean_distance(mine["z"], truth["z"]),
            mean_tolerance(one, eager["z"], truth["z"]),
        )
        for name, two in looked.items():
            worst[name] = max(worst.get(name, two), two, key=lambda two: two[0] - two[1])
    return worst


def sampled_gradients(problem: Problem, found: Mapping[str, Tensor]) -> dict[str, Looked]:
    """How far the gradients are off in one key head of one sentence and its query heads."""
    leaves = {f"{name}_gradient": getattr(problem, name) for name in ("query", "key", "value")}
    if any(found[name].shape != one.shape for name, one in leaves.items()):
        return dict.fromkeys(leaves, _NOTHING)
    sentence, (batch, first, Q) = _sentence(problem)
    key_heads = problem.key.shape[1]
    group = problem.query.shape[1] // key_heads
    head = secrets.randbelow(key_heads)
    heads = slice(head * group, (head + 1) * group)
    one = part(problem, sentence, heads, torch.arange(Q, device=problem.query.device))
    right, allowed = right_gradients(one), tolerances(one)
    first_key = sum((problem.packed_keys or problem.packed or ())[:sentence])
    of_key = (slice(head, head + 1), slice(first_key, first_key + one.key.shape[2]))
    places = dict.fromkeys(leaves, of_key) | {"query_gradient": (heads, slice(first, first + Q))}
    return {
        name: (distance(found[name][batch : batch + 1, which, rows], right[name]), allowed[name])
        for name, (which, rows) in places.items()
    }


def _sentence(problem: Problem) -> tuple[int, tuple[int, int, int]]:
    """One that is drawn: its number; its place in the batch, its first query and its queries."""
    if problem.packed is None:
        B, _, Q, _ = problem.query.shape
        sentence = secrets.randbelow(B)
        return sentence, (sentence, 0, Q)
    sentence = secrets.randbelow(len(problem.packed))
    return sentence, (0, sum(problem.packed[:sentence]), problem.packed[sentence])


def part(problem: Problem, sentence: int, heads: slice, rows: Tensor) -> Problem:
    """Some query rows of one sentence, in query heads that share a key head.

    In the dtype of the inputs; which keys are seen, ALiBi and bias are a mask and a bias of these
    rows alone, so that it can be taken of a problem whose scores would not fit into memory.
    """
    packed, device = problem.packed, rows.device
    group = problem.query.shape[1] // problem.key.shape[1]
    of_keys = slice(heads.start // group, heads.start // group + 1)
    batch, first, Q, keys = sentence, 0, problem.query.shape[2], slice(0, problem.n_keys)
    if packed is not None:
        counts = problem.packed_keys or packed
        batch, first, Q = 0, sum(packed[:sentence]), packed[sentence]
        keys = slice(sum(counts[:sentence]), sum(counts[: sentence + 1]))
    K = end = keys.stop - keys.start
    told: dict[str, Any] = dict.fromkeys(("packed", "packed_keys", "pages")) | {"want": {}}
    for name in ("query", "z_gradient"):
        if (one := getattr(problem, name)) is not None:
            told[name] = one.detach()[batch : batch + 1, heads][:, :, first + rows]
    for name in ("key", "value"):
        one = getattr(problem, name).detach()
        if problem.pages is not None and problem.lengths is not None:
            end = int(problem.lengths[sentence])
            one = one[problem.pages[sentence].long()].transpose(0, 1).flatten(1, 2)[None]
            told[name] = one[:, of_keys, :K]
        else:
            told[name] = one[batch : batch + 1, of_keys, keys]
    for name in ("lengths", "prefix", "alibi_slopes", "sinks", "mask", "bias"):
        if (one := getattr(problem, name)) is None:
            continue
        if name in ("mask", "bias"):
            told[name] = _cells(one, min(sentence, len(one) - 1), heads, rows)
        else:
            of_heads = name in ("alibi_slopes", "sinks")
            told[name] = one[heads] if of_heads else one[sentence : sentence + 1]
    small, key = replace(problem, **told), torch.arange(K, device=device)
    distance = (key - (rows + end - Q)[:, None])[None, None]
    bias = bias_at(small, distance)
    return replace(
        small, lengths=None, causal=False, window=None, prefix=None, alibi_slopes=None,
        mask=all_of(allowed_at(small, distance, key)),
        bias=None if bias is None else bias.to(small.query.dtype),
    )  # fmt: skip


def _cells(matrix: Tensor, batch: int, heads: slice, rows: Tensor) -> Tensor:
    """(1, head or 1, row or 1, key or 1) of a mask or bias."""
    found = matrix[batch : batch + 1]
    found = found if found.shape[1] == 1 else found[:, heads]
    return found if found.shape[2] == 1 else found[:, :, rows]
