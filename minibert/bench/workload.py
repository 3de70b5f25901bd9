"""What is timed: a batch of attention of one shape, its inputs, and what it costs at least."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FLOP_FORMULA", "Inputs", "Workload", "workloads"]

#: query·key and probs·value: a multiplication and an addition for each d_head, twice.
FLOP_FORMULA = "4 * d_head * allowed (query, key) pairs"


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of a call, and how they get new numbers.

    A seed says all numbers but one: that of the key and the value at position 0 of each head. It
    comes with the call. Every query sees it, so that nothing can be computed before.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor | None

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """query, key and value."""
        return self.query, self.key, self.value

    def refresh(self, seed: int) -> None:
        """The numbers of this seed, in the same memory."""
        generator = torch.Generator(self.query.device).manual_seed(seed)
        for one in self.vectors:
            one.normal_(generator=generator)

    def complete(self, last: float) -> None:
        """Put the last number in its places."""
        self.key[:, :, 0].fill_(last)
        self.value[:, :, 0].fill_(last)


@dataclass(frozen=True)
class Workload:
    """Self-attention of a batch; lengths "full", or "varied" from a quarter to all of tokens."""

    batch: int
    heads: int
    tokens: int
    d_head: int
    dtype: str
    causal: bool
    lengths: str = "full"

    def fields(self) -> dict[str, Any]:
        """The fields of a row."""
        return asdict(self)

    def real_keys(self) -> list[int]:
        """The length of each sentence."""
        if self.lengths == "full":
            return [self.tokens] * self.batch
        steps = max(1, self.batch - 1)
        return [max(1, round(self.tokens * (1 - 0.75 * i / steps))) for i in range(self.batch)]

    def draw(self, device: torch.device) -> Inputs:
        """Inputs on this device."""
        shape = (self.batch, self.heads, self.tokens, self.d_head)
        dtype = getattr(torch, self.dtype)
        query, key, value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
        lengths = None
        if self.lengths != "full":
            lengths = torch.tensor(self.real_keys(), device=device)
        return Inputs(query, key, value, lengths)

    @property
    def pairs(self) -> int:
        """The (query, key) pairs that are allowed, in all heads: padded queries count."""
        n = self.tokens
        if not self.causal:
            return self.heads * sum(n * length for length in self.real_keys())
        return self.heads * sum(
            length * (length + 1) // 2 + (n - length) * length for length in self.real_keys()
        )

    @property
    def flop(self) -> int:
        """`FLOP_FORMULA`."""
        return 4 * self.d_head * self.pairs

    @property
    def bytes(self) -> int:
        """query, key, value read once and z written once."""
        itemsize: int = getattr(torch, self.dtype).itemsize
        return 4 * self.batch * self.heads * self.tokens * self.d_head * itemsize


def workloads(
    *,
    tokens: list[int],
    dtypes: list[str],
    orders: list[bool],
    d_head: int,
    heads: int,
    batch: int | None,
    total: int,
    lengths: str,
) -> Iterator[Workload]:
    """Every combination; without `batch` as many sentences as make `total` tokens."""
    for dtype in dtypes:
        for causal in orders:
            for n in tokens:
                size = batch or max(1, total // n)
                yield Workload(size, heads, n, d_head, dtype, causal, lengths)
