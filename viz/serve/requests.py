"""What a page may ask for: messages in JSON, checked before anything is computed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibert.errors import MinibertError

__all__ = [
    "ASKS",
    "MOST_MESSAGE_BYTES",
    "Message",
    "Question",
    "RequestError",
    "TextList",
    "TextRequest",
    "read",
]

ASKS = ("about", "trace", "block", "read", "candidates", "weights", "collect", "sweep", "step")
TextList = tuple[tuple[str, ...], ...]
MOST_MESSAGE_BYTES = 2**20
_MOST_NAME = 64
_MOST_TEXTS = 256
_LARGEST_ID = 2**53
_LARGEST_NUMBER = 1e300
# What a question is about beside its layer.
_PLACES = {"candidates": "position", "weights": "row", "collect": "head"}


class RequestError(MinibertError):
    """A message that no page of ours sends."""


@dataclass(frozen=True)
class TextRequest:
    """The texts and edits of a pass, as engine.js has them; `key` is the same for equal ones."""

    texts: tuple[str, ...]
    edits: list[Any]
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
    """One question of a page.

    number    comes back with the answer
    blocks    names of the blocks that travel with the answer to trace, or the one of block
    sampling  temperature, topK, topP and seed of a step
    place     of candidates the position, of collect the head, of weights the row
    texts     of collect
    """

    number: int
    ask: str
    request: TextRequest | None
    blocks: tuple[str, ...] = ()
    quantity: str = ""
    layer: int | None = None
    question: Question | None = None
    sampling: Mapping[str, Any] | None = None
    place: int | None = None
    texts: TextList = ()


def read(text: str) -> tuple[int, "Message | RequestError"]:
    """The number of a message, and the message or what is wrong with it.

    Raises RequestError for what has no number: such a client is not ours and is let go.
    """
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError("The message is no JSON.") from error
    number = given.get("number") if isinstance(given, dict) else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _LARGEST_ID:
        raise RequestError("The message has no number.")
    try:
        return number, _message(number, given)
    except RequestError as error:
        return number, error


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _message(number: int, given: Mapping[str, Any]) -> Message:
    ask = given.get("ask")
    if ask not in ASKS:
        raise RequestError(f"ask is {ask!r:.80}; expected one of {', '.join(ASKS)}.")
    if ask == "about":
        return Message(number, ask, None)
    names = given.get("blocks", [])
    if not isinstance(names, list) or len(names) > _MOST_NAME or not all(map(_is_name, names)):
        raise RequestError("blocks: expected a list of names.")
    quantity = given.get("quantity", "")
    if quantity != "" and not _is_name(quantity):
        raise RequestError(f"quantity is {quantity!r:.80}; expected a name.")
    layer, place = given.get("layer"), given.get(_PLACES.get(ask, ""))
    whole_model = ask in ("weights", "collect")
    return Message(
        number,
        ask,
        None if whole_model else _texts_and_edits(given.get("request")),
        blocks=tuple(names),
        quantity=quantity,
        layer=None if layer is None and ask != "collect" else _whole("layer", layer),
        question=_question(given.get("question")) if ask == "sweep" else None,
        sampling=_sampling(given.get("sampling")) if ask == "step" else None,
        place=None if place is None and ask == "weights" else _place(ask, place),
        texts=_list_of_texts(given.get("texts")) if ask == "collect" else (),
    )


def _place(ask: str, place: Any) -> int | None:
    return _whole(_PLACES[ask], place) if ask in _PLACES else None


def _list_of_texts(given: Any) -> TextList:
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_TEXTS:
        raise RequestError(f"texts: expected a list of 1 to {_MOST_TEXTS} lists of texts.")
    return tuple(_texts("texts", one) for one in given)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MOST_NAME


def _texts_and_edits(given: Any) -> TextRequest:
    if not isinstance(given, dict):
        raise RequestError("request: expected an object with texts and edits.")
    texts, edits, other = given.get("texts"), given.get("edits", []), given.get("other")
    given_texts = _texts("texts", texts)
    other_texts = () if other is None else _texts("other", other)
    if not isinstance(edits, list):
        raise RequestError("edits: expected a list.")
    # Without edits nothing reads the other text.
    key = json.dumps([texts, other if edits else None, edits], sort_keys=True)
    return TextRequest(given_texts, edits, other_texts, key)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    if (
        not isinstance(given, list)
        or not 1 <= len(given) <= 2
        or not all(isinstance(one, str) for one in given)
    ):
        raise RequestError(f"{name}: expected a list of one or two texts.")
    return tuple(given)


def _whole(name: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _LARGEST_ID:
        raise RequestError(f"{name} is {number!r:.80}; expected a whole number from 0 up.")
    return number


def _question(given: Any) -> Question:
    if not isinstance(given, dict):
        raise RequestError("question: expected an object with position and id.")
    return Question(*(_whole(f"question.{name}", given.get(name)) for name in ("position", "id")))


def _sampling(given: Any) -> Mapping[str, Any]:
    """Numbers of the right types; answers/sampling.py checks their ranges."""
    if not isinstance(given, dict):
        raise RequestError("sampling: expected an object with temperature, topK, topP and seed.")
    unknown = set(given) - {"temperature", "topK", "topP", "seed"}
    if unknown:
        raise RequestError(f"sampling has no field {min(unknown):.80}.")
    for name in ("temperature", "topP"):
        number = given.get(name)
        if number is None and name == "topP":
            continue
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not abs(number) <= _LARGEST_NUMBER
        ):
            raise RequestError(f"sampling.{name} is {number!r:.80}; expected a number.")
    if given.get("topK") is not None:
        _whole("sampling.topK", given["topK"])
    _whole("sampling.seed", given.get("seed", 0))
    return given
