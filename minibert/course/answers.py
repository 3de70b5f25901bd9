"""Kinds of answers, and what is said to a right one, to a known mistake and to any other."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from minibert.errors import MinibertError


@dataclass(frozen=True)
class Verdict:
    """What is said to an answer; true where it is right."""

    right: bool
    said: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return "\n".join(fill(line, 90, break_on_hyphens=False) for line in self.said.splitlines())

    __repr__ = __str__


@runtime_checkable
class Exercise(Protocol):
    """One question."""

    @property
    def asks(self) -> str:
        """The question."""

    def judge(self, answer: object) -> Verdict:
        """What is said to the answer; MinibertError for what is no answer of this kind."""

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Answers that are wrong in a known way, each with what is said to it."""


Value = float | Sequence[float]
Known = Value | Callable[[], Value]
"""A number, or how it is computed."""
A_WEIGHT = (0.0, 1.0, "A weight lies between 0 and 1.")
A_PART = (0.0, 1.0, "A part lies between 0 and 1.")


def _value(known: Known) -> Value:
    return known() if callable(known) else known


def _floats(answer: object) -> list[float]:
    """The answer as numbers; MinibertError for what is none."""
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
            f"The answer is {answer!r:.80}: expected a number, as 0.5, or where several are asked "
            "for a list of numbers, as [0.5, 0.25]."
        ) from None
    return numbers


def _distance(one: Sequence[float], other: Value) -> float:
    """The largest difference; infinite where there are more numbers on one side."""
    others = _floats(other)
    if len(one) != len(others):
        return math.inf
    return max(abs(a - b) for a, b in zip(one, others, strict=True))


def _numbers(count: int) -> str:
    return "1 number" if count == 1 else f"{count} numbers"


def _shown(value: Value) -> str:
    return ", ".join(f"{one:.4g}" for one in _floats(value))


@dataclass(frozen=True)
class Numbers:
    """One number or several, right within the tolerance and nearer to the truth than to a mistake.

    means  what the number says, told to who has it right
    mistakes  the number that a wrong way gives, and what is said to it
    between  what every answer lies between, and why; told to who is outside of it
    """

    asks: str
    known: Known
    tolerance: float
    means: str
    mistakes: tuple[tuple[Known, str], ...] = ()
    between: tuple[float, float, str] | None = None

    def value(self) -> Value:
        """The right answer."""
        return _value(self.known)

    def judge(self, answer: object) -> Verdict:
        """Right, the mistake that gives this number, or the direction in which the truth lies."""
        given, truth = _floats(answer), self.value()
        expected = len(_floats(truth))
        off = _distance(given, truth)
        nearest = min(
            ((_distance(given, _value(one)), told) for one, told in self.mistakes),
            default=(math.inf, ""),
        )
        if off <= self.tolerance and off <= nearest[0]:
            return Verdict(True, f"Right: {_shown(truth)}. {self.means}")
        if nearest[0] <= self.tolerance:
            return Verdict(False, f"Not yet. {nearest[1]}")
        if len(given) != expected:
            return Verdict(
                False, f"Not yet. Expected {_numbers(expected)}, and you gave {len(given)}."
            )
        if self.between is not None and not all(
            self.between[0] <= one <= self.between[1] for one in given
        ):
            return Verdict(False, f"Not yet. {self.between[2]}")
        if expected > 1:
            wrong = sum(
                abs(a - b) > self.tolerance for a, b in zip(given, _floats(truth), strict=True)
            )
            return Verdict(False, f"Not yet. {wrong} of the {expected} numbers are not right.")
        side = "less" if given[0] > _floats(truth)[0] else "more"
        return Verdict(False, f"Not yet. It is {side} than {_shown(given)}.")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Each mistake's number."""
        return [(_value(one), told) for one, told in self.mistakes]


@dataclass(frozen=True)
class Choice:
    """One of several answers, each with what is said to who chooses it."""

    asks: str
    options: dict[str, str]
    right: Callable[[], str]
    said: Callable[[str], str]

    def judge(self, answer: object) -> Verdict:
        """Right or not, and why."""
        chosen = answer.strip().lower() if isinstance(answer, str) else ""
        if chosen not in self.options:
            raise MinibertError(
                f"The answer is {answer!r:.80}: expected one of "
                f"{', '.join(repr(one) for one in self.options)}."
            )
        right = chosen == self.right()
        return Verdict(right, f"{'Right' if right else 'Not yet'}. {self.said(chosen)}")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Every other option."""
        return [(one, self.said(one)) for one in self.options if one != self.right()]


@dataclass(frozen=True)
class Heads:
    """One head or a set of heads, written "layer-head"; of a wrong one is said what it does.

    about  what one head does, told to who names it wrongly
    """

    asks: str
    heads: Callable[[], set[str]]
    about: Callable[[str], str]
    means: str
    size: tuple[int, int] = (4, 4)

    def judge(self, answer: object) -> Verdict:
        """Right, or which heads are too many, and how many are missing."""
        given, truth = self._named(answer), self.heads()
        extra, missing = sorted(given - truth), truth - given
        if not extra and not missing:
            return Verdict(True, f"Right: {', '.join(sorted(truth))}. {self.means}")
        said = [self.about(head) for head in extra[:3]]
        if missing and given & truth:
            said.append(f"{len(missing)} more {'is' if len(missing) == 1 else 'are'} missing.")
        if not given:
            said.append("You named nothing.")
        return Verdict(False, f"Not yet. {' '.join(said)}")

    def wrong_answers(self) -> Iterable[tuple[object, str]]:
        """Every other head alone."""
        layers, heads = self.size
        every = (f"{layer}-{head}" for layer in range(layers) for head in range(heads))
        return [(head, self.about(head)) for head in every if head not in self.heads()]

    def _named(self, answer: object) -> set[str]:
        """The heads as "layer-head"; MinibertError for what names none."""
        one = isinstance(answer, str) or (
            isinstance(answer, tuple) and len(answer) == 2 and all(type(n) is int for n in answer)
        )
        several = [answer] if one else answer
        found = set()
        layers, heads = self.size
        for each in several if isinstance(several, Iterable) else [several]:
            parts = each.split("-") if isinstance(each, str) else each
            try:
                layer, head = (int(part) for part in parts)  # type: ignore[union-attr]
            except (TypeError, ValueError):
                layer = head = -1
            if not (0 <= layer < layers and 0 <= head < heads):
                raise MinibertError(
                    f'{each!r:.80} names no head: expected "layer-head", as "0-1", or a list of '
                    f"them; layers go from 0 to {layers - 1} and heads from 0 to {heads - 1}."
                )
            found.add(f"{layer}-{head}")
        return found
