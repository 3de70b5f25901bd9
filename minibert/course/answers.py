"""Kinds of answers, and the replies to a right one, to a known slip and to any other."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from textwrap import fill
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from minibert.errors import MinibertError, did_you_mean


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer and its explanation; true if the answer is right."""

    right: bool
    said: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return "\n".join(fill(line, 90, break_on_hyphens=False) for line in self.said.splitlines())

    __repr__ = __str__


A_WEIGHT = (0.0, 1.0, "A weight lies between 0 and 1.")
A_PART = (0.0, 1.0, "A part lies between 0 and 1.")
# A slip is recognised in a number that is written down with two digits or more.
_WRITTEN, _SMALLEST = 0.05, 0.0005


def floats(answer: object) -> list[float]:
    """The answer as numbers; MinibertError for anything else."""
    found: Any = getattr(answer, "tolist", lambda: answer)()
    several: Sequence[SupportsFloat] = found if isinstance(found, list | tuple) else [found]
    try:
        if any(isinstance(one, bool) for one in several):
            raise ValueError
        numbers = [float(one) for one in several]
        if not all(map(math.isfinite, numbers)):
            raise ValueError
    except (TypeError, ValueError):
        raise MinibertError(
            f"The answer is {answer!r:.80}: expected a number such as 0.5, or for several "
            "numbers a list such as [0.5, 0.25]."
        ) from None
    return numbers


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference; infinite where there are more numbers on one side."""
    if len(one) != len(other):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


def _general_slips(truth: list[float]) -> Iterator[tuple[list[float], str]]:
    """The results of common slips for any right answer, each with its reply."""
    yield [-one for one in truth], "The sign is not right."
    if all(0 < one < 1 for one in truth):
        yield [100 * one for one in truth], "That is per cent. Give a part of 1: 50 % is 0.5."
    if len(truth) > 1:
        others = [list(one) for one in permutations(truth) if list(one) != truth]
        yield from ((one, "Those are the right numbers in another order.") for one in others)
        return
    (one,) = truth
    if 0 < one < 1:
        yield [1 - one], "That is the rest, what is left of 1."
    if one.is_integer():
        for off, many in ((1, "one"), (2, "two")):
            said = f"You are {many} off. Check where you begin to count."
            yield from (([one + by], said) for by in (off, -off))
    if one:
        yield [1 / one], "That is the other way round: you divided the second number by the first."


def _factors(truth: list[float]) -> Iterator[tuple[list[float], str]]:
    """What a wrong factor or one wrong sign make of the right numbers."""
    factors: list[tuple[float, str]] = []
    if len(truth) > 1:
        for what, by in (("sum", sum(truth)), ("number", len(truth)), ("largest", max(truth))):
            said = f"You divided them by their {what}. Leave them as they are."
            factors.append((1 / (by or 1), said))
    for n in (2, 3, 4):
        factors.append((n, f"That is {n} times as much. What is counted {n} times?"))
        factors.append((1 / n, f"{n} times as much is right. What is left out, or divided?"))
    for power in (1, 2, 3, -1, -2, -3):
        factors.append((10.0**power, "The decimal point is not in its place."))
    for factor, said in factors:
        if not math.isclose(factor, 1, rel_tol=2 * _WRITTEN):
            yield [factor * one for one in truth], said
    for n, one in enumerate(truth):
        turned = [*truth[:n], -one, *truth[n + 1 :]]
        yield turned, f"The sign of number {n + 1} is not right."


def _nearest(given: list[float], slips: Iterable[tuple[list[float], str]]) -> str:
    """The reply to the slip that gives these numbers; "" where none does."""
    near = []
    for value, said in slips:
        if (off := _distance(given, value)) <= _WRITTEN * max(map(abs, value)) + _SMALLEST:
            near.append((off, said))
    return min(near, key=lambda slip: slip[0], default=(0.0, ""))[1]


@dataclass(frozen=True)
class Numbers:
    """One number or several, right within the tolerance and nearer to the truth than to a slip.

    known  computes the right answer: a number, a list or a tensor
    means  what the number says, told to a reader who has it right
    hint   what to think about, told to a reader who is wrong
    slips  the reply to each slip, with the number that it gives
    between  what every answer lies between, and why; told to a reader outside of it
    """

    asks: str
    known: Callable[[], object]
    tolerance: float
    means: str
    hint: str
    slips: Callable[[], Mapping[str, object]] = dict
    between: tuple[float, float, str] | None = None

    def judge(self, answer: object) -> Verdict:
        """Right, the slip that gives this number, or what speaks for less or more."""
        given, truth = floats(answer), floats(self.known())
        slips = [(floats(value), said) for said, value in self.slips().items()]
        off = _distance(given, truth)
        if off <= self.tolerance and all(off <= _distance(given, value) for value, _ in slips):
            shown = ", ".join(f"{one:.4g}" for one in truth)
            return Verdict(True, f"Right: {shown}. {self.means}")
        return Verdict(False, f"Not yet. {self._said(given, truth, slips)}")

    def _said(
        self, given: list[float], truth: list[float], slips: list[tuple[list[float], str]]
    ) -> str:
        """The reply to a wrong answer: the nearest slip, or what is wrong with the number."""
        if said := _nearest(given, (*slips, *_general_slips(truth))):
            return said
        if len(given) != len(truth):
            wanted = "1 number" if len(truth) == 1 else f"{len(truth)} numbers"
            return f"Expected {wanted}, and you gave {len(given)}."
        if self.between is not None:
            low, high, why = self.between
            if not all(low <= one <= high for one in given):
                return why
        if said := _nearest(given, _factors(truth)):
            return said
        wrong = [n for n, one in enumerate(given) if abs(one - truth[n]) > self.tolerance] or [0]
        side = "less" if given[wrong[0]] > truth[wrong[0]] else "more"
        if len(truth) == 1:
            return f"It is {side} than {given[0]:.4g}. {self.hint}"
        numbers = ", ".join(f"number {n + 1}" for n in wrong)
        return f"Not right: {numbers}. Number {wrong[0] + 1} is {side}. {self.hint}"

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Each slip's number."""
        return [(value, said) for said, value in self.slips().items()]


