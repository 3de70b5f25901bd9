"""The patterns that heads are named by: each declared once, as the keys that it looks at.

Five of them are those of `head_scores`; what they look at is declared in analysis/patterns.py.

A pattern says for every query which keys it means. The score of a row is the attention that goes
there, 0 to 1, and rows count that have such a key; bag of words compares the whole row instead.
`Marks` is what is known of the tokens of one text: which are alike, of one word, of one sentence;
made from Tokens, or from the strings of somebody else's tokens.

Sources: Vig 2019, "Deconstructing BERT" (parts 1 and 2); Clark et al. 2019, section 3; Olsson et
al. 2022; Wang et al. 2022.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minibert.analysis.patterns import KINDS
from minibert.errors import AttentionError
from minibert.quantities import Bool, Int
from minibert.text.tokens import Tokens

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
            # Python takes the sign Ġ for a letter.
            begins = string.startswith(_SPACES)
            goes_on = not begins and before[-1:].isalnum() and string[:1].isalnum()
        number += not hidden and not (goes_on and before)
        words.append(-1 if hidden else number)
        before = "" if hidden else string
    return torch.tensor(words)


Cells = Bool[Tensor, "query key"]
Texts = Literal["corpus", "repeated"]
Baseline = Literal["uniform", "moved", "drawn"]


@dataclass(frozen=True)
class Pattern:
    """What one kind of head looks at.

    words      "heads that look at ..."
    source     who described it
    cells      the keys that each of the queries looks at
    texts      what a model is measured on: the corpus, or random sequences that come twice
    baseline   what is no evidence for the pattern:
               uniform  a head that looks at all keys alike, on the same rows
               moved    the same head at the same offsets, some places further on in the same
                        sentences, where the words are others
               drawn    a row whose weights are drawn at random, all weights equally likely
    """

    name: str
    words: str
    source: str
    cells: Callable[[Marks, Queries], Cells]
    texts: Texts = "corpus"
    baseline: Baseline = "uniform"

    @property
    def label(self) -> str:
        """The name as a person writes it."""
        return self.name.replace("_", " ")


def _at_offset(offset: int) -> Callable[[Marks, Queries], Cells]:
    return lambda marks, queries: _plain_rows(marks, queries) & (marks.offsets(queries) == offset)


def _first(marks: Marks, queries: Queries) -> Cells:
    key = torch.arange(len(marks))
    # The first token cannot look anywhere else in a causal model.
    return _plain_rows(marks, queries) & (key[queries, None] > 0) & (key == 0)


def _delimiter(marks: Marks, queries: Queries) -> Cells:
    return ~marks.delimiter[queries, None] & marks.delimiter


def _bag_of_words(marks: Marks, queries: Queries) -> Cells:
    same = marks.sentence[queries, None] == marks.sentence
    cells = _plain_rows(marks, queries) & marks.plain & same & marks.allowed(queries)
    # Of one word there is only one way to look at it.
    return cells & (cells.sum(1, keepdim=True) > 1)


def _same_word(marks: Marks, queries: Queries) -> Cells:
    alike = marks.spelling[queries, None] == marks.spelling
    other = marks.word[queries, None] != marks.word
    return _between_words(marks, queries) & alike & other


def _same_word_other_sentence(marks: Marks, queries: Queries) -> Cells:
    other = marks.sentence[queries, None] != marks.sentence
    return _same_word(marks, queries) & other


def _predictive(marks: Marks, queries: Queries) -> Cells:
    of_one_word = marks.word[queries, None] == marks.word
    return _between_words(marks, queries) & of_one_word & (marks.offsets(queries) != 0)


def _behind_occurrence(behind: int) -> Callable[[Marks, Queries], Cells]:
    def cells(marks: Marks, queries: Queries) -> Cells:
        token = marks.token
        before = torch.cat([token.new_full((behind,), -1), token[: len(token) - behind]])
        return _earlier(marks, queries) & (token[queries, None] == before)

    return cells


def _plain_rows(marks: Marks, queries: Queries) -> Bool[Tensor, "query 1"]:
    return marks.plain[queries, None]


def _earlier(marks: Marks, queries: Queries) -> Cells:
    return _plain_rows(marks, queries) & marks.plain & (marks.offsets(queries) < 0)


def _between_words(marks: Marks, queries: Queries) -> Cells:
    cells = _plain_rows(marks, queries) & marks.plain
    if marks.causal:
        # Where heads of a causal model look that look at nothing: Vig and Belinkov 2019.
        cells = cells & (torch.arange(len(marks)) > 0)
    return cells


def _known(name: str) -> Pattern:
    """One of the five of analysis/patterns.py."""
    kind = KINDS[name]
    if kind.behind is not None:
        return Pattern(
            name, kind.words, kind.source, _behind_occurrence(kind.behind), texts="repeated"
        )
    cells = _delimiter if kind.offset is None else _at_offset(kind.offset)
    return Pattern(name, kind.words, kind.source, cells)


_VIG_1, _VIG_2 = "Vig 2019, Deconstructing BERT, part 1", "Vig 2019, Deconstructing BERT, part 2"
_CLARK = "Clark et al. 2019, section 3"
BAG_OF_WORDS = "bag_of_words"

_ALL = (
    _known("next"),
    _known("previous"),
    Pattern("first", "the first token", f"{_CLARK}.2; Vig and Belinkov 2019, section 4", _first),
    _known("delimiter"),
    Pattern(
        BAG_OF_WORDS, "all words of the sentence alike", _VIG_2, _bag_of_words, baseline="drawn"
    ),
    Pattern("same_word", "the same word elsewhere", _VIG_1, _same_word, baseline="moved"),
    Pattern(
        "same_word_other_sentence",
        "the same word in the other sentence",
        _VIG_1,
        _same_word_other_sentence,
        baseline="moved",
    ),
    Pattern(
        "predictive",
        "the other pieces of the word, which predict this one",
        _VIG_1,
        _predictive,
        baseline="moved",
    ),
    _known("induction"),
    _known("duplicate"),
)
PATTERNS = {pattern.name: pattern for pattern in _ALL}


def pattern_of(name: str) -> Pattern:
    """The pattern of that name; AttentionError for a name that is none."""
    found = PATTERNS.get(name)
    if found is None:
        raise AttentionError(
            f"{name!r:.80} is no pattern of heads; there are {', '.join(PATTERNS)}."
        )
    return found
