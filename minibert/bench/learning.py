"""What a function's convention leaves unsaid is found out by calling it, and said in the report.

Some conventions do not say in which order the axes of the vectors are, what a mask looks like, or
what is given beside z. The judge tries one way after the other on inputs of its own and takes the
first that is right or, where none is, the one that comes nearest. That says only how the function
is called from then on: every number is judged after it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from operator import itemgetter
from typing import Protocol

import torch
from torch import Tensor

from minibert.bench.signatures import Signature
from minibert.bench.ways import OTHER, Other, Way, axes_of, other_output
from minibert.errors import MinibertError
from minibert.kernels.check.calls import CheckEndedError
from minibert.kernels.check.problem import Problem, by_eager

#: A relative error that no wrong order of axes stays below, and few mistakes.
_NEAR = 0.1
#: Layouts of the vectors and of z, in the order in which they are tried.
_LAYOUTS = (
    ("bhnd", ""),
    ("bnhd", ""),
    ("bhnd", "bnhd"),
    ("bhnd", "bn(hd)"),
    ("bnhd", "bn(hd)"),
    ("bnhd", "bhnd"),
    ("nbhd", ""),
    ("(bh)nd", ""),
    ("nd", ""),
)
#: Shapes that not every function takes: a kind that has them, and what is said where it raises.
_SHAPES = {
    "groups": ("groups", "fewer key heads than query heads"),
    "value_size": ("value size", "values of another size than keys"),
}
#: Draws a problem of this kind of `cases.KINDS`.
Draw = Callable[[str], Problem]


class Called(Protocol):
    """A function that can be called in several ways.

    layout       the layout that the user names, or ""
    masked       it takes a mask
    causal_only  it is always causal, without being told
    said         what was found out about it; uncovered: what is not judged of it
    """

    signature: Signature
    way: Way
    options: tuple[str, ...]
    layout: str
    masked: bool
    causal_only: bool
    said: list[str]
    uncovered: list[str]

    def called(self, way: Way) -> None:
        """Call it in this way from now on."""

    def call(self, problem: Problem, *, again: bool = False) -> dict[str, Tensor]:
        """The outputs."""


def learn(user: Called, draw: Draw) -> None:
    """Find out how the function is called, where its convention does not say it.

    Where no way works, it is called as its convention has it, and says itself why that fails.
    """
    if user.layout:
        user.called(user.way.told(user.layout))
    if user.signature.open:
        _learn_layout(user, draw)
        if user.masked:
            _learn_mask(user, draw)
        user.said += user.way.said()
    if user.way.others is None:
        _learn_others(user, draw)
    asked = [one for one in _SHAPES if one in user.options]
    raised = [one for one in asked if _given(user, user.way, draw(_SHAPES[one][0])) is None]
    user.options = tuple(one for one in user.options if one not in raised)
    user.uncovered += [f"{_SHAPES[one][1]} (it raises an error there)" for one in raised]


def _learn_layout(user: Called, draw: Draw) -> None:
    start, problem = user.way, draw("plain")
    layouts = [(start.layout, start.z)] if user.layout else _LAYOUTS
    ways = [replace(start, layout=layout, z=z) for layout, z in layouts]
    causal = replace(problem, causal=True)
    unsaid = user.causal_only or "causal" not in user.options
    asked = [causal] if user.causal_only else [problem, causal] if unsaid else [problem]
    best, works = (math.inf, start, user.causal_only, math.inf), False
    whole = [one for one in ways if len(axes_of(one.layout)) == len(start.layout)]
    apart = [one for one in ways if one not in whole]
    # Parts of vectors, and arrays, are for who takes no whole tensors.
    for arrays, tried in ((False, whole), (False, apart), (True, whole), (True, apart)):
        turned = (replace(one, arrays=arrays) for one in tried)
        for way in (mask for one in turned for mask in _with_masks(one, user)):
            z = (_given(user, way, problem) or {}).get("z")
            if z is None or z.shape != problem.z_shape:
                continue
            works = True
            for one in asked:
                right = by_eager(one, torch.float64)["z"]
                error = _relative(z, right)
                best = min(best, (_unlike(z, right), way, one.causal, error), key=itemgetter(0))
            if best[3] < _NEAR:
                break
        if works:
            break
    _, way, always, error = best
    if always and error < _NEAR and not user.causal_only:
        user.causal_only = True
        user.said.append("always causal")
    user.called(way)


def _with_masks(way: Way, user: Called) -> Iterator[Way]:
    """The way with the usual mask of its layout; where a mask has to be given, with others too."""
    forms = _masks(way.layout) if user.masked else [way.mask]
    return (replace(way, mask=one) for one in (forms if way == user.way else forms[:1]))


def _masks(layout: str) -> list[str]:
    """The forms of a mask beside vectors of this layout, in the order in which they are tried."""
    if "(" in layout:
        return ["allowed (bh)qk", "added (bh)qk", "allowed qk", "added qk"]
    if not {"b", "h"} <= {*layout}:
        return ["allowed qk", "added qk"]
    axes = ("bhqk", "bk", "qk")
    return [f"{form} {one}" for one in axes for form in ("allowed", "added")]


def _learn_mask(user: Called, draw: Draw) -> None:
    start = user.way
    working = []
    for mask in _masks(user.way.layout):
        problem = draw({"bk": "lengths", "qk": "causal"}.get(mask.split()[1], "mask"))
        if user.causal_only:
            problem = replace(problem, causal=True)
        way = replace(user.way, mask=mask)
        z = (_given(user, way, problem) or {}).get("z")
        if z is not None and z.shape == problem.z_shape:
            working.append(way)
            asked = [problem]
            if problem.mask is not None:
                # Who reads Booleans the wrong way round may still take a mask that is added.
                asked.append(replace(problem, mask=~problem.mask))
            if any(_relative(z, by_eager(one, torch.float64)["z"]) < _NEAR for one in asked):
                return
    # Where none is right, the usual one, that a wrong one can be named.
    user.called(working[0] if working else start)


def _learn_others(user: Called, draw: Draw) -> None:
    """What the outputs beside z are."""
    problem = draw("causal" if user.causal_only else "plain")
    given = _given(user, user.way, problem) or {}
    beside = {name: one for name, one in given.items() if name.startswith(OTHER)}
    want: dict[str, object] = dict.fromkeys(
        ("row_max", "max_prob", "entropy", "scores", "probs"), ()
    )
    right = by_eager(replace(problem, want=want), torch.float64)
    others: list[Other] = []
    for name, numbers in beside.items():
        while len(others) < int(name.removeprefix(OTHER)) - 2:
            others.append(Other())
        one = _recognised(numbers, problem, right, user.way)
        others.append(one)
        shape = tuple(numbers.shape[1:])
        if one.name:
            base = " in base 2" if one.factor != 1 else ""
            user.said.append(f"{name} is {one.name}{base}")
        else:
            user.uncovered.append(f"{name}, of shape {shape}: nothing that can be judged")
    user.called(replace(user.way, others=tuple(others)))


def _recognised(numbers: Tensor, problem: Problem, right: dict[str, Tensor], way: Way) -> Other:
    """What an output is by its numbers.

    Of the size of lse it is meant to be lse where it is nothing else that is known.
    """
    if not numbers.is_floating_point():
        return Other()
    tried = [
        Other(name, axes, factor)
        for name, factor in (("lse", 1.0), ("lse", math.log(2)), *((one, 1.0) for one in right))
        if name != "z"
        for axes in _axes(way, matrix=right[name].shape == right["probs"].shape)
    ]
    lse, near = Other(), Other()
    for one in tried:
        try:
            found = other_output(numbers, one, problem)
        except MinibertError:
            continue
        error = _relative(found, right[one.name])
        if error < _NEAR**2:
            return one
        if one.name == "lse" and _relative(found, (right["lse"] - right["row_max"]).exp()) < 1e-3:
            # The sum of the row, beside its maximum: nothing that is judged.
            return Other()
        lse = one if one.name == "lse" and not lse.name else lse
        near = one if "k" in one.axes and error < 0.5 and not near.name else near
    return lse if lse.name else near


def _axes(way: Way, *, matrix: bool) -> Iterator[str]:
    layout = way.z or way.layout
    if matrix:
        axes = layout if "(" in layout else "".join(one for one in "bhn" if one in layout)
        yield axes.replace("(hd)", "h").replace("d", "") + "k"
        yield "bhnk"
        return
    if layout.startswith("(bh)"):
        rows = ["(bh)n"]
    else:
        rows = ["".join(one) for one in permutations(one for one in "bhn" if one in layout)]
        rows.sort(key=lambda one: (one != "bhn", one))
    yield from (*rows, *(f"{one}1" for one in rows))


def _given(user: Called, way: Way, problem: Problem) -> dict[str, Tensor] | None:
    """What it gives in this way; None where it raises an error."""
    try:
        user.called(way)
        return user.call(problem)
    except CheckEndedError:
        raise
    except MinibertError:
        return None


def _unlike(found: Tensor, right: Tensor) -> float:
    """How much of z is not in the direction of what is right, whatever its size."""
    found = found.to(right.dtype).nan_to_num(0.0, 0.0, 0.0).flatten()
    alike = torch.cosine_similarity(found, right.flatten(), dim=0)
    return float(1 - alike.abs())


def _relative(found: Tensor, right: Tensor) -> float:
    """The root mean square error beside that of 0; of infinities, which are left out, too."""
    kept = right.isfinite()
    error = (found.to(right.dtype) - right)[kept].nan_to_num(1e9)
    return float(error.norm() / right[kept].norm().clamp_min(1e-9))