@dataclass(frozen=True)
class Choice:
    """One of several answers, each with the reply to a reader who chooses it."""

    asks: str
    options: Sequence[str]
    right: Callable[[], str]
    said: Callable[[str], str]

    def judge(self, answer: object) -> Verdict:
        """Right or not, and why."""
        chosen = answer.strip().lower() if isinstance(answer, str) else ""
        if chosen not in self.options:
            raise MinibertError(
                f"The answer is {answer!r:.80}{did_you_mean(answer, self.options)}: expected one "
                f"of {', '.join(map(repr, self.options))}."
            )
        right = chosen == self.right()
        return Verdict(right, f"{'Right' if right else 'Not yet'}. {self.said(chosen)}")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Every other option."""
        return [(one, self.said(one)) for one in self.options if one != self.right()]


# The layers of the embedded models, and the heads of each.
_SIZE = (4, 4)


@dataclass(frozen=True)
class Heads:
    """One head or a set of heads, written "layer-head"; a wrong one is told what it does.

    about  what one head does, told to a reader who names it wrongly
    """

    asks: str
    heads: Callable[[], set[str]]
    about: Callable[[str], str]
    means: str

    def judge(self, answer: object) -> Verdict:
        """Right, or which heads are too many, and how many are missing."""
        given, truth = _named(answer), self.heads()
        extra, missing = sorted(given - truth), truth - given
        if not extra and not missing:
            return Verdict(True, f"Right: {', '.join(sorted(truth))}. {self.means}")
        said = [self.about(head) for head in extra[:3]]
        pairs = {tuple(map(int, head.split("-"))) for head in given}
        if truth == {f"{layer - 1}-{head - 1}" for layer, head in pairs}:
            said.append("Layers and heads are counted from 0, not from 1.")
        if truth == {f"{head}-{layer}" for layer, head in pairs}:
            said.append("The layer comes first, then the head.")
        if missing and given & truth:
            said.append(f"{len(missing)} more {'is' if len(missing) == 1 else 'are'} missing.")
        if not given:
            said.append("You named nothing.")
        return Verdict(False, f"Not yet. {' '.join(said)}")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Every other head alone."""
        every = (f"{layer}-{head}" for layer in range(_SIZE[0]) for head in range(_SIZE[1]))
        return [(head, self.about(head)) for head in every if head not in self.heads()]


@runtime_checkable
class Exercise(Protocol):
    """A question of the course, and the replies to answers."""

    @property
    def asks(self) -> str:
        """The question."""

    def judge(self, answer: object) -> Verdict:
        """Right or not, and why; MinibertError for what is not an answer of this kind."""

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Each known mistake as an answer, with its reply."""


def _named(answer: object) -> set[str]:
    """The heads as "layer-head"; MinibertError for what names none."""
    one = isinstance(answer, str) or (
        isinstance(answer, tuple) and len(answer) == 2 and all(type(n) is int for n in answer)
    )
    several = [answer] if one else answer
    found = set()
    for each in several if isinstance(several, Iterable) else [several]:
        parts = each.split("-") if isinstance(each, str) else each
        try:
            layer, head = (int(part) for part in parts)  # type: ignore[union-attr]
        except (TypeError, ValueError):
            layer = head = -1
        if not (0 <= layer < _SIZE[0] and 0 <= head < _SIZE[1]):
            raise MinibertError(
                f'{each!r:.80} is not a head: expected "layer-head", as "0-1", or a list of '
                f"them; layers go from 0 to {_SIZE[0] - 1} and heads from 0 to {_SIZE[1] - 1}."
            )
        found.add(f"{layer}-{head}")
    return found
