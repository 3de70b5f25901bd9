"""What attention keeps of the tokens it has read, so that a new token is all that is computed.

generate.py makes a `Cache`; each layer's part of it goes down to `Attention.forward`, which puts
the new keys and values in and gets all of them back.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.quantities import Float, Int

__all__ = ["Cache", "LayerCache"]

Vectors = Float[Tensor, "batch head _ d_head"]


class Cache:
    """The keys and values of every layer, for a batch of texts that grow a token at a time.

    The first pass reads the prompts, padded on the right. A causal model never looks to the
    right, so no token sees the padding, and each text's next token takes its place.

    lengths     tokens of each text, those of the pass that comes next included
    positions   where in its text each token of that pass stands; None: from 0 on
    newest      the last token of each text, counted in that pass
    allowed     which keys that pass may look at
    """

    def __init__(
        self, n_layers: int, lengths: Sequence[int], capacity: int, device: torch.device
    ) -> None:
        self.lengths = list(lengths)
        self.capacity = capacity
        self.layers = tuple([LayerCache(self) for _ in range(n_layers)])
        self.positions: Int[Tensor, "batch 1"] | None = None
        self.rows = torch.arange(len(self.lengths), device=device)
        self.newest = torch.tensor(self.lengths, device=device) - 1
        self.allowed = AllowedKeys(len(self.lengths), max(self.lengths), device, causal=True)
        # Where the new token of each text goes: one position for all, or a place for each.
        self.place: int | tuple[Any, ...] = 0

    def grow(self, growing: Sequence[bool]) -> None:
        """Get ready for one more token of each text; where a text has ended it changes nothing.

        An ended text's row is computed along with the others, in the place of its last token.
        """
        self.lengths = [n + more for n, more in zip(self.lengths, growing, strict=True)]
        batch, longest, device = len(self.lengths), max(self.lengths), self.rows.device
        last = torch.tensor(self.lengths, device=device) - 1
        if min(self.lengths) == longest:
            read, self.place = None, longest - 1
        else:
            read = tuple(self.lengths)
            self.place = (self.rows, slice(None), last)
        self.positions, self.newest = last[:, None], torch.zeros_like(last)
        # Everything read so far lies before the one query, so nothing is left for `causal` to hide.
        self.allowed = AllowedKeys(batch, longest, device, lengths=read)


class LayerCache:
    """The keys and values of one layer."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._key: Vectors | None = None
        self._value: Vectors | None = None

    def extend(self, key: Vectors, value: Vectors) -> tuple[Vectors, Vectors]:
        """All keys and values so far, the new ones put in: the prompts', then one a text."""
        if self._key is None or self._value is None:
            self._key, self._value = self._room(key), self._room(value)
            return key, value
        longest, place = self._cache.allowed.position, self._cache.place
        for kept, new in ((self._key, key), (self._value, value)):
            if isinstance(place, int):
                kept.narrow(2, place, 1).copy_(new)
            else:
                kept[place] = new[:, :, 0]
        return self._key.narrow(2, 0, longest), self._value.narrow(2, 0, longest)

    def _room(self, prompts: Vectors) -> Vectors:
        # Zeros, not what memory held: 0 · NaN is NaN where a text looks past its own end.
        B, H, P, D = prompts.shape
        buffer = prompts.new_zeros(B, H, self._cache.capacity, D)
        buffer[:, :, :P] = prompts
        return buffer
