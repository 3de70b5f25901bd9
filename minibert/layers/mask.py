"""Which keys a query may attend to, without an N x N tensor until somebody asks for one."""

from dataclasses import dataclass

import torch

from minibert.quantities import AttentionMask, TokenMask


@dataclass(frozen=True)
class AllowedKeys:
    """The padding mask of a batch and whether the future is hidden."""

    tokens: TokenMask | None
    """True where a real token is; None when nothing is padding."""
    causal: bool
    batch: int
    position: int
    device: torch.device
    lengths: tuple[int, ...] | None = None
    """Tokens of each sentence where the sentences lie one after the other in a batch of one."""

    @classmethod
    def of(cls, mask: TokenMask | None, *, causal: bool, ids: torch.Tensor) -> "AllowedKeys":
        """The allowed keys of a batch of ids; a mask that hides nothing is forgotten."""
        if mask is not None and bool(mask.all()):
            mask = None
        batch, position = ids.shape
        return cls(mask, causal, batch, position, ids.device)

    def rows(self, queries: slice | list[int] = slice(None)) -> AttentionMask | None:
        """True where the queries may look, (batch or 1, 1, query or 1, key); None: everywhere."""
        allowed = None if self.tokens is None else self.tokens[:, None, None, :]
        if not self.causal:
            return allowed
        position = torch.arange(self.position, device=self.device)
        past = (position[None, :] <= position[queries, None])[None, None]
        return past if allowed is None else past & allowed

    def full(self) -> AttentionMask:
        """The same, spelled out for every sentence, query and key."""
        size = (self.batch, 1, self.position, self.position)
        rows = self.rows()
        return (
            torch.ones(size, dtype=torch.bool, device=self.device)
            if rows is None
            else rows.expand(size)
        )
