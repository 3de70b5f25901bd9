"""Is a backward right? Gradients of query, key and value beside those of the float64 formula."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.check.distances import distance
from minibert.kernels.check.factors import factor_of
from minibert.kernels.check.gradient_check import eager_gradients, gradient_tolerances
from minibert.kernels.check.problem import Problem, by_eager, unfolded
from minibert.kernels.check.workload import Workload

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
    return _named(eager_gradients(*_tensors(problem), torch.float64, **_options(problem)))


def tolerances(problem: Problem) -> dict[str, float]:
    """The largest error of each: twice that of torch eager, and at least that of rounding."""
    found = gradient_tolerances(*_tensors(problem), **_options(problem))
    return {f"{name}_gradient": one for name, one in found.items() if name in _OF}


def gradient_cause(
    output: str, problem: Problem, found: Tensor, expected: Tensor, tolerance: float
) -> str:
    """What is probably wrong with a gradient: the slip that gives these numbers, or where."""
    if bool(found.isnan().any()):
        return f"NaN in {int(found.isnan().sum())} of {found.numel()} values of {output}"
    for sentence, make in _slips(output, problem, expected):
        other = make()
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


def _slips(
    output: str, problem: Problem, expected: Tensor
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    def other(**changed: object) -> Callable[[], Tensor]:
        return lambda: right_gradients(replace(problem, **changed))[output]  # type: ignore[arg-type]

    scale = problem.scale
    for sentence, factor in (
        ("is 0: nothing flows to it", 0.0),
        ("is not multiplied by the scale", 1 / scale),
        ("is multiplied by the scale twice", scale),
        ("is multiplied by log2(e), or lacks ln 2", 1 / math.log(2)),
        ("is multiplied by ln 2, or lacks log2(e)", math.log(2)),
        ("has the wrong sign", -1.0),
    ):
        yield f"{output} {sentence}", lambda factor=factor: expected * factor  # type: ignore[misc]
    for one in GRADIENTS:
        if one != output:
            yield (
                f"{output} holds the numbers of {one}: two gradients are swapped",
                lambda one=one: right_gradients(problem)[one],  # type: ignore[misc]
            )
    ignored = (
        ("causal", "causal order", {"causal": False, "prefix": None}),
        ("lengths", "lengths", {"lengths": None}),
        ("mask", "the mask", {"mask": None}),
        ("window", "the window", {"window": None}),
        ("soft_cap", "the soft cap", {"soft_cap": None}),
        ("alibi_slopes", "ALiBi", {"alibi_slopes": None}),
        ("sinks", "the sinks", {"sinks": None}),
    )
    for name, said, changed in ignored:
        given = getattr(problem, name)
        if given is not None and given is not False:
            yield f"{said} is ignored in {output}", other(**changed)
    if problem.query.shape[1] != problem.key.shape[1] and output != "query_gradient":
        yield from _of_one_head(output, problem)
    if output != "value_gradient":
        yield (
            f"{output} lacks the term −rowsum(dz · z) of the softmax",
            lambda: _without_delta(problem)[output],
        )


def _of_one_head(output: str, problem: Problem) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """A key head's gradient is the sum over the query heads of its group."""
    group = problem.query.shape[1] // problem.key.shape[1]
    gradient = problem.z_gradient
    assert gradient is not None
    head = torch.arange(problem.query.shape[1], device=gradient.device) % group
    for which, of_group in (("first", 0), ("last", group - 1)):
        kept = (head == of_group)[:, None, None]
        one = replace(problem, z_gradient=gradient * kept)
        yield (
            f"{output} is that of the {which} query head of each group: add up all of the group",
            lambda one=one: right_gradients(one)[output],  # type: ignore[misc]
        )


def _without_delta(problem: Problem) -> dict[str, Tensor]:
    """The gradients when dS = P·dP, without the softmax's own term."""
    plain, gradient = unfolded(problem), problem.z_gradient
    assert gradient is not None
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


def _tensors(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if problem.z_gradient is None:
        raise AttentionError("this problem has no gradient of z; draw it with backward=True.")
    return problem.z_gradient, problem.query, problem.key, problem.value


def _options(problem: Problem) -> dict[str, Any]:
    return {name: one for name, one in problem.options().items() if name != "want"}


def _named(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}_gradient": found[name] for name in _OF}
