"""Is a backward right? Its gradients beside autograd through the eager formula in float64.

`parity.check` asks about gradients of query, key and value, and names the likely slip.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.check.causes import factor_of
from minibert.kernels.check.problem import Problem, by_eager, distance, largest_score, unfolded
from minibert.kernels.check.workload import Workload

Given = TypeVar("Given")
#: How much worse than torch eager's own gradients others may be.
TIMES_EAGER = 2.0


def eager_gradients(
    problem: Problem, dtype: torch.dtype, *, lse_gradient: Tensor | None = None
) -> dict[str, Tensor]:
    """The gradients "query", "key", "value" and, where given, "bias", "sinks", by autograd."""
    names = ("query", "key", "value", "bias", "sinks")
    given = {name: one for name in names if (one := getattr(problem, name)) is not None}
    with torch.enable_grad():
        leaves = {name: one.detach().to(dtype).requires_grad_() for name, one in given.items()}
        attended = by_eager(replace(problem, want={"lse": ()}, **leaves), dtype)
        outputs, gradients = [attended["z"]], [_of_z(problem).to(dtype)]
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

        P:  p = 2·(sqrt(D) + 4)·w·A + 4·w of itself
        dS: e = (p + u)·(2·G + L) + (3·u + 2·sqrt(D)·w)·G for each P
        d query: scale·max|key|·e      d key: scale·max|query|·e·R      d value: max|dz|·(p + u)·R

    and each is rounded once more at the end. A bias adds e up over what it is repeated for, a sink
    over its rows.
    """
    right = eager_gradients(problem, torch.float64, lse_gradient=lse_gradient)
    rounded = eager_gradients(problem, problem.query.dtype, lse_gradient=lse_gradient)
    unit, fine = (torch.finfo(one).eps / 2 for one in (problem.query.dtype, torch.float32))
    leaves = {name: getattr(problem, name).detach() for name in _OF}
    dz, plain = _of_z(problem), unfolded(replace(problem, **leaves))
    largest = {name: float(one.abs().max()) for name, one in (leaves | {"dz": dz}).items()}
    (B, H, Q, D), scale = problem.query.shape, abs(problem.scale)
    of_probs = float((dz.detach().double().abs() @ plain.value.abs().mT).max())
    of_lse = 0.0 if lse_gradient is None else float(lse_gradient.nan_to_num(0, 0, 0).abs().max())
    probs = by_eager(plain, torch.float64)["probs"]
    # A key is seen by the queries of all heads of its group.
    received = max(1.0, float(probs.sum(dim=2).max()) * (H // problem.key.shape[1]))
    p = 2 * (math.sqrt(D) + 4) * fine * largest_score(problem) + 4 * fine
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
            TIMES_EAGER * distance(rounded[name], one),
            least[name] + unit * float(one.abs().max()),
        )
        for name, one in right.items()
    }


_OF = ("query", "key", "value")
#: The names of the gradients among the outputs.
GRADIENTS = tuple(f"{name}_gradient" for name in _OF)


def gradients_of(z: Tensor, problem: Problem) -> dict[str, Tensor]:
    """What autograd gives for the inputs of z. Raises AttentionError where z has no history."""
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
    """Why there are no gradients of it; None where there are."""
    return (
        "keys in pages are those of a cache, which is not trained"
        if work.layout == "paged"
        else None
    )


def right_gradients(problem: Problem) -> dict[str, Tensor]:
    """The gradients of the formula in float64."""
    return _named(eager_gradients(problem, torch.float64))


def tolerances(problem: Problem) -> dict[str, float]:
    """The largest error of each: twice that of torch eager, and at least that of rounding."""
    return _named(gradient_tolerances(problem))


