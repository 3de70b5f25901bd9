"""Positions are a sentence's own: 0 is its first token and -1 its last real one.

Padding is not a position. `Places` says where in the tensors of a batch, padded or packed, the
positions of its sentences are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from minibert.errors import MinibertError, TraceError, check_index
from minibert.kernels.allowed_keys import AllowedKeys
from minibert.quantities import TokenMask

Chosen = int | slice | Sequence[int] | Tensor | np.ndarray | None
"""Positions or sentences as people name them; None for all."""


@dataclass(frozen=True)
class Places:
    """Where the sentences of a batch are in its tensors.

    at       of each sentence the places of its positions on the position axis
    packed   True where all of them lie in one row
    """

    at: tuple[Sequence[int], ...]
    packed: bool = False

    @classmethod
    def of(cls, allowed: AllowedKeys) -> "Places":
        """The places of a batch whose tokens come first, or of packed sentences."""
        if allowed.packed is None:
            lengths = allowed.lengths or (allowed.position,) * allowed.batch
            return cls(tuple(map(range, lengths)))
        ends = accumulate(allowed.packed)
        spans = zip(ends, allowed.packed, strict=True)
        return cls(tuple(range(end - length, end) for end, length in spans), packed=True)

    @classmethod
    def of_mask(cls, tokens: TokenMask | None, batch: int, position: int) -> "Places":
        """Those of a batch in which tokens are where the mask is True, wherever that is."""
        if tokens is None:
            return cls((range(position),) * batch)
        whole = range(position)
        found = (row.nonzero()[:, 0].tolist() for row in tokens)
        return cls(tuple(whole if len(at) == position else at for at in found))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each sentence."""
        return tuple(map(len, self.at))

    @property
    def rectangular(self) -> bool:
        """True where all sentences have one length, each in a row of the batch."""
        return not self.packed and len(set(self.lengths)) == 1

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
        return indices_of(chosen, len(self.at[sentence]), what, error, named)

    def index(self, sentence: int, positions: Sequence[int]) -> tuple[int, list[int]]:
        """The row of the batch, and the places on the position axis."""
        at = self.at[sentence]
        return 0 if self.packed else sentence, [at[position] for position in positions]

    def without_padding(self, probs: Tensor) -> Tensor:
        """probs with 0 for keys that are padding, whatever stood there."""
        n_keys = probs.shape[-1]
        if min(self.lengths) == n_keys:
            return probs
        real = torch.zeros(len(self.at), n_keys, dtype=torch.bool)
        for sentence, at in enumerate(self.at):
            real[sentence, list(at)] = True
        return probs.masked_fill(~real.to(probs.device)[:, None, None], 0)


def indices_of(
    chosen: Chosen, size: int, what: str, error: type[MinibertError] = TraceError, where: str = ""
) -> list[int]:
    """The numbers that one, several, a slice or None (all) stand for, counted from the front.

    Raises `error` for what is not a whole number from -size to size - 1, for none at all, and where
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
            raise error(f"{where}{what} {chosen}: expected whole numbers.") from wrong
    elif isinstance(chosen, Sequence) and not isinstance(chosen, str):
        found = [check_index(what, one, size, error, where) for one in chosen]
    else:
        found = [check_index(what, chosen, size, error, where)]
    if not found or len(set(found)) < len(found):
        raise error(f"{where}{what} {chosen!r:.80}: expected each one once, and at least one.")
    return found
