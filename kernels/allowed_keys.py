"""The keys that a query may see, shared by all layers of a pass."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.quantities import AttentionMask, Bool, Float, Int, TokenMask

Made = TypeVar("Made")
#: Keys before and after its own position that a query may see; None: as many as there are.
Window = tuple[int | None, int | None]


class kept(Generic[Made]):  # noqa: N801, a decorator like `property`
    """A property made once. That of functools has a lock, which torch cannot compile."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type | None = None) -> Made:
        made = self.make(owner)
        object.__setattr__(owner, self.name, made)
        return made


@dataclass(frozen=True, eq=False)
class AllowedKeys:
    """The keys that a query may see, without an N x N tensor until one is asked for.

    All layers of a pass share one; whatever is derived from it is made once and kept.

    batch, position   sentences, and keys of each, padding included
    causal            a query sees the keys up to its own position
    lengths           real tokens of each sentence, which come first; None: all are real
    packed            tokens of each sentence, where the sentences lie one after the other in a
                      batch of one and each sees itself alone
    queries           the positions the queries stand at; None: as many as there are queries, the
                      last one at the end
    given             a mask in addition to all this, True where attention is allowed
    window            keys before and after its own position that a query may see
    prefix            keys of each sentence that are seen in spite of causal order
    packed_keys       keys of each packed sentence, where they are not as many as its queries
    ends              the keys that each sentence's queries are aligned to the end of; None: all
    on_device         lengths that stay where they are, since reading them would stall the device
    """

    batch: int
    position: int
    device: torch.device
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    packed: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    given: Bool[Tensor, "#batch #head #query #key"] | None = None
    window: Window | None = None
    prefix: Int[Tensor, " batch"] | None = None
    packed_keys: tuple[int, ...] | None = None
    ends: Int[Tensor, " batch"] | None = None
    on_device: Int[Tensor, " batch"] | None = None

    @classmethod
    def of(cls, mask: TokenMask | None, *, causal: bool, ids: Tensor) -> "AllowedKeys":
        """The allowed keys of a batch of ids, of which `mask` is True where a real token is."""
        batch, position = ids.shape
        lengths = None if mask is None else tuple(mask.sum(1).tolist())
        if lengths is not None and min(lengths) == position:
            lengths = None
        return cls(batch, position, ids.device, causal, lengths)

    def at(self, queries: Sequence[int]) -> "AllowedKeys":
        """The allowed keys for only the queries at these positions."""
        if self.packed is not None:
            raise AttentionError(
                "queries of packed sentences were chosen; expected a padded batch or one sentence. "
                "Take the sentence out, and choose its queries."
            )
        return replace(self, queries=tuple(queries))

    @kept
    def length_tensor(self) -> Int[Tensor, " batch"] | None:
        """`lengths` on the device."""
        if self.lengths is None:
            return self.on_device
        return torch.tensor(self.lengths, device=self.device)

    @kept
    def tokens(self) -> TokenMask | None:
        """True where a real token is; None when nothing is padding."""
        if self.length_tensor is None:
            return None
        return torch.arange(self.position, device=self.device) < self.length_tensor[:, None]

    def rows(self, queries: slice | Sequence[int] | None = None) -> AttentionMask | None:
        """True where the queries may look, (batch or 1, 1, query or 1, key); None: everywhere."""
        chosen = self.queries if queries is None else queries
        if chosen is None or isinstance(chosen, slice):
            return self._seen(
                torch.arange(self.position, device=self.device)[chosen or slice(None)]
            )
        return self._seen(torch.tensor(chosen, dtype=torch.int64, device=self.device))

    def _seen(self, positions: Int[Tensor, " query"]) -> AttentionMask | None:
        """True where queries at these positions may look; None: everywhere."""
        allowed = None if self.tokens is None else self.tokens[:, None, None, :]
        if not self.ordered:
            return allowed
        at = positions[:, None]
        if self.ends is not None:
            at = at + (self.ends - self.position)[:, None, None, None]
        near = near_keys(
            at, self.position, causal=self.causal, window=self.window, prefix=self.prefix
        )
        if near is None or allowed is None:
            return allowed if near is None else near
        return near & allowed

    def full(self) -> AttentionMask:
        """The allowed keys, spelled out for every sentence, query and key."""
        size = (self.batch, 1, self.position, self.position)
        rows = self.rows()
        if rows is None:
            return torch.ones(size, dtype=torch.bool, device=self.device)
        return rows.expand(size)

    @kept
    def visible(self) -> AttentionMask | None:
        """`rows()`, made once for all the layers of a pass."""
        return self.rows()

    @property
    def ordered(self) -> bool:
        """True where it matters which position a query has."""
        return self.causal or self.window is not None

    @kept
    def aligned(self) -> bool:
        """True where the queries are the last positions of all keys, one after the other."""
        if self.ends is not None:
            return False
        if self.queries is None:
            return True
        return self.queries == tuple(range(self.position - len(self.queries), self.position))

    @kept
    def in_order(self) -> bool:
        """True where `causal` alone describes the order."""
        return self.causal and self.aligned

    @kept
    def triangle(self) -> bool:
        """True where a square of scores is masked by causal order and by nothing else."""
        unmasked = self.length_tensor is None and self.given is None and self.window is None
        return self.in_order and unmasked and self.prefix is None

    @kept
    def options(self) -> frozenset[str]:
        """The options that an implementation must support for these keys."""
        said = {
            "lengths": self.length_tensor is not None,
            "mask": self.given is not None or (self.ordered and not self.aligned),
            "causal": self.in_order,
            "window": self.window is not None and self.aligned,
            "prefix": self.prefix is not None and self.aligned,
            "packed": self.packed is not None,
            "packed_keys": self.packed_keys is not None,
        }
        return frozenset(name for name, true in said.items() if true)

    @kept
    def padded(self) -> "AllowedKeys":
        """Packed sentences as a batch of one sentence a row."""
        queries = self.packed or ()
        keys = self.packed_keys or queries
        ends: Tensor | None = None
        if keys != queries:
            longest = max(queries)
            both = zip(keys, queries, strict=True)
            ends = torch.tensor([k - q + longest for k, q in both], device=self.device)
        # The queries of a sentence that has fewer keys than there are rows stand before key 0.
        return AllowedKeys(
            len(keys), max(keys), self.device, self.causal, keys,
            window=self.window, prefix=self.prefix, ends=ends,
        )  # fmt: skip

    @kept
    def sentences(self) -> "tuple[AllowedKeys, ...]":
        """The allowed keys of each packed sentence by itself."""
        found: list[AllowedKeys] = []
        for number, n_keys in enumerate(self.packed_keys or self.packed or ()):
            prefix = None if self.prefix is None else self.prefix[number : number + 1]
            found.append(
                AllowedKeys(1, n_keys, self.device, self.causal, window=self.window, prefix=prefix)
            )
        return tuple(found)

    def mask(
        self, n_queries: int, *, lengths: bool = True, order: bool = True, window: bool = True
    ) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """True where that many queries may look; None: everywhere. Made once.

        With `lengths`, `order` (causal order and prefix) or `window` False it leaves them out, for
        implementations that take them separately.
        """
        if not self.ordered and self.length_tensor is None and self.given is None:
            return None
        which = (n_queries, lengths, order, window)
        if which not in self._masks:
            self._masks[which] = self._mask(*which)
        return self._masks[which]

    @kept
    def _masks(self) -> dict[tuple[int, bool, bool, bool], Tensor | None]:
        return {}

    def _mask(self, n_queries: int, lengths: bool, order: bool, window: bool) -> Tensor | None:
        if lengths and order and window and self.queries is None and n_queries == self.position:
            seen = self.visible
        else:
            # A single query at the end sees every key.
            causal = self.causal if self.queries is not None else self.causal and n_queries > 1
            asked = replace(
                self,
                lengths=self.lengths if lengths else None,
                on_device=self.on_device if lengths else None,
                causal=causal and (order or not self.aligned),
                window=self.window if window or not self.aligned else None,
            )
            first = self.position - n_queries
            last = torch.arange(first, self.position, device=self.device)
            seen = asked._seen(last) if self.queries is None else asked.rows()
        if seen is None or self.given is None:
            return self.given if seen is None else seen
        return seen & self.given


