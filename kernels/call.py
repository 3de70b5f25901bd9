"""One attention call, as the model, every implementation and the checker describe it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from minibert.kernels.requests import Want
from minibert.quantities import AttentionMask, Bool, Float, Int, TokenMask

__all__ = ["AllowedKeys", "Call"]


@dataclass(frozen=True, eq=False)
class AllowedKeys:
    """Which keys a query may see, without an N x N tensor until somebody asks for one.

    batch, position   sentences, and keys of each, padding included
    causal            a query sees the keys up to its own position
    lengths           real tokens of each sentence, which come first; None: all are real
    packed            tokens of each sentence, where the sentences lie one after the other in a
                      batch of one and each sees itself alone
    queries           the positions the queries stand at; None: as many as there are queries, the
                      last one at the end
    """

    batch: int
    position: int
    device: torch.device
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    packed: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None

    @classmethod
    def of(cls, mask: TokenMask | None, *, causal: bool, ids: Tensor) -> "AllowedKeys":
        """The allowed keys of a batch of ids, of which `mask` is True where a real token is."""
        batch, position = ids.shape
        lengths = None if mask is None else tuple(mask.sum(1).tolist())
        if lengths is not None and min(lengths) == position:
            lengths = None
        return cls(batch, position, ids.device, causal, lengths)

    def at(self, queries: Sequence[int]) -> "AllowedKeys":
        """The same keys for the queries at these positions alone."""
        return replace(self, queries=tuple(queries))

    @cached_property
    def length_tensor(self) -> Int[Tensor, " batch"] | None:
        """`lengths` on the device."""
        return None if self.lengths is None else torch.tensor(self.lengths, device=self.device)

    @cached_property
    def tokens(self) -> TokenMask | None:
        """True where a real token is; None when nothing is padding."""
        if self.length_tensor is None:
            return None
        return torch.arange(self.position, device=self.device) < self.length_tensor[:, None]

    def rows(self, queries: slice | Sequence[int] | None = None) -> AttentionMask | None:
        """True where the queries may look, (batch or 1, 1, query or 1, key); None: everywhere."""
        chosen = self.queries if queries is None else queries
        where = slice(None) if chosen is None else chosen
        allowed = None if self.tokens is None else self.tokens[:, None, None, :]
        if not self.causal:
            return allowed
        position = torch.arange(self.position, device=self.device)
        where = where if isinstance(where, slice) else list(where)
        past = (position[None, :] <= position[where, None])[None, None]
        return past if allowed is None else past & allowed

    def full(self) -> AttentionMask:
        """The same, spelled out for every sentence, query and key."""
        size = (self.batch, 1, self.position, self.position)
        rows = self.rows()
        if rows is None:
            return torch.ones(size, dtype=torch.bool, device=self.device)
        return rows.expand(size)

    @cached_property
    def visible(self) -> AttentionMask | None:
        """`rows()`, made once for all the layers of a pass."""
        return self.rows()

    @cached_property
    def mask(self) -> Bool[Tensor, "1 1 query key"] | None:
        """What lengths and the order of the last queries do not say: queries that are chosen."""
        if self.queries is None or not self.causal:
            return None
        return replace(self, lengths=None).rows()


@dataclass(frozen=True, eq=False)
class Call:
    """query, key and value of one layer, which keys may be seen, and what is wanted beside z.

    z = softmax(scale · query · keyᵀ + bias, over the allowed keys) · value. query is (batch, head,
    query, d_head); key and value are (batch, head, key, d_head). Packed sentences are a batch of
    one: (1, head, token, d_head).
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch head key d_head"]
    value: Float[Tensor, "batch head key d_head"]
    scale: float
    allowed: AllowedKeys
    bias: Float[Tensor, "#batch #head #query #key"] | None = None
    want: Want = field(default_factory=dict)
