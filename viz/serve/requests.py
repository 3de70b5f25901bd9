"""What a page may ask for: messages in JSON, checked before anything is computed.

`ASKS` is the protocol: each question, and what it is about. The checked values are the arguments of
the method of engine.py that has the question's name.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from minibert.errors import MinibertError

MOST_MESSAGE_BYTES = 2**20
_MOST_NAME = 64
_LARGEST_ID = 2**53
_LARGEST_NUMBER = 1e300


class RequestError(MinibertError):
    """A message that no page of ours sends."""


@dataclass(frozen=True)
class TextRequest:
    """The texts and edits of a pass, as engine.js has them; `key` is the same for equal ones."""

    texts: tuple[str, ...]
    edits: list[object]
    other: tuple[str, ...]
    key: str

    @classmethod
    def plain(cls, texts: tuple[str, ...]) -> "TextRequest":
        """These texts without edits."""
        return cls(texts, [], (), json.dumps([texts, None, []]))


@dataclass(frozen=True)
class Question:
    """What a sweep asks of each head: the log probability of a token at a position."""

    position: int
    id: int


@dataclass(frozen=True)
class Message:
    """One question of a page; its number comes back with the answer."""

    number: int
    ask: str
    given: Mapping[str, object]


def read(text: str) -> tuple[int, Message | RequestError]:
    """The number of a message, and the message or what is wrong with it.

    Raises RequestError for what has no number: such a client is not ours and is let go.
    """
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError("The message is no JSON.") from error
    number = given.get("number") if isinstance(given, dict) else None
    if not _is_whole(number):
        raise RequestError("The message has no number.")
    try:
        return number, _message(number, given)
    except RequestError as error:
        return number, error


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _message(number: int, given: Mapping[str, object]) -> Message:
    ask = given.get("ask")
    if not isinstance(ask, str) or ask not in ASKS:
        raise RequestError(f"ask is {ask!r:.80}; expected one of {', '.join(ASKS)}.")
    checks = ASKS[ask]
    return Message(
        number, ask, {name: check(name, given.get(name)) for name, check in checks.items()}
    )


def _is_whole(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < _LARGEST_ID


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= _MOST_NAME


def _whole(name: str, number: object) -> int:
    if not _is_whole(number):
        raise RequestError(f"{name} is {number!r:.80}; expected a whole number from 0 up.")
    return number


def _whole_or_none(name: str, number: object) -> int | None:
    return None if number is None else _whole(name, number)


def _quantity(name: str, given: object) -> str:
    if not _is_name(given):
        raise RequestError(f"{name} is {given!r:.80}; expected a name.")
    return given


def _blocks(name: str, given: object) -> tuple[str, ...]:
    names = [] if given is None else given
    if not isinstance(names, list) or len(names) > _MOST_NAME or not all(map(_is_name, names)):
        raise RequestError(f"{name}: expected a list of names.")
    return tuple(names)


def _texts(name: str, given: object) -> tuple[str, ...]:
    are_texts = isinstance(given, list) and all(isinstance(one, str) for one in given)
    if not isinstance(given, list) or not are_texts or not 1 <= len(given) <= 2:
        raise RequestError(f"{name}: expected a list of one or two texts.")
    return tuple(given)


def _request(name: str, given: object) -> TextRequest:
    if not isinstance(given, dict):
        raise RequestError(f"{name}: expected an object with texts and edits.")
    texts, edits, other = given.get("texts"), given.get("edits", []), given.get("other")
    read_texts, read_other = _texts("texts", texts), () if other is None else _texts("other", other)
    if not isinstance(edits, list):
        raise RequestError("edits: expected a list.")
    # Without edits nothing reads the other text.
    key = json.dumps([texts, other if edits else None, edits], sort_keys=True)
    return TextRequest(read_texts, edits, read_other, key)


def _question(name: str, given: object) -> Question:
    if not isinstance(given, dict):
        raise RequestError(f"{name}: expected an object with position and id.")
    return Question(*(_whole(f"{name}.{part}", given.get(part)) for part in ("position", "id")))


def _sampling(name: str, given: object) -> Mapping[str, object]:
    """Numbers of the right types; `Sampling` checks their ranges."""
    if not isinstance(given, dict):
        raise RequestError(f"{name}: expected an object with temperature, topK, topP and seed.")
    if unknown := set(given) - {"temperature", "topK", "topP", "seed"}:
        raise RequestError(f"{name} has no field {min(unknown):.80}.")
    for part in ("temperature", "topP"):
        number = given.get(part)
        if number is None and part == "topP":
            continue
        in_range = isinstance(number, int | float) and abs(number) <= _LARGEST_NUMBER
        if isinstance(number, bool) or not in_range:
            raise RequestError(f"{name}.{part} is {number!r:.80}; expected a number.")
    _whole_or_none(f"{name}.topK", given.get("topK"))
    _whole(f"{name}.seed", given.get("seed", 0))
    return given


ASKS: Mapping[str, Mapping[str, Callable[[str, object], object]]] = {
    "about": {},
    "trace": {"request": _request, "blocks": _blocks},
    "block": {"request": _request, "blocks": _blocks},
    "read": {"request": _request, "quantity": _quantity, "layer": _whole_or_none},
    "candidates": {"request": _request, "position": _whole},
    "weights": {"quantity": _quantity, "layer": _whole_or_none, "row": _whole_or_none},
    "sweep": {"request": _request, "question": _question},
    "step": {"request": _request, "sampling": _sampling},
}
