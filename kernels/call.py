"""One attention call, as the model, every implementation and the checker describe it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels.requests import Want
from minibert.quantities import AttentionMask, Bool, Float, Int, TokenMask

__all__ = ["AllowedKeys", "Call", "kept"]

Made = TypeVar("Made")


class kept(Generic[Made]):  # noqa: N801, a decorator like `property`
    """A property made once. That of functools has a lock, which torch cannot compile."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> Made:
        made = self.make(owner)
        object.__setattr__(owner, self.name, made)
        return made


@dataclass(frozen=True, eq=False)
class AllowedKeys:
    """Which keys a query may see, without an N x N tensor until somebody asks for one.

    All layers of a pass share one: what is made of it is made once and kept.

    batch, position   sentences, and keys of each, padding included
    causal            a query sees the keys up to its own position
    lengths           real tokens of each sentence, which come first; None: all are real
    packed            tokens of each sentence, where the sentences lie one after the other in a
                      batch of one and each sees itself alone
    queries           the positions the queries stand at; None: as many as there are queries, the
                      last one at the end
    given             a mask beside all this, True where attention is allowed
    """

    batch: int
    position: int
    device: torch.device
    causal: bool = False
    lengths: tuple[int, ...] | None = None
    packed: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    given: Bool[Tensor, "#batch #head #query #key"] | None = None

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
        if self.packed is not None:
            raise AttentionError(
                "queries of packed sentences were chosen; expected a padded batch or one sentence. "
                "Take the sentence out, and choose its queries."
            )
        return replace(self, queries=tuple(queries))

    @kept
    def length_tensor(self) -> Int[Tensor, " batch"] | None:
        """`lengths` on the device."""
        return None if self.lengths is None else torch.tensor(self.lengths, device=self.device)

    @kept
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

    @kept
    def visible(self) -> AttentionMask | None:
        """`rows()`, made once for all the layers of a pass."""
        return self.rows()

    @kept
    def in_order(self) -> bool:
        """True where `causal` says it all: the queries are the last ones, one after the other."""
        if not self.causal or self.queries is None:
            return self.causal
        return self.queries == tuple(range(self.position - len(self.queries), self.position))

    @kept
    def triangle(self) -> bool:
        """True where a square of scores is masked by causal order and by nothing else."""
        return self.in_order and self.lengths is None and self.given is None

    @kept
    def options(self) -> frozenset[str]:
        """The names of what an implementation must be told about these keys."""
        said = {
            "lengths": self.lengths is not None,
            "mask": self.given is not None or self.causal != self.in_order,
            "causal": self.in_order,
            "packed": self.packed is not None,
        }
        return frozenset(name for name, true in said.items() if true)

    @kept
    def padded(self) -> "AllowedKeys":
        """Packed sentences as a batch of one sentence a row."""
        lengths = self.packed or ()
        return AllowedKeys(len(lengths), max(lengths), self.device, self.causal, lengths)

    def mask(
        self, n_queries: int, *, lengths: bool = True, causal: bool = True
    ) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """True where that many queries may look; None: everywhere. Made once.

        Without `lengths` or `causal` it leaves out what they say, for whoever is told those apart.
        """
        if not self.causal and self.lengths is None and self.given is None:
            return None
        which = (n_queries, lengths, causal)
        if which not in self._masks:
            self._masks[which] = self._mask(n_queries, lengths=lengths, causal=causal)
        return self._masks[which]

    @kept
    def _masks(self) -> dict[tuple[int, bool, bool], Tensor | None]:
        return {}

    def _mask(self, n_queries: int, *, lengths: bool, causal: bool) -> Tensor | None:
        if lengths and causal and self.queries is None and n_queries == self.position:
            seen = self.visible
        else:
            # A single query at the end sees every key.
            ordered = self.causal if self.queries is not None else self.causal and n_queries > 1
            ordered = ordered and (causal or not self.in_order)
            kept = replace(self, lengths=self.lengths if lengths else None, causal=ordered)
            last = slice(self.position - n_queries, None)
            seen = kept.rows(last if self.queries is None else None)
        if seen is None or self.given is None:
            return self.given if seen is None else seen
        return seen & self.given


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
    """By name, "lse" among them; with the parameters of those that have some."""

    def options(self) -> dict[str, Any]:
        """The keywords that an implementation takes, by name."""
        keys = self.allowed
        apart = None if "mask" not in keys.options else self._mask_apart()
        return {
            "lengths": keys.length_tensor,
            "mask": apart,
            "causal": keys.in_order,
            "scale": self.scale,
            "bias": self.bias,
            "want": self.want,
            "packed": keys.packed,
        }

    def _mask_apart(self) -> Tensor | None:
        return self.allowed.mask(self.query.shape[2], lengths=False, causal=False)
