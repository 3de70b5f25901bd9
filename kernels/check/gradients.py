"""Checks a backward: its gradients are compared with autograd through eager in float64.

`parity.check` asks about gradients of query, key and value. If a call is too large to be judged as
a whole, `sampled` and `sampled_gradients` judge some rows and heads. They are drawn after the
outputs exist, so a kernel cannot foresee them. The truth is eager in float64, which parity proves
equal to the reference.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.check.problem import (
    TIMES_EAGER,
    Problem,
    all_of,
    allowed_at,
    bias_at,
    by_eager,
    distance,
    error_of,
    largest_score,
    mean_distance,
    mean_tolerance,
    tolerance_of,
    undecided,
    unfolded,
)
from minibert.kernels.check.workload import Workload


def eager_gradients(
    problem: Problem, dtype: torch.dtype, *, lse_gradient: Tensor | None = None
) -> dict[str, Tensor]:
    """The gradients "query", "key", "value" and, where given, "bias", "sinks", by autograd."""
    names = ("query", "key", "value", "bias", "sinks")
    given = {name: one for name in names if (one := getattr(problem, name)) is not None}
    with torch.enable_grad():
        leaves = {name: one.detach().to(dtype).requires_grad_() for name, one in given.items()}
        attended = by_eager(replace(problem, want={"lse": ()}, **leaves), dtype)
        outputs, gradients = [attended["z"]], [gradient_of_z(problem).to(dtype)]
        if lse_gradient is not None:
            outputs.append(attended["lse"])
            gradients.append(lse_gradient.to(attended["lse"].dtype))
        found = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    return dict(zip(leaves, found, strict=True))


def gradient_tolerances(
    problem: Problem, *, lse_gradient: Tensor | None = None
) -> dict[str, float]:
    """The largest error a gradient may have: twice eager's own, and at least that of rounding.

    u is the unit roundoff of the dtype, w that of float32, A the largest sum of absolute terms that
    a score is made of, G that of dP and δ, L the largest gradient of lse, R the largest sum of P
    over the queries of a key. A sum of D terms is off by about sqrt(D)·w of its absolute terms
    (Higham & Mary 2019), z and dS are rounded once to the dtype:

        P:  p = 2·(sqrt(D) + 4)·w·A + 4·w of itself, and what is undecided
        dS: e = (p + u)·(2·G + L) + (3·u + 2·sqrt(D)·w)·G for each P
        d query: scale·max|key|·e      d key: scale·max|query|·e·R      d value: max|dz|·(p + u)·R

    and each is rounded once more at the end. A bias adds e up over what it is repeated for, a sink
    over its rows.
    """
    right = eager_gradients(problem, torch.float64, lse_gradient=lse_gradient)
    rounded = eager_gradients(problem, problem.query.dtype, lse_gradient=lse_gradient)
    unit, fine = (torch.finfo(one).eps / 2 for one in (problem.query.dtype, torch.float32))
    leaves = {name: getattr(problem, name).detach() for name in _OF}
    dz, plain = gradient_of_z(problem), unfolded(replace(problem, **leaves))
    largest = {name: float(one.abs().max()) for name, one in (leaves | {"dz": dz}).items()}
    (B, H, Q, D), scale = problem.query.shape, abs(problem.scale)
    of_probs = float((dz.detach().double().abs() @ plain.value.abs().mT).max())
    of_lse = 0.0 if lse_gradient is None else float(lse_gradient.nan_to_num(0, 0, 0).abs().max())
    probs = by_eager(plain, torch.float64)["probs"]
    # A key is seen by the queries of all heads of its group.
    received = max(1.0, float(probs.sum(dim=2).max()) * (H // problem.key.shape[1]))
    p = 2 * (math.sqrt(D) + 4) * fine * largest_score(problem) + 4 * fine
    p += float(undecided(replace(problem, **leaves)).max())
    e = (p + unit) * (2 * of_probs + of_lse) + (3 * unit + 2 * math.sqrt(D) * fine) * of_probs
    least = {
        "query": scale * largest["key"] * e,
        "key": scale * largest["query"] * e * received,
        "value": largest["dz"] * (p + unit) * received,
        "sinks": e * (B * Q),
    }
    if problem.bias is not None:
        least["bias"] = e * (B * H * Q) / math.prod(problem.bias.shape[:3])
    return {
        name: max(
            TIMES_EAGER * distance(rounded[name], one), least[name] + unit * float(one.abs().max())
        )
        for name, one in right.items()
    }


_OF = ("query", "key", "value")
#: The names of the gradients among the outputs.
GRADIENTS = tuple(f"{name}_gradient" for name in _OF)


def gradients_of(z: Tensor, problem: Problem) -> dict[str, Tensor]:
    """The gradients by autograd at the inputs of z. Raises AttentionError if z has no history."""
    if not z.requires_grad:
        raise AttentionError(
            "gave a z through which no gradient flows; expected one made from query, key and value "
            "by torch, or by a torch.autograd.Function that has a backward"
        )
    leaves = (problem.query, problem.key, problem.value)
    found = torch.autograd.grad(z, leaves, problem.z_gradient, allow_unused=True)
    pairs = zip(GRADIENTS, leaves, found, strict=True)
    return {name: torch.zeros_like(leaf) if one is None else one for name, leaf, one in pairs}


def refused(work: Workload) -> str | None:
    """The reason why it has no gradients; None where it has."""
    paged = work.layout == "paged"
    return "keys in pages are those of a cache, which is not trained" if paged else None


def right_gradients(problem: Problem) -> dict[str, Tensor]:
    """The gradients of the formula in float64, as outputs."""
    found = eager_gradients(problem, torch.float64)
    return {f"{name}_gradient": found[name] for name in _OF}


def tolerances(problem: Problem) -> dict[str, float]:
    """The largest error of each: twice that of torch eager, and at least that of rounding."""
    found = gradient_tolerances(problem)
    return {f"{name}_gradient": found[name] for name in _OF}


def gradient_of_z(problem: Problem) -> Tensor:
    """The gradient of z that starts the backward. Raises AttentionError where there is none."""
    if problem.z_gradient is None:
        raise AttentionError("this problem has no gradient of z; draw it with backward=True.")
    return problem.z_gradient


_ROWS, _HEADS = 48, 2
#: Outputs with a number, or a vector, for each row, that need nothing but the row.
_OF_ROWS = ("z", "lse", "row_max", "max_prob", "entropy")
#: The error of an output in the rows looked at, and what is allowed there.
Looked = tuple[float, float]
_NOTHING: Looked = (math.inf, 0.0)


def sampled(problem: Problem, found: Mapping[str, Tensor]) -> dict[str, Looked]:
    """The largest error of outputs in some rows of some heads, and the mean error of z."""
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
            part(problem, sentence, slice(head, head + 1), rows), want=dict.fromkeys(names[1:], ())
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
    """The error of the gradients in one key head of one sentence and its query heads."""
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
    """A drawn sentence: its number, its place in the batch, its first query and its queries."""
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
    told: dict[str, object] = dict.fromkeys(("packed", "packed_keys", "pages")) | {"want": {}}
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
    small, key = problem.changed(**told), torch.arange(K, device=device)
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
