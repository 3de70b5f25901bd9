"""Documents as segments that fit the model, and segments as batches without padding.

A document that is longer than the model's positions is cut into windows of about the same length;
no token is in two of them, and each has the special tokens of a whole text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from minibert.errors import SurveyError, TokenizationError
from minibert.survey.formats import Document
from minibert.survey.token_kinds import CLASSES, SegmentTokens, kind_of, with_places
from minibert.text.inputs import Inputs
from minibert.text.tokenizer import Tokenizer
from minibert.text.tokens import Tokens, padded
from minibert.text.windows import equal_parts

__all__ = ["Batch", "Segment", "Segmenter", "batches", "in_pairs"]

Whole = npt.NDArray[np.int64]


@runtime_checkable
class Sizes(Protocol):
    """What is asked of a config here."""

    @property
    def n_positions(self) -> int:
        """Tokens that the model sees at once."""

    @property
    def causal(self) -> bool:
        """Whether a token sees no key behind it."""


@runtime_checkable
class ReadsText(Protocol):
    """What is asked of a model here."""

    @property
    def config(self) -> Sizes:
        """What is known of its positions."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None: it reads no text."""

    @property
    def name(self) -> str:
        """For messages."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Tokens that the model sees together.

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

    def seen_by(self, window: tuple[int, int] | None) -> SegmentTokens:
        """The same as a layer with this window sees them; made once."""
        if window is None:
            return self.tokens
        if window not in self._seen_by:
            self._seen_by[window] = replace(self.tokens, window=window)
        return self._seen_by[window]

    @cached_property
    def _seen_by(self) -> dict[tuple[int, int], SegmentTokens]:
        return {}

    def inputs(self, device: torch.device) -> Inputs:
        """The same as a model reads them, padded."""
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
        self, model: ReadsText, *, chosen: Sequence[str] = (), longest: int | None = None
    ) -> None:
        if model.tokenizer is None:
            raise SurveyError(f"{model.name} has no tokenizer, which a survey of texts needs.")
        self.tokenizer = model.tokenizer
        limit = model.config.n_positions
        if longest is not None and not 8 <= longest <= limit:
            raise SurveyError(f"longest={longest}: expected from 8 to {limit} tokens of a segment.")
        self.longest = limit if longest is None else longest
        self.causal = model.config.causal
        self.class_names = (*CLASSES, *(f"token:{one}" for one in chosen))
        self.kinds = self._kinds(chosen)
        for column, one in enumerate(chosen, len(CLASSES)):
            if not self.kinds[:, column].any():
                raise SurveyError(f"token {one!r}: the vocabulary of {model.name} has no such one.")
        self.pairs_cut = 0

    def _kinds(self, chosen: Sequence[str]) -> npt.NDArray[np.bool_]:
        """The classes of each vocabulary entry, (entry, class)."""
        tokenizer: Any = self.tokenizer
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
        tokens = self._tokens(document)
        ids, kinds = tokens.ids[0].numpy(), tokens.segments[0].numpy()
        text, word, occurrence = _words(tokens)
        found = []
        for place in equal_parts(tokens, self.longest):
            own = SegmentTokens(
                (len(place),),
                ids[place],
                text[place],
                word[place],
                occurrence[place],
                with_places(self.kinds[ids[place]], text[place]),
                self.class_names,
                self.causal,
            )
            found.append(Segment(number, ids[place].tolist(), kinds[place].tolist(), own))
        return found

    def _tokens(self, document: Document) -> Tokens:
        """The tokens of a document; of a pair no more than fit."""
        contents: tuple[Any, ...] = document.contents
        whole = self.tokenizer(*contents)
        if document.pair is None or whole.lengths[0] <= self.longest:
            return whole
        self.pairs_cut += 1
        return self.tokenizer(*contents, truncate=True, max_positions=self.longest)


def _words(tokens: Tokens) -> tuple[Whole, Whole, Whole]:
    """For each token its text (−1: special), its word's number, and the number of the place."""
    spans, texts = tokens.spans[0], tokens.texts[0]
    inside = np.array([span is not None for span in spans])
    special = np.cumsum(~inside)
    # The second text begins behind the special tokens that end the first.
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


def batches(
    segments: Iterable[Segment], tokens: int, *, equal_lengths: bool = False
) -> Iterator[Batch]:
    """The segments, the shortest first, in batches of at most so many tokens or of one segment.

    With `equal_lengths` those of a batch have as many tokens each.
    """
    taken: list[Segment] = []
    held = 0
    for segment in sorted(segments, key=lambda one: len(one.ids)):
        length = len(segment.ids)
        other = equal_lengths and taken and len(taken[0].ids) != length
        if taken and (other or held + length > tokens):
            yield Batch(tuple(taken))
            taken, held = [], 0
        taken.append(segment)
        held += length
    if taken:
        yield Batch(tuple(taken))


def in_pairs(documents: Iterable[Document]) -> Iterator[Document]:
    """Each two documents in a row as one with two texts, as Clark et al. 2019 took paragraphs.

    The last one of an odd number is left out. Raises SurveyError for one that is a pair already.
    """
    first: Document | None = None
    for document in documents:
        if document.pair is not None:
            raise SurveyError(f"{document.id}: is a pair already; leave pairs out.")
        if first is None:
            first = document
            continue
        name = f"{first.id} + {document.id}"
        if first.words is not None and document.words is not None:
            yield Document(name, None, first.words, document.words)
        else:
            yield Document(name, first.written, None, document.written)
        first = None
