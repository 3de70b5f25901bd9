"""What is known of the tokens of one text: which are alike, which are of one word, of one sentence.

Made from Tokens, or from the strings of somebody else's tokens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minibert.quantities import Bool, Int
from minibert.text.tokens import Tokens

__all__ = ["Marks", "Queries", "Seen"]

Queries = slice | Tensor
"""Some positions of a text, as an index."""

Seen = tuple[int, int] | Tensor | None
"""How many keys before and after its own position a query sees, or True for those that it sees,
(query, key); None: no limit."""

_SPECIAL = frozenset({"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|endoftext|>"})
_DELIMITERS = frozenset({"[SEP]", "</s>"})
# How vocabularies write the space before a word: byte-level BPE, decoded, and SentencePiece.
_SPACES = ("Ġ", " ", "▁")
_CONTINUES = "##"


@dataclass(frozen=True, eq=False)
class Marks:
    """One text as far as patterns need it; equal numbers mean "the same".

    token       tokens of the vocabulary
    word        occurrences of a word: all its pieces have one number; -1 in special tokens
    spelling    words that are written alike, upper and lower case alike; -1 in special tokens
    sentence    delimiters before the token
    plain       True for tokens that are neither special nor delimiters
    delimiter   True for [SEP] and what stands for it
    strings     the tokens as a person reads them
    causal      whether a query sees only itself and what stands before it
    seen        which of these keys a query sees
    """

    token: Int[Tensor, " position"]
    word: Int[Tensor, " position"]
    spelling: Int[Tensor, " position"]
    sentence: Int[Tensor, " position"]
    plain: Bool[Tensor, " position"]
    delimiter: Bool[Tensor, " position"]
    strings: tuple[str, ...]
    causal: bool
    seen: Seen = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.strings)

    @classmethod
    def of_tokens(cls, tokens: Tokens, delimiters: Collection[int], *, causal: bool) -> "Marks":
        """The marks of a batch of one sentence; `delimiters` are ids."""
        [special], [words], [strings] = tokens.special, tokens.words, tokens.strings
        ids = tokens.ids[0].cpu()
        delimiter = torch.isin(ids, torch.tensor(list(delimiters), dtype=ids.dtype))
        sentence = _sentences(delimiter)
        structure = torch.tensor(special) | delimiter
        if all(word is None for word in words):
            word = _words_of(tokens.raw[0], structure)
        else:
            # Words are counted within their own text; a pair has two.
            places = list(zip(sentence.tolist(), words, strict=True))
            word = _numbered(
                None if hidden else place if place[1] is not None else (index, None)
                for index, (place, hidden) in enumerate(zip(places, structure, strict=True))
            )
        return cls._of(ids, word, structure, delimiter, strings, causal)

    @classmethod
    def of_strings(cls, strings: Sequence[str], *, causal: bool) -> "Marks":
        """The marks of tokens that somebody else made, as their vocabulary writes them.

        Pieces of a word are known by "##". Where any token begins with the sign of a space, a
        token without it goes on with the word if letters or digits meet. Otherwise every token is
        a word.
        """
        special = torch.tensor([string in _SPECIAL for string in strings])
        delimiter = torch.tensor([string in _DELIMITERS for string in strings])
        token = _numbered(strings)
        word = _words_of(strings, special)
        readable = tuple(string.removeprefix(_CONTINUES) for string in strings)
        return cls._of(token, word, special, delimiter, readable, causal)

    @classmethod
    def _of(
        cls,
        token: Tensor,
        word: Tensor,
        structure: Tensor,
        delimiter: Tensor,
        strings: Sequence[str],
        causal: bool,
    ) -> "Marks":
        spelled: dict[int, str] = {}
        for number, string in zip(word.tolist(), strings, strict=True):
            spelled[number] = spelled.get(number, "") + string.lstrip("".join(_SPACES))
        spelling = _numbered(
            None if number < 0 else spelled[number].casefold() for number in word.tolist()
        )
        return cls(
            token=token,
            word=word,
            spelling=spelling,
            sentence=_sentences(delimiter),
            plain=~structure,
            delimiter=delimiter,
            strings=tuple(strings),
            causal=causal,
        )

    def offsets(self, queries: Queries) -> Int[Tensor, "query key"]:
        """key - query."""
        position = torch.arange(len(self))
        return position - position[queries, None]

    def allowed(self, queries: Queries) -> Bool[Tensor, "query key"]:
        """True where a query sees a key."""
        offsets = self.offsets(queries)
        allowed = offsets <= 0 if self.causal else torch.ones_like(offsets, dtype=torch.bool)
        if self.seen is None:
            return allowed
        if isinstance(self.seen, Tensor):
            return allowed & self.seen[queries]
        before, after = self.seen
        return allowed & (offsets >= -before) & (offsets <= after)


def _sentences(delimiter: Tensor) -> Int[Tensor, " position"]:
    return delimiter.cumsum(0) - delimiter.long()


def _numbered(values: object) -> Int[Tensor, " position"]:
    """Equal numbers for equal values, in the order of first sight; -1 for None."""
    seen: dict[object, int] = {None: -1}
    return torch.tensor([seen.setdefault(value, len(seen) - 1) for value in values])  # type: ignore[attr-defined]


def _words_of(raw: Sequence[str], structure: Tensor) -> Int[Tensor, " position"]:
    """The words that the vocabulary's own strings show."""
    spaced = any(string.startswith(_SPACES) for string in raw)
    words: list[int] = []
    number, before = -1, ""
    for string, hidden in zip(raw, structure.tolist(), strict=True):
        goes_on = string.startswith(_CONTINUES)
        if spaced:
            goes_on = before[-1:].isalnum() and string[:1].isalnum()
        number += not hidden and not (goes_on and before)
        words.append(-1 if hidden else number)
        before = "" if hidden else string
    return torch.tensor(words)
