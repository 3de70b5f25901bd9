"""What a page says about each token: its text, its look, the sentence it belongs to."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = [
    "Label",
    "TokensLike",
    "is_cut",
    "label_columns",
    "labels_from_strings",
    "labels_from_tokens",
    "readable",
    "written_texts",
]

_SPECIAL = frozenset(["[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|endoftext|>"])
_SPACE_MARKS = ("Ġ", "▁")
_PIECE_MARK = "##"
_END_MARK = "</w>"
_CLOSING = frozenset(".,;:!?")


@runtime_checkable
class TokensLike(Protocol):
    """What a page reads of `minibert.text.tokens.Tokens`; each field has one item a sentence."""

    @property
    def raw(self) -> Any:
        """The vocabulary's own strings, without padding."""

    @property
    def strings(self) -> Any:
        """The same as a person reads them."""

    @property
    def segments(self) -> Any:
        """0 for the first text and 1 for the second: (batch, position), padding included."""

    @property
    def spans(self) -> Any:
        """Characters [start, end) within the token's own text; None for no characters."""

    @property
    def special(self) -> Any:
        """True for tokens that mark structure."""

    @property
    def texts(self) -> Any:
        """The one or two texts; () when they are not known."""


@dataclass(frozen=True)
class Label:
    """One token as a page shows it; `piece` is True where it continues the token before it."""

    text: str
    raw: str
    special: bool
    segment: int
    piece: bool


def labels_from_tokens(tokens: TokensLike, sentence: int) -> list[Label]:
    """The labels of one sentence, padding left out."""
    rows = zip(
        tokens.raw[sentence],
        tokens.strings[sentence],
        tokens.special[sentence],
        # Segments are a padded tensor: longer than the tuples.
        tokens.segments[sentence].tolist(),
        strict=False,
    )
    return [
        Label(text, raw, bool(special), int(segment), _is_piece(raw))
        for raw, text, special, segment in rows
    ]


def labels_from_strings(
    tokens: Sequence[str], sentence_b_start: int | None, prettify: bool = True
) -> list[Label]:
    """The labels of a tokenizer's own strings, made readable unless `prettify` is False."""
    start = len(tokens) if sentence_b_start is None else sentence_b_start
    return [
        Label(
            readable(token) if prettify else token,
            token,
            token in _SPECIAL,
            int(i >= start),
            _is_piece(token),
        )
        for i, token in enumerate(tokens)
    ]


def _is_piece(raw: str) -> bool:
    return raw.startswith(_PIECE_MARK) and len(raw) > len(_PIECE_MARK)


def readable(raw: str) -> str:
    """A tokenizer's own string without its marks for spaces and joints: `##`, `Ġ`, `▁`, `</w>`."""
    if _is_piece(raw):
        return raw[len(_PIECE_MARK) :]
    if raw.endswith(_END_MARK) and raw != _END_MARK:
        return raw[: -len(_END_MARK)]
    return " " + raw[1:] if raw.startswith(_SPACE_MARKS) else raw


def written_texts(labels: Sequence[Label]) -> list[str]:
    """The one or two texts that the labels spell, for tokens whose text is not known."""
    spaced = any(label.text.startswith(" ") for label in labels)
    texts = []
    for segment in sorted({label.segment for label in labels}):
        words = [label for label in labels if label.segment == segment and not label.special]
        joined = "".join(
            word.text if spaced or word.piece or word.text in _CLOSING else " " + word.text
            for word in words
        )
        texts.append(joined.strip())
    return texts


def is_cut(tokens: TokensLike, sentence: int) -> bool:
    """True where the tokens of a known text end before the text, as `truncate=True` leaves them."""
    texts = tokens.texts[sentence] if tokens.texts else ()
    ends: list[int] = []
    before = (-1, 0)
    # Segments are a padded tensor: longer than the spans.
    pairs = zip(tokens.segments[sentence].tolist(), tokens.spans[sentence], strict=False)
    for segment, span in pairs:
        if span is None:
            continue
        # Models without segments give both texts the first; the second then starts over.
        if not ends or segment != before[0] or span[0] < before[1]:
            ends.append(0)
        ends[-1] = max(ends[-1], span[1])
        before = (segment, span[0])
    if len(ends) != len(texts):
        return False
    return any(end < _written_end(text) for end, text in zip(ends, texts, strict=True))


def _written_end(text: str) -> int:
    """Where a text ends but for blanks, controls and marks, which tokenizers may leave out."""
    end = len(text)
    while end and unicodedata.category(text[end - 1])[0] in "CMZ":
        end -= 1
    return end


def label_columns(labels: Sequence[Label]) -> dict[str, Any]:
    """The labels as a page's header has them, one list a field; `raw` null where it is `text`."""
    return {
        "text": [label.text for label in labels],
        "raw": [None if label.raw == label.text else label.raw for label in labels],
        "special": [int(label.special) for label in labels],
        "segment": [label.segment for label in labels],
        "piece": [int(label.piece) for label in labels],
    }
