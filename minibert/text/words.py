"""Texts that are split into words already, as those of a treebank are.

`Words` stands wherever a text may stand. Each word becomes tokens by itself, so that every token
belongs to one given word: `tokens.words` has its number.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from minibert.errors import TokenizationError

__all__ = ["Words", "is_text", "word_backend", "written"]

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
    TokenizationError for what is no list of such words.

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
                f"Words of a {type(words).__name__}: expected a list of words."
            ) from None
        if not self._words:
            raise TokenizationError("Words([]): there is no word; give at least one.")
        for number, word in enumerate(self._words):
            if not isinstance(word, str):
                raise TokenizationError(
                    f"word {number} must be a str, not {type(word).__name__}: {word!r:.40}"
                )
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


def is_text(value: Any) -> bool:
    """True for a text, given as str or Words, and for a list of such."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and isinstance(value[0], str | Words)
    return isinstance(value, str | Words)


def written(text: Any) -> Any:
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


def _spaced(part: Any) -> Any:
    """A part of a tokenizer.json with `add_prefix_space` wherever a byte-level part lacks it."""
    if isinstance(part, list):
        return [_spaced(one) for one in part]
    if not isinstance(part, dict):
        return part
    space = {"add_prefix_space": True} if "add_prefix_space" in part else {}
    return {name: _spaced(value) for name, value in part.items()} | space
