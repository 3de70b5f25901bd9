"""One text that is longer than a model's positions, cut into parts that a model can read."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from minibert.errors import TokenizationError
from minibert.text.tokens import Tokens


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
