"""Documents as parts that fit a model, what is known of their tokens, and batches of them.

`parts_of` cuts a document for everything that reads a corpus. Measures need to know the kinds of
tokens, their words, and which pairs belong together: `SegmentTokens`, for one part a `Segment`.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minibert.errors import SurveyError, TokenizationError
from minibert.survey.documents import Document
from minibert.survey.live import Surveyable
from minibert.text.inputs import Inputs
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens, equal_parts, padded

Flags = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

Item = TypeVar("Item")

#: Kinds of keys that every survey has; chosen tokens come after them.
CLASSES = ("cls", "sep", "period_comma", "punctuation", "first", "text_0", "text_1")
#: How the key of a pair is related to its query.
RELATIONS = ("same_word", "same_word_other_text", "duplicate", "induction")


@dataclass(frozen=True, eq=False)
class SegmentTokens:
    """The tokens of segments that lie one after the other; a segment is what a model sees at once.

    lengths      tokens of each segment
    ids          a number for each vocabulary entry
    text         0 or 1: which of the segment's texts a token stands in; −1 for a special token
    word         a number for each different word, whatever its case; −1 for a special token
    occurrence   a number for each place of a word; the pieces of one word share it
    classes      True where a token is of a class, by `class_names`

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

    _ARRAYS: ClassVar = ("ids", "text", "word", "occurrence", "classes")

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

    @classmethod
    def joined(cls, segments: Sequence["SegmentTokens"]) -> "SegmentTokens":
        """The segments one after the other."""
        arrays = {n: np.concatenate([getattr(one, n) for one in segments]) for n in cls._ARRAYS}
        lengths = tuple(length for one in segments for length in one.lengths)
        return cls(lengths, **arrays, class_names=segments[0].class_names)


def kind_of(token: str, *, cls: bool, sep: bool, chosen: Sequence[str] = ()) -> list[bool]:
    """The classes of a token as a person reads it, in the order of `CLASSES` and then `chosen`.

    The ones that depend on where it stands (first, text_0, text_1) are False.
    """
    bare = token.strip()
    plain = not (cls or sep)
    punctuation = bool(bare) and all(unicodedata.category(c).startswith("P") for c in bare)
    found = [cls, sep, plain and bare in (".", ","), plain and punctuation, False, False, False]
    return found + [bare == one for one in chosen]


def with_places(kinds: Flags, text: Whole) -> Flags:
    """The classes of the tokens of a segment, with those that depend on where a token stands."""
    kinds = kinds.copy()
    kinds[0, CLASSES.index("first")] = True
    if (text == 1).any():
        kinds[:, CLASSES.index("text_0")] = text == 0
        kinds[:, CLASSES.index("text_1")] = text == 1
    return kinds


class Parts(NamedTuple):
    """The tokens of a document, and the positions of each part that a model sees at once.

    `cut` is True for a pair whose ends were left out.
    """

    tokens: Tokens
    places: tuple[Whole, ...]
    cut: bool = False


def parts_of(
    document: Document, tokenizer: Tokenizer, longest: int, *, truncate: bool = False
) -> Parts:
    """The parts of a document, of at most `longest` tokens and of about the same length.

    No token is in two of them, and each has the special tokens of a whole text. A pair is one part;
    with `truncate` the ends of a longer one are left out. Raises TokenizationError for a text
    without tokens, and for a pair that is longer.
    """
    contents = document.contents
    whole = tokenizer(*contents)
    if document.pair is None:
        return Parts(whole, equal_parts(whole, longest))
    length = whole.lengths[0]
    cut = length > longest
    if cut and not truncate:
        raise TokenizationError(
            f"Document {document.id} is a pair of {length} tokens, more than the {longest} that "
            "the model reads at once; shorten its texts, or give them alone."
        )
    if cut:
        whole = tokenizer(*contents, truncate=True, max_positions=longest)
    return Parts(whole, (np.arange(whole.lengths[0]),), cut)


def joined(parts: Sequence[Tokens]) -> Tokens:
    """Sentences as one batch."""

    def table(rows: Iterable[Tensor]) -> Tensor:
        return padded([row[0].tolist() for row in rows], 0)

    fields = ("raw", "strings", "spans", "words", "special")
    return Tokens(
        ids=table(part.ids for part in parts),
        mask=table(part.mask for part in parts).bool(),
        segments=table(part.segments for part in parts),
        **{name: tuple(getattr(part, name)[0] for part in parts) for name in fields},
        texts=tuple(part.texts[0] for part in parts) if all(p.texts for p in parts) else (),
    )


@dataclass(frozen=True, eq=False)
class Segment:
    """A run of tokens that the model sees together.

    document   which of the documents it belongs to
    ids, kinds token ids and token types, as the model reads them
    tokens     what measures know of them
    """

    document: int
    ids: Sequence[int]
    kinds: Sequence[int]
    tokens: SegmentTokens


@dataclass(frozen=True, eq=False)
class Batch:
    """Segments that go through the model in one pass, one after the other."""

    segments: tuple[Segment, ...]

    @cached_property
    def tokens(self) -> SegmentTokens:
        """All their tokens."""
        return SegmentTokens.joined([one.tokens for one in self.segments])

    def inputs(self, device: torch.device) -> Inputs:
        """The segments as a model reads them, padded."""
        ones = [[1] * len(one.ids) for one in self.segments]
        return Inputs(
            padded([one.ids for one in self.segments], 0).to(device),
            padded(ones, 0).bool().to(device),
            padded([one.kinds for one in self.segments], 0).to(device),
        )


