"""Sentences as a model takes them, and where in the text each token comes from.

`Tokens` stands between text and model: a `Tokenizer` (tokenizer.py) makes it, every model
takes it, every trace carries it. Ids that someone else made come in through `Tokens.from_ids`.
`equal_parts` cuts one text that is longer than a model's positions.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.errors import TokenizationError
from minibert.quantities import Bool, Int


def table_of(
    values: object, name: str, *, booleans: bool = False
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """The numbers as int64, one axis as one row, and True where a row has one; None: everywhere.

    `booleans` may stand for 1 and 0. Raises TokenizationError for what is not a table of whole
    numbers, which names the row of a list of rows, and for an empty one.

    >>> table_of([[3, 1, 4], [1]], "ids")[0].tolist()
    [[3, 1, 4], [1, 0, 0]]
    """
    if isinstance(values, list | tuple) and any(map(_is_row, values)):
        rows = [_row(row, f"{name} row {n}", booleans) for n, row in enumerate(values)]
        lengths = torch.tensor([[len(row)] for row in rows])
        real = torch.arange(int(lengths.max())) < lengths
        return pad_sequence(rows, batch_first=True), None if bool(real.all()) else real
    table = _whole(values, name, booleans)
    if table.ndim not in (1, 2):
        raise TokenizationError(
            f"{name} expected (position) or (batch, position), found the shape {tuple(table.shape)}"
        )
    if table.numel() == 0:
        raise TokenizationError(f"{name} are empty (shape {tuple(table.shape)}); give at least one")
    return table[None] if table.ndim == 1 else table, None


def _is_row(row: object) -> bool:
    return row.ndim > 0 if isinstance(row, Tensor | np.ndarray) else isinstance(row, list | tuple)


def _row(values: object, name: str, booleans: bool) -> Int[Tensor, " position"]:
    row = _whole(values, name, booleans)
    if row.ndim != 1 or not len(row):
        raise TokenizationError(f"{name} is {values!r:.40}; expected a list of at least one number")
    return row.cpu()


def _whole(values: object, name: str, booleans: bool) -> Int[Tensor, "*place"]:
    try:
        table = torch.as_tensor(values)
        kind = table.dtype
        # An empty list has no dtype of its own; it is reported as empty, not as float.
        number = not (kind.is_floating_point or kind.is_complex or kind is torch.bool)
        if number or not table.numel() or (booleans and kind is torch.bool):
            return table.to(torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TokenizationError(
            f"{name} must be a list of whole numbers, a list of such lists, or a tensor ({error}); "
            'a text that is split into words is given as minibert.Words(["The", "horse"])'
        ) from error
    raise TokenizationError(f"{name} must be whole numbers, not {kind}; convert them with .long()")


@runtime_checkable
class Vocabulary(Protocol):
    """What `Tokens.from_ids` asks of a tokenizer."""

    structural_ids: frozenset[int]

    def raw(self, token_id: int) -> str:
        """The vocabulary's own string."""

    def string(self, token_id: int) -> str:
        """The string as a person reads it."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of sentences as tokens, padded on the right.

    `ids`, `mask` and `segments` are tensors with the padding in; the tuples hold one tuple a
    sentence with the padding left out, so that `strings[i][p]` belongs to `ids[i, p]`.

    mask      True where a real token is
    segments  0 for the first text and 1 for the second, where the model tells them apart
    raw       the vocabulary's own strings: "##berries", "Ġbrown", "▁the"
    strings   the same as a person reads them: "berries", " brown", " the"
    spans     characters [start, end) within the token's own text; None where a token stands
              for no characters of it ([CLS], [SEP]), and everywhere after `from_ids`
    words     the number of the word within its own text, None where spans are None; of a text
              given as Words, the number of the given word
    special   True for tokens that mark structure ([CLS], [SEP], <|endoftext|>, typed ones
              too); False for [MASK] and [UNK], which stand for a piece of the text
    texts     the one or two texts of each sentence; () after `from_ids`
    """

    ids: Int[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]
    segments: Int[Tensor, "batch position"]
    raw: tuple[tuple[str, ...], ...]
    strings: tuple[tuple[str, ...], ...]
    spans: tuple[tuple[tuple[int, int] | None, ...], ...]
    words: tuple[tuple[int | None, ...], ...]
    special: tuple[tuple[bool, ...], ...]
    texts: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.raw)

    def __getitem__(self, i: int) -> "Tokens":
        """Sentence `i` as a batch of one, padding removed. Raises IndexError outside the batch."""
        i = operator.index(i)
        if not -len(self) <= i < len(self):
            raise IndexError(f"sentence {i} of a batch of {len(self)}")
        i %= len(self)
        length = self.lengths[i]
        return self.each(lambda table: table[i : i + 1, :length], lambda rows: rows[i : i + 1])

    def each(
        self,
        table: Callable[[Tensor], Tensor],
        rows: Callable[[tuple[Sequence[object], ...]], tuple[object, ...]] = lambda rows: rows,
    ) -> "Tokens":
        """New tokens: `table` is applied to each tensor, and `rows` to each tuple of sentences."""
        changed: dict[str, Any] = {
            name: table(value) if isinstance(value, Tensor) else rows(value)
            for name, value in vars(self).items()
        }
        return Tokens(**changed)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each sentence, padding not counted."""
        return tuple(map(len, self.raw))

    def to(self, device: torch.device | str) -> "Tokens":
        """These tokens with their tensors on `device`."""
        return self.each(lambda table: table.to(device))

    @classmethod
    def from_ids(
        cls,
        ids: object,
        *,
        mask: object = None,
        segments: object = None,
        tokenizer: Vocabulary | None = None,
    ) -> "Tokens":
        """Tokens of given ids: a list, a nested list or an integer tensor.

        One axis is one sentence, two are (batch, position); lists of different lengths are filled
        up on the right. `mask` is boolean or 0 and 1, and may leave out only the end of a
        sentence. Strings come from `tokenizer`; without one they are the ids written out. Raises
        TokenizationError for anything that is not a
        table of whole numbers from 0 up, or where the shapes differ.

        >>> Tokens.from_ids([[2, 0, 1]]).strings
        (('2', '0', '1'),)
        """
        table, inside = table_of(ids, "ids")
        table = _no_negative(table, "ids")
        real = torch.ones_like(table, dtype=torch.bool) if inside is None else inside
        if mask is not None:
            real = _right_padded(real_of(mask, table, inside, "mask"))
        kinds = torch.zeros_like(table)
        if segments is not None:
            kinds = _no_negative(beside(segments, table, "segments"), "segments")
        lengths = real.sum(dim=1).tolist()
        rows = [row[:length] for row, length in zip(table.tolist(), lengths, strict=True)]
        structural = frozenset[int]() if tokenizer is None else tokenizer.structural_ids
        raw = str if tokenizer is None else tokenizer.raw
        string = str if tokenizer is None else tokenizer.string
        nothing = tuple((None,) * length for length in lengths)
        return cls(
            ids=table,
            mask=real,
            segments=kinds,
            raw=tuple(tuple(map(raw, row)) for row in rows),
            strings=tuple(tuple(map(string, row)) for row in rows),
            spans=nothing,
            words=nothing,
            special=tuple(tuple(i in structural for i in row) for row in rows),
            texts=(),
        )


def padded(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "batch position"]:
    """The rows as one int64 tensor, filled up on the right with `fill`."""
    longest = max(map(len, rows))
    table = np.full((len(rows), longest), fill, dtype=np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return torch.from_numpy(table)


def _no_negative(table: Tensor, name: str) -> Tensor:
    negative = (table < 0).nonzero()
    if len(negative):
        row, position = negative[0].tolist()
        raise TokenizationError(
            f"{name} must be 0 or more, but row {row}, position {position} holds "
            f"{table[row, position].item()}; to leave positions out, give mask="
        )
    return table


def beside(
    values: object, ids: Tensor, name: str, *, booleans: bool = False
) -> Int[Tensor, "batch position"]:
    """Whole numbers, one for each id; one row stands for every sentence."""
    table, _ = table_of(values, name, booleans=booleans)
    if table.shape[1:] != ids.shape[1:] or len(table) not in (1, len(ids)):
        raise TokenizationError(
            f"{name} has shape {tuple(table.shape)}, and the ids have {tuple(ids.shape)}; expected "
            "one value for each id."
        )
    return table.to(ids.device).expand_as(ids)


def real_of(
    values: object, ids: Tensor, real: Tensor | None, name: str
) -> Bool[Tensor, "batch position"]:
    """True where a real token is, as a mask says; False after the end of a shorter list.

    `real` is where lists of different lengths have ids; None where all are as long.
    """
    table, inside = table_of(values, name, booleans=True)
    if real is not None and (inside is None or not torch.equal(inside, real)):
        here = real.sum(1).tolist()
        there = table.shape[1:] * len(table) if inside is None else inside.sum(1).tolist()
        pairs = enumerate(zip(here, there, strict=False))
        row = next((i for i, pair in pairs if len(set(pair)) > 1), min(len(here), len(there)))
        raise TokenizationError(f"{name} row {row}: expected one value for each id.")
    table = beside(values, ids, name, booleans=True)
    wrong = ((table != 0) & (table != 1)).any(1).nonzero()
    if len(wrong):
        raise TokenizationError(
            f"{name} row {wrong[0].item()} holds other values than 1 for a token and 0 for "
            "padding; a mask of which key each query sees is not taken."
        )
    return table.bool() if real is None else table.bool() & real.to(table.device)


def _right_padded(real: Tensor) -> Tensor:
    wrong = (~real[:, 0] | (real[:, 1:] & ~real[:, :-1]).any(dim=1)).nonzero()
    if len(wrong):
        raise TokenizationError(
            f"mask row {wrong[0].item()} does not start with a token or has one after padding; "
            "move the padding to the right end of the sentence"
        )
    return real


def equal_parts(tokens: Tokens, longest: int) -> tuple[npt.NDArray[np.int64], ...]:
    """The positions of each part of one text that is cut into parts of at most `longest` tokens.

    Parts are of about the same length; no token of the text is in two of them, and each has the
    special tokens of a whole text. A text that fits is one part. Raises TokenizationError where the
    special tokens leave no room.
    """
    length = tokens.lengths[0]
    if length <= longest:
        return (np.arange(length),)
    # Only what the tokenizer's template adds stands for no characters.
    inside = [position for position, span in enumerate(tokens.spans[0]) if span is not None]
    first, last = inside[0], inside[-1]
    before, behind = np.arange(first), np.arange(last + 1, length)
    room = longest - len(before) - len(behind)
    if room < 1:
        raise TokenizationError(
            f"A text of {length} tokens cannot be cut into parts of {longest}: "
            f"{len(before) + len(behind)} of each are special tokens."
        )
    parts = np.array_split(np.arange(first, last + 1), -(-(last + 1 - first) // room))
    return tuple(np.concatenate([before, part, behind]) for part in parts)


def columns(tokens: Tokens, places: list[list[int]]) -> Tokens:
    """One row for each list of positions of the one sentence in `tokens`."""
    index = torch.tensor(places)

    def pick(rows: tuple[Sequence[object], ...]) -> tuple[tuple[object, ...], ...]:
        return tuple(tuple(rows[0][position] for position in chosen) for chosen in places)

    # The text is of the whole sentence.
    picked = replace(tokens, texts=()).each(
        lambda table: table[0][index], lambda rows: pick(rows) if rows else ()
    )
    return replace(picked, texts=tokens.texts * len(places))
