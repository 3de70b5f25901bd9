"""The texts a tokenizer is given, checked: each alone, in pairs, and as tokens.

Used by tokenizer.py alone.
"""

from typing import Any

from tokenizers import Encoding

from minibert.errors import TokenizationError
from minibert.text.words import Words, written

__all__ = ["Sentence", "check_encoding", "check_text", "sentences"]

#: The one or two texts of a sentence.
Sentence = tuple[str | Words, ...]


def sentences(text: Any, pair: Any) -> tuple[Sentence, ...]:
    """The one or two texts of each sentence, each checked."""
    columns = [_as_list(text)] if pair is None else [_as_list(text), _as_list(pair)]
    alone = isinstance(text, str | Words)
    if pair is not None and alone != isinstance(pair, str | Words):
        raise TokenizationError("text and pair must be both one str or both lists of str")
    if len(columns[0]) != len(columns[-1]):
        raise TokenizationError(
            f"pairs need a second text for each first one, but there are {len(columns[0])} texts "
            f"and {len(columns[-1])} in pair"
        )
    if not columns[0]:
        raise TokenizationError("the batch is empty; give at least one text")
    found = tuple(zip(*columns, strict=True))
    for i, sentence in enumerate(found):
        for n, one in enumerate(sentence):
            check_text(written(one), _place(n, len(sentence), None if alone else i))
        if len({isinstance(one, Words) for one in sentence}) > 1:
            place = _place(0, 2, None if alone else i)
            raise TokenizationError(f"{place} and the second must be both str or both Words")
    return found


def _as_list(text: Any) -> list[Any]:
    if isinstance(text, str | Words):
        return [text]
    if isinstance(text, list | tuple):
        return list(text)
    raise TokenizationError(f"a text must be a str or a list of str, not {type(text).__name__}")


def _place(n: int, of: int, index: int | None) -> str:
    """How a message names text `n` of the `of` texts of sentence `index`."""
    name = "the text" if of == 1 else ("the first text", "the second text")[n]
    if index is None:
        return name
    return f"text {index} of the batch" if of == 1 else f"{name} of pair {index} of the batch"


def check_text(text: Any, place: str, *, may_be_empty: bool = False) -> None:
    """Raise TokenizationError for what is no text; `place` names it."""
    if not isinstance(text, str):
        raise TokenizationError(f"{place} must be a str, not {type(text).__name__}")
    if not text and not may_be_empty:
        raise TokenizationError(f"{place} is empty; give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizationError(
            f"{place} has an unpaired surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}, which is no character; decode the text with errors='replace'"
        ) from None


def check_encoding(
    encoding: Encoding, sentence: Sentence, index: int | None, limit: int | None
) -> None:
    """Raises where a text gave no token, or where the sentence is longer than `limit`."""
    owners = encoding.sequence_ids
    for n, text in enumerate(sentence):
        if n not in owners:
            place = _place(n, len(sentence), index)
            raise TokenizationError(
                f"{place} gives no token: {written(text)[:40]!r} has nothing that the vocabulary "
                "splits into tokens; give at least one word"
            )
    if limit is not None and len(owners) > limit:
        place = "the sentence" if index is None else f"sentence {index} of the batch"
        raise TokenizationError(
            f"{place} has {len(owners)} tokens, {owners.count(None)} special ones among them, and "
            f"the limit is {limit} positions; shorten it, or pass truncate=True to cut it there"
        )
