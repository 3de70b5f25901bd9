"""Positions are a sentence's own: 0 is its first token and -1 its last real one.

Padding is no position. `Places` says where in the tensors of a batch, padded or packed, the
positions of its sentences are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minibert.errors import MinibertError, TraceError, check_index
from minibert.kernels.allowed_keys import AllowedKeys

Chosen = int | slice | Sequence[int] | Tensor | np.ndarray | None
"""Positions or sentences as people name them; None for all."""


@dataclass(frozen=True)
class Places:
    """Where the sentences of a batch are in its tensors.

    lengths   real tokens of each sentence
    starts    where each begins on the position axis: 0, but for packed sentences
    """

    lengths: tuple[int, ...]
    starts: tuple[int, ...] | None = None

    @classmethod
    def of(cls, allowed: AllowedKeys) -> "Places":
        """The places of a batch."""
        if allowed.packed is not None:
            starts, end = [], 0
            for length in allowed.packed:
                starts.append(end)
                end += length
            return cls(allowed.packed, tuple(starts))
        return cls(allowed.lengths or (allowed.position,) * allowed.batch)

    @property
    def rectangular(self) -> bool:
        """True where all sentences have one length, each in a row of the batch."""
        return self.starts is None and len(set(self.lengths)) == 1

    def positions(
        self,
        sentence: int,
        chosen: Chosen,
        what: str = "position",
        error: type[MinibertError] = TraceError,
        where: str = "",
    ) -> list[int]:
        """The positions in one sentence, counted from its front; all of its tokens for None."""
        named = where if self.rectangular else f"{where}sentence {sentence}: "
        return indices_of(chosen, self.lengths[sentence], what, error, named)

    def without_padding(self, probs: Tensor) -> Tensor:
        """probs with 0 for keys that are padding, whatever stood there."""
        n_keys = probs.shape[-1]
        if min(self.lengths) == n_keys:
            return probs
        lengths = torch.tensor(self.lengths, device=probs.device)
        padding = torch.arange(n_keys, device=probs.device) >= lengths[:, None]
        return probs.masked_fill(padding[:, None, None, :], 0)

    def index(self, sentence: int, positions: Sequence[int]) -> tuple[int, list[int]]:
        """The row of the batch, and the places on the position axis."""
        if self.starts is None:
            return sentence, list(positions)
        return 0, [self.starts[sentence] + position for position in positions]


def laid_out(value: Tensor, axis: int, theirs: AllowedKeys, ours: AllowedKeys) -> Tensor:
    """A quantity of one batch as another batch lies, padded or packed: its sentences' first rows.

    `axis` is that of positions. Sentences of the other batch have at most as many tokens; padding
    is 1. A single sentence is given to each.
    """
    source, target = Places.of(theirs), Places.of(ours)
    rows = value.movedim(axis, 1)
    # Ones in the padding, which nobody reads: a norm may divide by them.
    found = rows.new_ones((1 if ours.packed else ours.batch, ours.position, *rows.shape[2:]))
    for sentence, length in enumerate(target.lengths):
        row, at = source.index(sentence if len(source.lengths) > 1 else 0, range(length))
        to, where = target.index(sentence, range(length))
        found[to, where] = rows[row, at]
    return found.movedim(1, axis)


def indices_of(
    chosen: Chosen, size: int, what: str, error: type[MinibertError] = TraceError, where: str = ""
) -> list[int]:
    """The numbers that one, several, a slice or None (all) stand for, counted from the front.

    Raises `error` for what is no whole number from -size to size - 1, for none at all, and where
    something is named twice; `where` begins its message.
    """
    if chosen is None:
        return list(range(size))
    if isinstance(chosen, Tensor | np.ndarray):
        chosen = chosen.tolist()
    if isinstance(chosen, slice):
        try:
            found = list(range(size)[chosen])
        except (TypeError, ValueError) as wrong:
            raise error(f"{where}{what}s {chosen}: expected whole numbers.") from wrong
    elif isinstance(chosen, Sequence) and not isinstance(chosen, str):
        found = [check_index(what, one, size, error, where) for one in chosen]
    else:
        found = [check_index(what, chosen, size, error, where)]
    if not found or len(set(found)) < len(found):
        raise error(f"{where}{what}s {chosen!r:.80}: expected each once, and at least one.")
    return found
