"""The tokens of a trace's file, checked: a page and an analysis can rely on every value."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from minibert.layers.config import Config
from minibert.text.inputs import Inputs
from minibert.text.tokens import Tokens

__all__ = ["NUMBERS", "describe_tokens", "read_tokens", "tuples"]

NUMBERS = ("ids", "mask", "segments")
_OF_EACH_TOKEN = ("raw", "strings", "spans", "words", "special")
_COLUMNS = (*_OF_EACH_TOKEN, "texts")


def describe_tokens(tokens: Tokens) -> dict[str, Any]:
    """The columns of the tokens that are no tensors, ready for JSON."""
    return {name: getattr(tokens, name) for name in _COLUMNS}


def read_tokens(
    about: Mapping[str, Any], numbers: Mapping[str, Tensor], config: Config, name: str
) -> Tokens:
    """The tokens of these columns and tensors.

    Raises TokenizationError, ValueError or LookupError for what is no batch that the model of that
    name could have read.
    """
    tokens = Tokens.from_ids(numbers["ids"], mask=numbers["mask"], segments=numbers["segments"])
    Inputs(tokens.ids, tokens.mask, tokens.segments).checked(config, name)
    columns = {name: tuples(about[name]) for name in _COLUMNS}
    for column in _OF_EACH_TOKEN:
        if tuple(map(len, columns[column])) != tokens.lengths:
            raise ValueError(f"{column} of the tokens do not fit their ids")
    if len(columns["texts"]) not in (0, len(tokens)):
        raise ValueError("a text for each sentence is missing")
    for i in range(len(tokens)):
        texts = columns["texts"][i] if columns["texts"] else ()
        _check_sentence({name: columns[name][i] for name in _OF_EACH_TOKEN}, texts)
    return replace(tokens, **columns)


def _check_sentence(columns: Mapping[str, Any], texts: Any) -> None:
    """Raise ValueError for a value that is not of its column's kind."""
    if not _all(texts, str) or len(texts) > 2:
        raise ValueError("a sentence of more than two texts")
    if not all(_all(columns[name], str) for name in ("raw", "strings")):
        raise ValueError("a token that is no string")
    # An unpaired surrogate is a UnicodeEncodeError here, and would be one on a page.
    "".join((*texts, *columns["raw"], *columns["strings"])).encode()
    if not _all(columns["special"], bool):
        raise ValueError("special of a token is neither true nor false")
    if not all(word is None or _is_count(word) for word in columns["words"]):
        raise ValueError("the number of a word that is none")
    longest = max(map(len, texts), default=0)
    for span in columns["spans"]:
        if span is not None and not (_is_span(span) and span[1] <= longest):
            raise ValueError(f"{span!r:.80} is no span of the text")


def _is_span(span: Any) -> bool:
    return (
        isinstance(span, tuple)
        and len(span) == 2
        and all(map(_is_count, span))
        and span[0] <= span[1]
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, kind) for value in values)


def tuples(value: Any) -> Any:
    """The value with tuples in place of JSON's lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
