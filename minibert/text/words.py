"""Texts as users give them: strings, pairs, batches, and texts that are split into words already.

`Words` stands wherever a text may stand. Each word becomes tokens by itself, so that every token
belongs to one given word: `tokens.words` has its number.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Encoding, normalizers
from tokenizers import Tokenizer as Backend

from minibert.errors import TokenizationError

if TYPE_CHECKING:
    Listed = Iterable[str]
else:
    # Checked below, with an error that says what to do; a run-time type checker must not get in
    # before it.
    Listed = object


class Words:
    """The words of one text: `model.trace(Words(["The", "horse", "ran"]))`.

    The same as `is_split_into_words=True` in transformers. Byte-level vocabularies (GPT-2,
    RoBERTa) have a space before each word, the first one too, as `add_prefix_space=True` there
    gives it. `text` is the words with a space between them; spans of tokens count within it.

    A word may have spaces within it, as "2 000" has in some treebanks, but not at its ends. Raises
    TokenizationError for what is not a list of such words.

    >>> Words(["The", "horse", "ran"]).text
    'The horse ran'
    """

    def __init__(self, words: Listed) -> None:
        if isinstance(words, str):
            raise TokenizationError(
                f"Words({words!r:.40}): expected a list of words, not one str; give the text as it "
                "is, or split it."
            )
        try:
            self._words = tuple(words)
        except TypeError:
            raise TokenizationError(
                f"Words of a {type(words).__name__}: give a list of str."
            ) from None
        if not self._words:
            raise TokenizationError("Words([]): there is no word; give at least one.")
        for number, word in enumerate(self._words):
            if not isinstance(word, str):
                raise TokenizationError(f"word {number} must be a str, not {word!r:.40}")
            if not word or word != word.strip():
                raise TokenizationError(
                    f"word {number} is {word!r:.80}; expected at least one character, and no "
                    "space at its beginning or end"
                )
        self.text = " ".join(self._words)

    def __len__(self) -> int:
        """The number of words."""
        return len(self._words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __eq__(self, other: object) -> bool:
        return self._words == other._words if isinstance(other, Words) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._words)

    def __repr__(self) -> str:
        return f"Words({list(self._words)!r})"

    @property
    def starts(self) -> tuple[int, ...]:
        """The character of `text` at which each word begins."""
        starts, place = [], 0
        for word in self._words:
            starts.append(place)
            place += len(word) + 1
        return tuple(starts)


def is_text(value: object) -> bool:
    """True for a text, given as str or Words, and for a list of such."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and isinstance(value[0], str | Words)
    return isinstance(value, str | Words)


def written(text: object) -> Any:
    """The text as a str; what is neither str nor Words as it is."""
    return text.text if isinstance(text, Words) else text


def word_backend(backend: Backend) -> Backend:
    """The tokenizer that words are split with: a byte-level one puts a space before each."""
    parts = json.loads(backend.to_str())
    if parts["pre_tokenizer"] == _spaced(parts["pre_tokenizer"]):
        return backend
    # The post-processor, which trims offsets, has to know of the space as well.
    parts["post_processor"] = _spaced(parts["post_processor"])
    spaced = Backend.from_str(json.dumps(parts))
    # Not by the pre-tokenizer: within a sequence of them it would put a space before each piece.
    before = [] if spaced.normalizer is None else [spaced.normalizer]
    spaced.normalizer = normalizers.Sequence([*before, normalizers.Prepend(" ")])
    return spaced


def _spaced(part: object) -> object:
    """A part of a tokenizer.json with `add_prefix_space` wherever a byte-level part lacks it."""
    if isinstance(part, list):
        return [_spaced(one) for one in part]
    if not isinstance(part, dict):
        return part
    space = {"add_prefix_space": True} if "add_prefix_space" in part else {}
    return {name: _spaced(value) for name, value in part.items()} | space


#: The one or two texts of a sentence.
Sentence = tuple[str | Words, ...]


def sentences(text: object, pair: object) -> tuple[Sentence, ...]:
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


def _as_list(text: object) -> list[object]:
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


def check_text(text: object, place: str, *, may_be_empty: bool = False) -> None:
    """Raise TokenizationError for what is not a text; `place` names it."""
    if not isinstance(text, str):
        raise TokenizationError(f"{place} must be a str, not {type(text).__name__}")
    if not text and not may_be_empty:
        raise TokenizationError(f"{place} is empty; give at least one word")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizationError(
            f"{place} has an unpaired surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}, which is not a character; decode the text with errors='replace'"
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
