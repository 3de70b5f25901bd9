"""Every error minibert raises on purpose.

One family, so that a caller can catch all of it with `except minibert.MinibertError`.
Each message says what was wrong, where, what was expected, and what to do about it. Whatever a
file or a server put into a message, it is shorter than 2 kB and safe to print.
"""

import operator
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, SupportsIndex, TypeGuard, TypeVar

__all__ = [
    "AttentionError",
    "CheckpointError",
    "EditError",
    "MinibertError",
    "SurveyError",
    "TokenizationError",
    "TraceError",
    "TrainingError",
    "check_flag",
    "check_index",
    "did_you_mean",
    "how_to_install",
    "printable",
]

LONGEST_MESSAGE = 2000


def printable(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text in at most `most` bytes of UTF-8, without characters that act on a terminal.

    What cannot be printed is written as its escape (`\\x1b`). Of a longer text the beginning and
    the end are kept, because they say where it happened and what to do.
    """
    # A character gives at least one byte, so more of them than this would be cut in any case.
    head, tail = text[: 2 * most], text[-most:]
    whole = len(text) <= 2 * most
    shown = _escaped(text if whole else head)
    if whole and len(shown.encode()) <= most:
        return shown
    left_out = f" [... of {len(text)} characters ...] "
    room = most - len(left_out)
    start = _first_bytes(shown, room * 2 // 3)
    end = _first_bytes(_escaped(tail)[::-1], room - len(start.encode()))[::-1]
    return start + left_out + end


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _first_bytes(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


#: Our name in the package index, where `minibert` belongs to somebody else.
DISTRIBUTION = "minibert-attention"


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class MinibertError(Exception):
    """The base of every error below."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(printable(a) if isinstance(a, str) else a for a in arguments))


class CheckpointError(MinibertError):
    """A checkpoint cannot be found, fetched, read, or does not fit its configuration."""


class SurveyError(MinibertError):
    """A corpus cannot be read, or a survey of it cannot start or continue."""


class TokenizationError(MinibertError):
    """A text cannot become tokens, or tokens do not fit the model."""


class AttentionError(MinibertError):
    """The inputs of `attend` do not fit together, or no implementation gives what was asked."""


class EditError(MinibertError):
    """An edit names a place that does not exist, or a value that does not fit it."""


class TraceError(MinibertError):
    """A quantity was read that does not exist, or that this trace did not compute."""


class TrainingError(MinibertError):
    """A training run cannot start or continue: its texts, its recipe or its files do not fit."""


_NO_MEMORY = re.compile("(?i)out of memory|not enough memory|allocate memory|failed to map segment")
_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def lacks_memory(error: BaseException) -> bool:
    """True for an error of Python or torch that says that there is not enough memory."""
    said = isinstance(error, RuntimeError | OSError | ImportError)
    return isinstance(error, MemoryError) or (said and bool(_NO_MEMORY.search(str(error))))


def within_memory(read: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned]:
    """The function, which raises TraceError where what is read takes more memory than there is."""

    @wraps(read)
    def checked(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Returned:
        try:
            return read(*arguments, **options)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            # How many, torch says.
            wanted = re.search(r"[\d.]+ ?([KMGT]i?B|bytes)", str(error))
        raise TraceError(
            f"There is not enough memory for this{f' ({wanted[0]} more)' if wanted else ''}. Read "
            "one head of a trace, or some of its rows (trace[layer, head].window), or trace a "
            "shorter text."
        )

    return checked


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """ " (did you mean ...?)" with the known name that is most like the given one, or nothing."""
    if not isinstance(given, str):
        return ""
    plain = {re.sub(r"\W|_", "", one).lower(): one for one in known}
    asked = re.sub(r"\W|_", "", given[:100]).lower()
    near = get_close_matches(asked, plain, n=5)
    # A slip of one key changes the length by one at most.
    near.sort(key=lambda one: abs(len(one) - len(asked)) > 1)
    near = near or [one for one in plain if len(asked) > 2 and asked in one]
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""


def check_flag(name: str, value: object, error: type[MinibertError]) -> None:
    """Raise `error` for what is neither True nor False: Python would take "no" as yes."""
    if not isinstance(value, bool):
        raise error(f"{name}={value!r:.80}: expected True or False.")


def check_index(
    what: str, given: object, size: int, error: type[MinibertError] = TraceError, where: str = ""
) -> int:
    """The index, counted from the front; `error` when it is not from 0 to size - 1."""
    if not is_whole(given):
        raise error(f"{where}{what} {given!r:.80}: expected a whole number from 0 to {size - 1}.")
    index = operator.index(given)
    if not -size <= index < size:
        there = "there" if where else "There"
        raise error(f"{where}{there} is no {what} {index}; expected 0 to {size - 1}.")
    return index % size


def is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """Whether it is one whole number; an array or tensor of one counts, a bool does not."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return False
    # A bool counts as a number to Python; True for token 1 is a mistake.
    return not isinstance(value, bool)


def whole_number(
    name: str, value: object, error: type[MinibertError], *, least: int, most: int = 2**31 - 1
) -> int:
    """The value as an int; the error where it is not one from `least` to `most`."""
    number = operator.index(value) if is_whole(value) else least - 1
    if not least <= number <= most:
        raise error(f"{name}={value!r:.80}: expected a whole number from {least} to {most}.")
    return number
