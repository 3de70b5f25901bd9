"""What the measures must know of tokens: their kinds, their words, and which pairs belong together.

`SegmentTokens` describes one segment, or several that lie one after the other.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CLASSES", "RELATIONS", "SegmentTokens", "kind_of", "tokens_of_strings"]

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

#: Kinds of keys that every survey has; chosen tokens come behind them.
CLASSES = ("cls", "sep", "period_comma", "punctuation", "first", "text_0", "text_1")
#: How the key of a pair is related to its query.
RELATIONS = ("same_word", "same_word_other_text", "duplicate", "induction")
_CLS, _SEP = ("[CLS]", "<s>"), ("[SEP]", "</s>")


@dataclass(frozen=True, eq=False)
class SegmentTokens:
    """The tokens of segments that lie one after the other; a segment is what a model sees at once.

    lengths      tokens of each segment
    ids          a number for each vocabulary entry
    text         0 or 1: which of the segment's texts a token stands in; −1 for a special token
    word         a number for each different word, whatever its case; −1 for a special token
    occurrence   a number for each place of a word; the pieces of one word share it
    classes      True where a token is of a class, by `class_names`
    causal       a token sees no key behind it
    window       how many keys before and after its own position a token sees; None: no limit

    Classes: `cls` and `sep` as the tokenizer adds them; `period_comma` "." and "," (what Clark et
    al. 2019 count as punctuation); `punctuation` every token of punctuation characters alone;
    `first` position 0; `text_0` and `text_1` the tokens of either text where there are two; then
    chosen tokens.
    """

    lengths: tuple[int, ...]
    ids: Whole
    text: Whole
    word: Whole
    occurrence: Whole
    classes: Flags
    class_names: tuple[str, ...] = CLASSES
    causal: bool = False
    window: tuple[int, int] | None = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.ids)

    @cached_property
    def starts(self) -> Whole:
        """The first token of each segment."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @cached_property
    def segment(self) -> Whole:
        """The segment of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def has_two_texts(self) -> Flags:
        """For each token whether its segment holds two texts."""
        two = np.maximum.reduceat(self.text == 1, self.starts)
        return np.asarray(two[self.segment])

    def of_class(self, name: str) -> Flags:
        """True where a token is of the class."""
        return np.asarray(self.classes[:, self.class_names.index(name)])

    @cached_property
    def pairs(self) -> tuple[Whole, tuple[Whole, ...]]:
        """(pair, 2) of query and key, sorted, and for each of `RELATIONS` which of them it has.

        same_word              the same word at another place of the segment
        same_word_other_text   of these the ones in the other text
        duplicate              the same vocabulary entry, earlier
        induction              the token after an earlier one with the same vocabulary entry
        """
        real = self.text >= 0
        same = self._equal(np.where(real, self.word, -1))
        same = same[self.occurrence[same[:, 0]] != self.occurrence[same[:, 1]]]
        other = same[self.text[same[:, 0]] != self.text[same[:, 1]]]
        equal = self._equal(np.where(real, self.ids, -1))
        earlier = equal[equal[:, 1] < equal[:, 0]]
        after = earlier[earlier[:, 1] + 1 < earlier[:, 0]] + [0, 1]
        cells = [
            query * len(self) + key for query, key in (p.T for p in (same, other, earlier, after))
        ]
        found = np.unique(np.concatenate(cells))
        pairs = np.stack(np.divmod(found, max(1, len(self))), axis=1)
        return pairs, tuple(np.searchsorted(found, np.sort(one)) for one in cells)

    @cached_property
    def queries(self) -> tuple[tuple[Whole, Whole], ...]:
        """For each relation the queries that have a key, and the first pair of each."""
        pairs, members = self.pairs
        return tuple(np.unique(pairs[own, 0], return_index=True) for own in members)

    def _equal(self, labels: Whole) -> Whole:
        """(pair, 2) of different tokens of one segment with the same label of at least 0."""
        chosen = np.flatnonzero(labels >= 0)
        key = self.segment[chosen] * (labels.max(initial=0) + 1) + labels[chosen]
        order = chosen[np.argsort(key, kind="stable")]
        _, first, counts = np.unique(np.sort(key), return_index=True, return_counts=True)
        each = np.repeat(counts, counts)
        query = np.repeat(order, each)
        within = np.arange(len(query)) - np.repeat(np.cumsum(each) - each, each)
        keys = order[np.repeat(np.repeat(first, counts), each) + within]
        found = np.stack([query, keys], axis=1)
        return found[query != keys]

    def one(self, number: int) -> "SegmentTokens":
        """A segment alone."""
        first = int(self.starts[number])
        cut = slice(first, first + self.lengths[number])
        return SegmentTokens(
            (self.lengths[number],),
            self.ids[cut],
            self.text[cut],
            self.word[cut],
            self.occurrence[cut],
            self.classes[cut],
            self.class_names,
            self.causal,
            self.window,
        )

    @classmethod
    def joined(cls, segments: Sequence["SegmentTokens"]) -> "SegmentTokens":
        """The segments one after the other."""
        names = ("ids", "text", "word", "occurrence", "classes")
        arrays = {n: np.concatenate([getattr(one, n) for one in segments]) for n in names}
        lengths = tuple(length for one in segments for length in one.lengths)
        first = segments[0]
        return cls(lengths, class_names=first.class_names, causal=first.causal, **arrays)


def kind_of(token: str, *, cls: bool, sep: bool, chosen: Sequence[str] = ()) -> list[bool]:
    """The classes of a token as a person reads it, in the order of `CLASSES` and then `chosen`.

    The ones that depend on where it stands (first, text_0, text_1) are False.
    """
    bare = token.strip()
    plain = not (cls or sep)
    punctuation = bool(bare) and all(unicodedata.category(c).startswith("P") for c in bare)
    found = [cls, sep, plain and bare in (".", ","), plain and punctuation, False, False, False]
    return found + [bare == one for one in chosen]


def tokens_of_strings(raw: Sequence[str], *, chosen: Sequence[str] = ()) -> SegmentTokens:
    """The description of one segment from the strings of its tokens alone.

    For attention that another program computed. Pieces of a word begin with "##" (WordPiece); a
    token that begins with "Ġ" is a word of its own without it. The text after the first separator
    is the second one.
    """
    text, word, occurrence, kinds = [], [], [], []
    words: dict[str, int] = {}
    second, place = 0, -1
    strings = [_readable(token) for token in raw]
    spelled = _words(raw, strings)
    for token, string, whole in zip(raw, strings, spelled, strict=True):
        cls, sep = token in _CLS, token in _SEP
        place += not token.startswith("##")
        occurrence.append(place)
        text.append(-1 if cls or sep else second)
        word.append(-1 if cls or sep else words.setdefault(whole, len(words)))
        kinds.append(kind_of(string, cls=cls, sep=sep, chosen=chosen))
        second = 1 if sep else second
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(token, len(numbers)) for token in raw], dtype=np.int64)
    texts = np.array(text, dtype=np.int64)
    return SegmentTokens(
        (len(raw),),
        ids,
        texts,
        np.array(word, dtype=np.int64),
        np.array(occurrence, dtype=np.int64),
        with_places(np.array(kinds, dtype=bool), texts),
        (*CLASSES, *(f"token:{one}" for one in chosen)),
    )


def with_places(kinds: Flags, text: Whole) -> Flags:
    """The classes of the tokens of a segment, with those that depend on where a token stands."""
    kinds = kinds.copy()
    kinds[0, CLASSES.index("first")] = True
    if (text == 1).any():
        kinds[:, CLASSES.index("text_0")] = text == 0
        kinds[:, CLASSES.index("text_1")] = text == 1
    return kinds


def _readable(token: str) -> str:
    strip: Callable[[str], str] = token.removeprefix
    return strip("##") if token.startswith("##") else token.replace("Ġ", " ")


def _words(raw: Sequence[str], strings: Sequence[str]) -> list[str]:
    """For each token the whole word that it is a piece of, in lower case."""
    starts = [i for i, token in enumerate(raw) if not token.startswith("##")]
    found: list[str] = []
    for first, stop in pairwise([*starts, len(raw)]):
        found += ["".join(strings[first:stop]).strip().lower()] * (stop - first)
    return found