class Segmenter:
    """Makes segments of documents with a model's tokenizer.

    `chosen` are tokens that are a class of their own; `longest` is the tokens of a segment, by
    default what the model has positions for. `pairs_cut` counts the pairs that were longer; their
    ends are left out. Raises SurveyError for a model without a tokenizer and for a length or a
    token that it does not have.
    """

    def __init__(
        self, model: Surveyable, *, chosen: Sequence[str] = (), longest: int | None = None
    ) -> None:
        if model.tokenizer is None:
            raise SurveyError(f"{model.name} has no tokenizer, which a survey of texts needs.")
        self.tokenizer = model.tokenizer
        limit = model.config.n_positions
        if longest is not None and not 8 <= longest <= limit:
            raise SurveyError(f"longest={longest}: expected from 8 to {limit} tokens of a segment.")
        self.longest = limit if longest is None else longest
        self.class_names = (*CLASSES, *(f"token:{one}" for one in chosen))
        self.kinds = self._kinds(chosen)
        for column, one in enumerate(chosen, len(CLASSES)):
            if not self.kinds[:, column].any():
                raise SurveyError(f"token {one!r}: not in the vocabulary of {model.name}.")
        self.pairs_cut = 0

    def _kinds(self, chosen: Sequence[str]) -> npt.NDArray[np.bool_]:
        """The classes of each vocabulary entry, (entry, class)."""
        tokenizer = self.tokenizer
        return np.array(
            [
                kind_of(
                    tokenizer.string(i),
                    cls=i == tokenizer.cls_id,
                    sep=i == tokenizer.sep_id,
                    chosen=chosen,
                )
                for i in range(tokenizer.vocab_size)
            ]
        )

    def segments(self, documents: Sequence[Document]) -> tuple[list[Segment], dict[int, str]]:
        """The segments of documents, and why there are none of some, by number."""
        found: list[Segment] = []
        wrong: dict[int, str] = {}
        for number, document in enumerate(documents):
            try:
                found += self._of_document(number, document)
            except TokenizationError as error:
                wrong[number] = str(error)
        return found, wrong

    def _of_document(self, number: int, document: Document) -> list[Segment]:
        tokens, places, cut = parts_of(document, self.tokenizer, self.longest, truncate=True)
        self.pairs_cut += cut
        ids, kinds = tokens.ids[0].numpy(), tokens.segments[0].numpy()
        text, word, occurrence = _word_numbers(tokens)
        found = []
        for place in places:
            own = SegmentTokens(
                (len(place),),
                ids[place],
                text[place],
                word[place],
                occurrence[place],
                with_places(self.kinds[ids[place]], text[place]),
                self.class_names,
            )
            found.append(Segment(number, ids[place].tolist(), kinds[place].tolist(), own))
        return found


def _word_numbers(tokens: Tokens) -> tuple[Whole, Whole, Whole]:
    """For each token its text (−1: special), its word's number, and the number of the place."""
    spans, texts = tokens.spans[0], tokens.texts[0]
    inside = np.array([span is not None for span in spans])
    special = np.cumsum(~inside)
    # The second text begins after the special tokens that end the first.
    second = (special > special[inside.argmax()]) & (len(texts) > 1)
    text = np.where(inside, second, -1).astype(np.int64)
    numbers = [i if n is None else n for i, n in enumerate(tokens.words[0])]
    where = np.flatnonzero(inside)
    keys = np.stack([text[where], np.array(numbers, dtype=np.int64)[where]])
    begins = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))
    order = np.cumsum(begins) - 1
    first, last = where[begins], where[np.append(begins[1:], True)]
    spelled: dict[str, int] = {}
    found = []
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        (start, _), (_, end) = spans[a] or (0, 0), spans[b] or (0, 0)
        whole = texts[text[a]][start:end].strip().lower()
        found.append(spelled.setdefault(whole, len(spelled)))
    word, occurrence = np.full((2, len(spans)), -1, dtype=np.int64)
    word[where], occurrence[where] = np.array(found)[order], order
    return text, word, occurrence


def grouped(items: Iterable[Item], most: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in their order, in lists of at most so many tokens or of one item."""
    held: list[Item] = []
    tokens = 0
    for item in items:
        if held and tokens + size(item) > most:
            yield held
            held, tokens = [], 0
        held.append(item)
        tokens += size(item)
    if held:
        yield held


def batches(
    segments: Iterable[Segment], tokens: int, *, equal_lengths: bool = False
) -> Iterator[Batch]:
    """The segments, the shortest first, in batches of at most so many tokens or of one segment.

    With `equal_lengths` those of a batch have as many tokens each.
    """
    in_order = sorted(segments, key=_length)
    alike = groupby(in_order, _length) if equal_lengths else [(0, in_order)]
    for _, some in alike:
        yield from (Batch(tuple(group)) for group in grouped(some, tokens, _length))


def _length(segment: Segment) -> int:
    return len(segment.ids)