def gradient_cause(
    output: str, problem: Problem, found: Tensor, expected: Tensor, tolerance: float
) -> str:
    """What is probably wrong with a gradient: the slip that gives these numbers, or where."""
    if bool(found.isnan().any()):
        return f"NaN in {int(found.isnan().sum())} of {found.numel()} values of {output}"
    for sentence, other in _slips(output, problem, expected):
        if other.shape == found.shape and distance(found, other) <= tolerance:
            return sentence
    factor = factor_of(found.to(expected.dtype).flatten(), expected.flatten())
    if factor is not None:
        return f"{output} is off by the factor {factor:.4g}, everywhere"
    wrong = (found.to(expected.dtype) - expected).abs() > tolerance
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{output} is wrong in {int(wrong.sum())} of {wrong.numel()} values, first at "
        f"{list(place)}: {float(found[place]):.6g} where {float(expected[place]):.6g} is right"
    )


#: A gradient that is off by a factor, made of the scale.
_FACTORS: dict[str, Callable[[float], float]] = {
    "is 0: nothing flows to it": lambda scale: 0.0,
    "is not multiplied by the scale": lambda scale: 1 / scale,
    "is multiplied by the scale twice": lambda scale: scale,
    "is multiplied by log2(e), or lacks ln 2": lambda scale: 1 / math.log(2),
    "is multiplied by ln 2, or lacks log2(e)": lambda scale: math.log(2),
    "has the wrong sign": lambda scale: -1.0,
}
_OPTIONS = {
    "causal": "causal order",
    "lengths": "lengths",
    "mask": "the mask",
    "sinks": "the sinks",
    "window": "the window",
    "soft_cap": "the soft cap",
    "alibi_slopes": "ALiBi",
}


def _slips(output: str, problem: Problem, expected: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What each slip gives, one made after the other."""
    for sentence, factor in _FACTORS.items():
        yield f"{output} {sentence}", expected * factor(problem.scale)
    for one, numbers in right_gradients(problem).items():
        if one != output:
            yield f"{output} holds the numbers of {one}: two gradients are swapped", numbers
    for name, said in _OPTIONS.items():
        given = getattr(problem, name)
        if given is not None and given is not False:
            without: dict[str, Any] = {name: None}
            without |= {"causal": False, "prefix": None} if name == "causal" else {}
            other = right_gradients(replace(problem, **without))[output]
            yield f"{said} is ignored in {output}", other
    # A key head's gradient is the sum over the query heads of its group.
    gradient, group = _of_z(problem), problem.query.shape[1] // problem.key.shape[1]
    if group > 1 and output != "query_gradient":
        head = torch.arange(problem.query.shape[1], device=gradient.device) % group
        for which, of_group in (("first", 0), ("last", group - 1)):
            kept = gradient * (head == of_group)[:, None, None]
            yield (
                f"{output} is that of the {which} query head of each group: add up all of the "
                "group",
                right_gradients(replace(problem, z_gradient=kept))[output],
            )
    if output != "value_gradient":
        yield (
            f"{output} lacks the term −rowsum(dz · z) of the softmax",
            _without_delta(problem)[output],
        )


def _without_delta(problem: Problem) -> dict[str, Tensor]:
    """The gradients when dS = P·dP, without the softmax's own term."""
    plain, gradient = unfolded(problem), _of_z(problem)
    with torch.enable_grad():
        query, key = (
            one.detach().double().requires_grad_() for one in (problem.query, problem.key)
        )
        scores = unfolded(replace(problem, query=query, key=key))
        s = scores.scale * scores.query @ scores.key.mT
        if plain.soft_cap is not None:
            s = plain.soft_cap * torch.tanh(s / plain.soft_cap)
        probs = by_eager(problem, torch.float64)["probs"]
        flowing = probs * (gradient.double() @ plain.value.mT)
        found = torch.autograd.grad(s, (query, key), flowing)
    return dict(zip(GRADIENTS, found, strict=False))


def _of_z(problem: Problem) -> Tensor:
    if problem.z_gradient is None:
        raise AttentionError("this problem has no gradient of z; draw it with backward=True.")
    return problem.z_gradient


def _named(found: dict[str, Given]) -> dict[str, Given]:
    return {f"{name}_gradient": found[name] for name in _OF}