def near_keys(
    positions: Int[Tensor, "... query 1"],
    n_keys: int,
    *,
    causal: bool,
    window: Window | None,
    prefix: Int[Tensor, " batch"] | None = None,
) -> Bool[Tensor, "#batch 1 query key"] | None:
    """True where a query at its position may look by causal order, window and prefix; None: all.

    A window (before, after) lets a query at p see the keys p − before … p + after (Beltagy et al.
    2020, section 3.1; Jiang et al. 2023, section 2). The keys of a prefix are seen in spite of
    causal order, by queries whose window they are in (Raffel et al. 2020, section 3.2.1).
    """
    keys = torch.arange(n_keys, device=positions.device)
    near: Tensor | None = None
    if causal:
        near = keys <= positions
        if prefix is not None:
            near = near | (keys < prefix[:, None, None, None])
    before, after = window or (None, None)
    if before is not None:
        inside = keys >= positions - before
        near = inside if near is None else near & inside
    if after is not None and (prefix is not None or not causal):
        inside = keys <= positions + after
        near = inside if near is None else near & inside
    return near if near is None or near.ndim == 4 else near[None, None]


def open_dead_rows(
    allowed: Bool[Tensor, "#batch #head #query #key"],
) -> tuple[Bool[Tensor, "#batch #head #query #key"], Bool[Tensor, "#batch #head #query 1"] | None]:
    """The mask with its dead rows opened, and the rows that are alive; None where all are.

    A row without an allowed key has no softmax: −inf throughout gives NaN, forward and backward. So
    such a row is computed over all keys, and replaced by 0 (lse: −inf) at the end.
    """
    # amax over bytes is some 20 x faster than any() over booleans.
    alive = allowed.view(torch.uint8).amax(dim=-1, keepdim=True).bool()
    # In a graph no number is looked at.
    if not torch.compiler.is_compiling() and bool(alive.all()):
        return allowed, None
    return allowed | ~alive, alive


def additive_mask(
    allowed: Bool[Tensor, "#batch #head #query #key"], dtype: torch.dtype
) -> Float[Tensor, "#batch #head #query #key"]:
    """The mask as a bias on the scores: 0 where allowed, −inf elsewhere, in `dtype`."""
    return torch.where(allowed, 0.0, -math.inf).to(dtype)
