"""What a page may ask for: messages in JSON, checked before anything is computed.

`ASKS` is the protocol: each question, and the form of what it is about. The values are the
arguments of the method of engine.py that has the question's name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibert.errors import MinibertError

MOST_MESSAGE_BYTES = 2**20
_MOST_ITEMS = 1000
_LARGEST_ID, _LARGEST_NUMBER = 2**53, 1e300
Form = object
"""A type; a tuple of forms, any of which will do; a list with the form of its items; a dictionary
of forms by name. int is a whole number from 0 up, float any number, dict an object of any form."""


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
        return cls.of({"texts": list(texts)})

    @classmethod
    def of(cls, given: Mapping[str, list[str]]) -> "TextRequest":
        """The request of a message."""
        texts, edits, other = given["texts"], given.get("edits") or [], given.get("other")
        # Without edits nothing reads the other text.
        key = json.dumps([texts, other if edits else None, edits], sort_keys=True)
        return cls(tuple(texts), list(edits), tuple(other or ()), key)


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


_NONE = type(None)
_REQUEST: Form = {"texts": [str], "edits": ([dict], _NONE), "other": ([str], _NONE)}
_SAMPLING: Form = {
    "temperature": float, "topK": (int, _NONE), "topP": (float, _NONE), "seed": (int, _NONE)
}  # fmt: skip
ASKS: Mapping[str, Mapping[str, Form]] = {
    "about": {},
    "trace": {"request": _REQUEST, "blocks": ([str], _NONE)},
    "block": {"request": _REQUEST, "blocks": ([str], _NONE)},
    "read": {"request": _REQUEST, "quantity": str, "layer": (int, _NONE)},
    "candidates": {"request": _REQUEST, "position": int},
    "weights": {"quantity": str, "layer": (int, _NONE), "row": (int, _NONE)},
    "sweep": {"request": _REQUEST, "question": {"position": int, "id": int}},
    "step": {"request": _REQUEST, "sampling": _SAMPLING},
}


def read(text: str) -> tuple[int, Message | RequestError]:
    """The number of a message, and the message or what is wrong with it.

    Raises RequestError for what has no number: such a client is not ours and is let go.
    """
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError("The message is not JSON.") from error
    number: Any = given.pop("number", None) if isinstance(given, dict) else None
    if not _fits(number, int):
        raise RequestError("The message has no number.")
    ask = given.pop("ask", None)
    if not isinstance(ask, str) or ask not in ASKS:
        return number, RequestError(f"ask is {ask!r:.80}; expected one of {', '.join(ASKS)}.")
    for name, form in ASKS[ask].items():
        if not _fits(given.get(name), form):
            return number, RequestError(
                f"{name} is {given.get(name)!r:.80}; expected {_said(form)}."
            )
    found = {name: given.get(name) for name in ASKS[ask]}
    if "request" in found:
        request = TextRequest.of(found["request"])
        if not 1 <= len(request.texts) <= 2 or len(request.other) > 2:
            return number, RequestError("request: expected one or two texts.")
        found["request"] = request
    if "question" in found:
        found["question"] = Question(**found["question"])
    if "blocks" in found:
        found["blocks"] = tuple(found["blocks"] or ())
    return number, Message(number, ask, found)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _fits(value: object, form: Form) -> bool:
    """Whether a value has a form."""
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(form, list):
        return (
            isinstance(value, list)
            and len(value) <= _MOST_ITEMS
            and all(_fits(one, form[0]) for one in value)
        )
    if isinstance(form, dict):
        return (
            isinstance(value, dict)
            and value.keys() <= form.keys()
            and all(_fits(value.get(name), one) for name, one in form.items())
        )
    if form is float:
        return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER  # type: ignore[arg-type]
    return type(value) is form and (form is not int or 0 <= value < _LARGEST_ID)  # type: ignore[operator]


def _said(form: Form) -> str:
    """A form in words."""
    words = {int: "a whole number from 0 up", float: "a number", str: "text", _NONE: "nothing"}
    if isinstance(form, tuple):
        return " or ".join(map(_said, form))
    if isinstance(form, list):
        return f"a list of at most {_MOST_ITEMS}, each {_said(form[0])}"
    if isinstance(form, dict):
        return f"an object with {', '.join(form)}"
    return words.get(form, "an object")  # type: ignore[call-overload]
