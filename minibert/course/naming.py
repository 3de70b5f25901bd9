"""A function that a student wrote: whether it is right, and which slip it makes.

It is called with drawn torch tensors. Where it differs from the right one, the slips of its
exercise are tried on the same tensors, then what is done to any numbers (axes, signs), then the
slips that `minibert check` knows of kernels; the one that gives the same numbers is named.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from minibert.course.answers import Verdict
from minibert.errors import MinibertError
from minibert.kernels.check.causes import likely_cause
from minibert.kernels.check.problem import Problem

Function = Callable[..., Any]
Case = tuple[Any, ...]
"""What a function is called with."""
# A masked score may be any number whose exp is 0 beside the others.
_HIDDEN, _TOLERANCE = -1e4, 1e-4
_FLOATS = {torch.float32, torch.float64}


@dataclass(frozen=True)
class Written:
    """A function that gives what `right` gives, for every one of the drawn `cases`.

    axes    of what it gives
    slips   the reply to each slip, with the function that makes it
    kernel  the same as a problem of a kernel, and the output of it that the function gives
    use     how a function is called with a case
    then    says the verdict on a function that passed
    """

    asks: str
    axes: str
    right: Function
    cases: Callable[[], Iterable[Case]]
    means: str
    slips: Mapping[str, Function]
    kernel: tuple[str, Callable[..., Problem]] | None = None
    use: Callable[[Function], Function] = field(default=lambda function: function)
    then: Callable[[Function], Verdict] | None = None

    def judge(self, answer: object) -> Verdict:
        """Right, or the slip, with the shapes or the number that shows it."""
        if not callable(answer):
            raise MinibertError(
                f"The answer is {answer!r:.80}: expected a function that takes and returns torch "
                f"tensors, {self.right.__name__}({', '.join(_parameters(self.right))})."
            )
        for case in self.cases():
            given = _copied(case)
            found, wanted = self._outcome(answer, given), self._outcome(self.right, case)
            if found is None:
                if not _is_dots(answer):
                    return Verdict(
                        False, "Not yet. It returns None. Does the function end with return?"
                    )
                wanted_here = "No guess yet: write the function in place of the dots."
                return Verdict(False, f"{self.asks}\n{wanted_here}")
            if not _alike(given, case):
                return Verdict(False, "Not yet. It changes its input. Make a new tensor.")
            if not _alike(found, wanted):
                said = self._cause(answer, case, found, wanted)
                shown = _shown(found, wanted, self.axes, self.right, case)
                return Verdict(False, f"Not yet. {said}{shown}")
        return self.then(answer) if self.then else Verdict(True, f"Right. {self.means}")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Each slip as a function."""
        return [(slip, said) for said, slip in self.slips.items()]

    def _outcome(self, function: Function, case: Case) -> Any:
        """What the function gives; a text where it fails or gives another kind of thing."""
        try:
            found = self.use(function)(*case)
        except WrongKindError as error:
            return str(error)
        except Exception as error:
            return raised(error)
        pair = " and " in self.axes
        parts = found if pair and isinstance(found, tuple) else (found,)
        if found is None or (len(parts) == 1 + pair and all(map(is_dense, parts))):
            return found
        expected = "a pair of tensors" if pair else "one torch tensor, dense and on the CPU"
        return f"it gives {called(found)}; expected {expected}"

    def _cause(self, answer: Function, case: Case, found: Any, wanted: Any) -> str:
        """The slip that gives the same in this case, and in most of the others; "" for none."""

        def same(said: str, case: Case) -> bool:
            slip, given = self.slips[said], _copied(case)
            return _alike(self._outcome(answer, given), self._outcome(slip, case))

        fits = [said for said in self.slips if same(said, case)]
        if fits:
            every = list(self.cases())
            return f"{max(fits, key=lambda said: sum(same(said, one) for one in every))} "
        parts = zip(_parts(found), _parts(wanted), self.axes.split(" and "), strict=False)
        for given, right, axes in parts:
            if not _alike(given, right) and (said := _pattern(given, right, axes, case)):
                return f"{said} "
        if self.kernel is None or isinstance(found, str) or not _comparable(found, wanted):
            return ""
        output, problem = self.kernel
        found, wanted = found[None].double(), wanted[None].double()
        said = likely_cause(
            output, problem(*case), found, wanted, tolerance=_TOLERANCE, previous=None
        )
        # What follows is advice on `minibert check`; and a place is shown by this module.
        said = "" if " first at [" in said else said.partition(": check a function")[0]
        return f"{said[:1].upper()}{said[1:]}. " if said else ""


