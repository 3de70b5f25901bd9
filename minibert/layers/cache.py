"""What attention keeps of the tokens it has read, so that a new token is all that is computed.

generate.py makes a `Cache`; each layer's part of it goes down to `Attention.forward`, which puts
the new keys and values in and gets all of them back.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minibert.kernels.allowed_keys import AllowedKeys
from minibert.layers.config import Config
from minibert.quantities import Float, Int

Vectors = Float[Tensor, "batch kv_head _ d_head"]
# One place for all texts, or an index with a place for each.
Place = int | tuple[slice | int | list[int] | Tensor, ...]


class Cache:
    """The keys and values of every layer, for a batch of texts that grow a token at a time.

    The first pass reads the prompts, padded on the right. A causal model never looks to the
    right, so no token sees the padding, and each text's next token takes its place.

    lengths     tokens of each text, those of the pass that comes next included
    positions   where in its text each token of that pass stands; None: from 0
    newest      the last token of each text, counted in that pass
    allowed     which keys that pass may look at
    """

    def __init__(
        self, config: Config, lengths: Sequence[int], capacity: int, device: torch.device
    ) -> None:
        self.lengths, self.capacity = list(lengths), capacity
        windows = [config.window(layer) for layer in range(config.n_layers)]
        sizes = [capacity if window is None else min(capacity, 1 + window[0]) for window in windows]
        self.layers = tuple([LayerCache(self, size) for size in sizes])
        self.positions: Int[Tensor, "batch 1"] | None = None
        self.rows = torch.arange(len(self.lengths), device=device)
        self.newest = torch.tensor(self.lengths, device=device) - 1
        # What turns keys may depend on how long their text is.
        ragged = None if min(lengths) == max(lengths) else tuple(lengths)
        self.allowed = AllowedKeys(
            len(self.lengths), max(self.lengths), device, causal=True, lengths=ragged
        )
        self._places: dict[int, tuple[AllowedKeys, Place]] = {}

    def grow(self, growing: Sequence[bool]) -> None:
        """Get ready for one more token of each text; where a text has ended it changes nothing.

        An ended text's row is computed along with the others, in place of its last token.
        """
        self.lengths = [n + more for n, more in zip(self.lengths, growing, strict=True)]
        last = torch.tensor(self.lengths, device=self.rows.device) - 1
        self.positions, self.newest = last[:, None], torch.zeros_like(last)
        self._places = {}
        self.allowed, _ = self.place(max(self.lengths))

    def place(self, size: int) -> tuple[AllowedKeys, Place]:
        """What the new token may see in a layer that keeps so many tokens, and where it goes.

        A token goes to the place of its position modulo the size. Everything kept lies before the
        one query and within its window, so nothing is left for order and window to hide.
        """
        if size not in self._places:
            device, kept = self.rows.device, [min(length, size) for length in self.lengths]
            # A text that has ended grows no longer, and may be shorter than the others.
            ragged = min(self.lengths) != max(self.lengths)
            lengths = tuple(kept) if min(kept) != max(kept) else None
            allowed = AllowedKeys(len(kept), max(kept), device, lengths=lengths)
            one = (self.lengths[0] - 1) % size
            each = (torch.tensor(self.lengths, device=device) - 1) % size
            self._places[size] = allowed, (self.rows, slice(None), each) if ragged else one
        return self._places[size]


def turned_anew(config: Config, lengths: Sequence[int]) -> bool:
    """True where a text has just become so long that all of its keys are turned otherwise.

    So it is with the two sets of factors of longrope (Phi-3).
    """
    return any(
        rotary is not None and rotary.scaling == "longrope" and rotary.n_original + 1 in lengths
        for rotary in (config.rotary, config.local_rotary)
    )


class LayerCache:
    """The keys and values of one layer: of the newest `size` tokens of each text."""

    def __init__(self, cache: Cache, size: int) -> None:
        self._cache, self._size = cache, size
        self._key: Vectors | None = None
        self._value: Vectors | None = None

    @property
    def allowed(self) -> AllowedKeys | None:
        """Which of the keys the new token may see; None while the prompts are read."""
        return None if self._cache.positions is None else self._cache.place(self._size)[0]

    def extend(self, key: Vectors, value: Vectors) -> tuple[Vectors, Vectors]:
        """All keys and values so far, the new ones put in: the prompts', then one a text."""
        if self._key is None or self._value is None:
            self._key, self._value = self._room(key), self._room(value)
            return key, value
        allowed, place = self._cache.place(self._size)
        for kept, new in ((self._key, key), (self._value, value)):
            if isinstance(place, int):
                kept.narrow(2, place, 1).copy_(new)
            else:
                kept[place] = new[:, :, 0]
        longest = allowed.position
        return self._key.narrow(2, 0, longest), self._value.narrow(2, 0, longest)

    def _room(self, prompts: Vectors) -> Vectors:
        # Zeros, not what memory held: 0 · NaN is NaN where a text looks past its own end.
        B, H, P, D = prompts.shape
        buffer = prompts.new_zeros(B, H, self._size, D)
        if self._size >= P:
            buffer[:, :, :P] = prompts
            return buffer
        for row, length in enumerate(self._cache.lengths):
            positions = torch.arange(max(0, length - self._size), length, device=prompts.device)
            buffer[row, :, positions % self._size] = prompts[row, :, positions]
        return buffer