def _parts(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else (found,)


def _pattern(found: object, wanted: object, axes: str, case: Case) -> str:
    """What was done to the right numbers to give these, whatever the exercise; "" for nothing."""
    if not isinstance(found, Tensor) or not isinstance(wanted, Tensor):
        return ""
    names = axes.partition(")")[0].strip("(").split(", ")
    if found.is_floating_point() and wanted.is_floating_point():
        hidden = wanted <= _HIDDEN
        if (
            bool(hidden.any())
            and found.shape == wanted.shape
            and bool((found[hidden] > _HIDDEN).any())
        ):
            return f"A hidden score is {found[hidden].max():.4g}. Put −inf there: exp gives 0."
    said = next((said for value, said in _changes(wanted, names, case) if _alike(found, value)), "")
    return said or _factor(found, wanted)


def _factor(found: Tensor, wanted: Tensor) -> str:
    """How many times what is right it is, everywhere; "" where that differs."""
    if not (_comparable(found, wanted) and wanted.is_floating_point() and bool(wanted.any())):
        return ""
    largest = wanted.nan_to_num(0, 0, 0).abs().argmax()
    times = (found.flatten()[largest] / wanted.flatten()[largest]).item()
    same = math.isfinite(times) and times != 0 and _alike(found, times * wanted)
    return f"Everywhere {times:.5g} times what is right." if same else ""


def _changes(wanted: Tensor, names: list[str], case: Case) -> Iterator[tuple[Tensor, str]]:
    """The results of common slips for the right numbers, each with its reply."""
    number = wanted.is_floating_point()
    for order in permutations(range(wanted.ndim)):
        yield wanted.permute(order), f"The axes are ({', '.join(names[n] for n in order)})."
    for axis, name in enumerate(names):
        yield wanted.flip(axis), f"The axis {name} is in reverse order."
        yield wanted.select(axis, 0), f"That is only the first {name}."
        if number:
            yield wanted.sum(axis), f"The axis {name} is summed. Keep it."
            yield wanted.mean(axis), f"The axis {name} is averaged. Keep it."
    yield wanted[None], "There is an axis of length 1 too many, the first."
    for one in case:
        if isinstance(one, Tensor) and one.numel() == wanted.numel() and one.ndim > 1:
            for order in permutations(range(one.ndim)):
                mixed = one.permute(order).reshape(wanted.shape)
                yield mixed, f"The axes of the input are in the order {order} before the reshape."
    if number:
        yield -wanted, "The sign is wrong."
        yield wanted.softmax(-1), "A softmax was applied. Leave it out here."
        for one in case:
            if isinstance(one, Tensor) and one.shape == wanted.shape and one is not wanted:
                yield wanted + one, "The input is added. The model does that itself."


class WrongKindError(MinibertError):
    """What a function gives, and what was expected."""


def _is_dots(function: object) -> bool:
    """Whether the body does nothing: it is as short as one of dots."""
    code = getattr(function, "__code__", None)
    return code is None or len(code.co_code) <= len((lambda: ...).__code__.co_code)


def raised(error: Exception) -> str:
    """What a function raises, in one line."""
    text = shorten(str(error).strip().partition("\n")[0], 240, placeholder=" …")
    return f"it raises {type(error).__name__}: {text}".rstrip(": .")


def is_dense(one: object) -> bool:
    """Whether it is a tensor with numbers that can be read here."""
    return isinstance(one, Tensor) and (one.layout, one.device.type, one.is_nested) == (
        torch.strided, "cpu", False,
    )  # fmt: skip


def called(one: object) -> str:
    """What kind of thing it is."""
    if isinstance(one, tuple):
        return f"({', '.join(map(called, one))})"
    if not isinstance(one, Tensor):
        return type(one).__name__
    if is_dense(one):
        return f"a tensor {tuple(one.shape)}"
    return "a nested tensor" if one.is_nested else f"a {one.layout} tensor on {one.device}"


def _comparable(one: Tensor, other: Tensor) -> bool:
    dtypes = {one.dtype, other.dtype}
    return one.shape == other.shape and (len(dtypes) == 1 or dtypes == _FLOATS)


def _parameters(function: Function) -> list[str]:
    """The names of what it is called with; what follows them is for slips alone."""
    return [
        name
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]


def _copied(case: Any) -> Any:
    if isinstance(case, tuple):
        return tuple(map(_copied, case))
    return case.clone() if isinstance(case, Tensor) else case


def _alike(one: object, other: object) -> bool:
    """Whether two outcomes are the same up to rounding; what is hidden may have any number."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return bool(type(one) is type(other) and one == other)
    return _comparable(one, other) and not bool(_wrong(one, other).any())


def _wrong(found: Tensor, wanted: Tensor) -> Tensor:
    one, other = (each.double() for each in (found, wanted))
    one, other = (each.masked_fill(each <= _HIDDEN, -math.inf) for each in (one, other))
    return ~torch.isclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)


def _shown(found: Any, wanted: Any, axes: str, right: Function, case: Case) -> str:
    """The shapes, or the first wrong number of the first part that is wrong."""
    if isinstance(found, str):
        given = [
            f"{name} {tuple(one.shape)}" if isinstance(one, Tensor) else f"{name} {one!r:.40}"
            for name, one in zip(_parameters(right), case, strict=False)
            if not isinstance(one, tuple | dict)
        ]
        return f"With {', '.join(given)} {found}."
    if isinstance(wanted, tuple):
        pairs = zip(found, wanted, axes.split(" and "), strict=True)
        found, wanted, axes = next(each for each in pairs if not _alike(*each[:2]))
    if found.shape != wanted.shape:
        return f"It gives {tuple(found.shape)}; expected {axes} = {tuple(wanted.shape)}."
    if not _comparable(found, wanted):
        return f"It gives {found.dtype}; expected {wanted.dtype}."
    wrong = _wrong(found, wanted)
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"At {list(place)} it gives {found[place].item():.4g}; {wanted[place].item():.4g} is right "
        f"({int(wrong.sum())} of {wrong.numel()} numbers are wrong)."
    )
