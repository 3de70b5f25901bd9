"""Every kind of call that the parity matrix asks about, declared once: a new field is one line.

The calls go through `attend`, as a user's do. They are small: two sentences, some heads, one length
past a tile; what matters is that each is another kernel.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["DTYPES", "D_HEADS", "OPTIONS", "STATISTICS", "Drawn", "draw", "wanted"]

D_HEADS = (64, 128, 32, 256, 16)
DTYPES = ("bfloat16", "float16", "float32")
#: Heads and positions: more than one tile of every kernel, and no multiple of one.
BATCH, HEADS, POSITIONS, PAGE = 2, 4, 300, 16
STATISTICS = (
    *("row_max", "max_prob", "entropy", "argmax", "received", "offset_mass"),
    ("key_mass", (0, 7)),
    ("map", 8),
)


@dataclass(frozen=True)
class Drawn:
    """The tensors and keywords of one call of `attend`."""

    query: Tensor
    key: Tensor
    value: Tensor
    keywords: Mapping[str, Any]

    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """query, key and value."""
        return self.query, self.key, self.value

    def with_gradient(self) -> "Drawn":
        """The same numbers, of which query, key, value and bias ask for their gradient."""
        leaves = [one.detach().requires_grad_() for one in self.vectors()]
        bias = self.keywords.get("bias")
        asked = {} if bias is None else {"bias": bias.detach().requires_grad_()}
        return Drawn(*leaves, {**self.keywords, **asked})

    def leaves(self) -> dict[str, Tensor]:
        """What asks for its gradient, by name."""
        named = {"query": self.query, "key": self.key, "value": self.value, **self.keywords}
        return {n: one for n, one in named.items() if isinstance(one, Tensor) and one.requires_grad}

    def to(self, device: torch.device, dtype: torch.dtype) -> "Drawn":
        """The same numbers on another device, those that are no whole numbers in `dtype`."""

        def moved(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            return one.detach().to(device, dtype if one.is_floating_point() else one.dtype)

        given = {name: moved(one) for name, one in self.keywords.items()}
        return Drawn(moved(self.query), moved(self.key), moved(self.value), given)


class _Draw:
    """Random numbers of one dtype on one device, the same on every device."""

    def __init__(self, d_head: int, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.d_head, self.dtype, self.device = d_head, dtype, device
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        numbers = torch.randn(shape, generator=self.generator)
        return numbers.to(self.device, dtype or self.dtype)

    def flags(self, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=self.generator) < 0.7).to(self.device)

    def whole(self, *numbers: int) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def vectors(
        self,
        *,
        batch: int = BATCH,
        heads: int = HEADS,
        kv_heads: int | None = None,
        queries: int = POSITIONS,
        keys: int | None = None,
        d_value: int | None = None,
    ) -> dict[str, Tensor]:
        """query, key and value; as many keys as queries unless told."""
        kv_heads, keys = kv_heads or heads, keys or queries
        return {
            "query": self.normal(batch, heads, queries, self.d_head),
            "key": self.normal(batch, kv_heads, keys, self.d_head),
            "value": self.normal(batch, kv_heads, keys, d_value or self.d_head),
        }

    def strided(self) -> dict[str, Tensor]:
        """As a model hands them over: (batch, position, head, d_head) in memory."""
        given = self.vectors()
        return {n: one.transpose(1, 2).contiguous().transpose(1, 2) for n, one in given.items()}

    def pages(self) -> dict[str, Any]:
        """One query a sentence, and its keys in pages that lie in any order."""
        count = -(-POSITIONS // PAGE)
        order = torch.randperm(BATCH * count, generator=self.generator)
        keys = self.normal(BATCH * count, HEADS, PAGE, self.d_head)
        return {
            "query": self.normal(BATCH, HEADS, 1, self.d_head),
            "key": keys,
            "value": self.normal(*keys.shape),
            "pages": order.reshape(BATCH, count).to(self.device, torch.int32),
            "lengths": self.whole(POSITIONS, POSITIONS // 3),
        }


N = POSITIONS
Made = dict[str, Any]
#: By name what differs from a plain call: other tensors, and keywords of `attend`.
OPTIONS: dict[str, Callable[[_Draw], Made]] = {
    "plain": lambda draw: {},
    "causal": lambda draw: {"causal": True},
    "lengths": lambda draw: {"lengths": draw.whole(N, N // 3)},
    "causal lengths": lambda draw: {"causal": True, "lengths": draw.whole(N, 0)},
    "mask": lambda draw: {"mask": draw.flags(BATCH, 1, N, N)},
    "bias": lambda draw: {"bias": draw.normal(1, HEADS, N, N)},
    "packed": lambda draw: {**draw.vectors(batch=1), "packed": (1, N // 3, N - 1 - N // 3)},
    "packed causal": lambda draw: {
        **draw.vectors(batch=1), "packed": (1, N // 3, N - 1 - N // 3), "causal": True,
    },
    "groups": lambda draw: {**draw.vectors(kv_heads=2), "causal": True},
    "window": lambda draw: {"window": (70, 0), "causal": True},
    "window both": lambda draw: {"window": (7, 40)},
    "soft cap": lambda draw: {"soft_cap": 5.0},
    "alibi": lambda draw: {
        "alibi_slopes": torch.logspace(-1, -8, HEADS, 2.0, device=draw.device), "causal": True,
    },
    "sinks": lambda draw: {"sinks": draw.normal(HEADS, dtype=torch.float32)},
    "prefix": lambda draw: {"prefix": draw.whole(N // 2, 0), "causal": True},
    "strided": lambda draw: draw.strided(),
    "scale": lambda draw: {"scale": -0.37},
    "causal cache": lambda draw: {**draw.vectors(queries=70, keys=N), "causal": True},
    "decode": lambda draw: {**draw.vectors(queries=1, keys=N), "lengths": draw.whole(N, N // 3)},
    "pages": lambda draw: draw.pages(),
    "value size": lambda draw: draw.vectors(d_value=2 * draw.d_head),
    "packed keys": lambda draw: {
        **draw.vectors(batch=1, queries=70, keys=N),
        "packed": (30, 40), "packed_keys": (100, N - 100),
    },
}  # fmt: skip


def draw(option: str, d_head: int, dtype: str, device: torch.device, *, seed: int = 0) -> Drawn:
    """The call of an option of OPTIONS; another seed gives other numbers."""
    source = _Draw(d_head, getattr(torch, dtype), device, seed)
    made = {**source.vectors(), **OPTIONS[option](source)}
    vectors = [made.pop(name) for name in ("query", "key", "value")]
    return Drawn(*vectors, {"scale": 1 / math.sqrt(d_head), **made})


def wanted(option: str) -> tuple[Any, ...]:
    """The statistics that such a call can be asked for."""
    if option == "packed keys":
        return tuple(one for one in STATISTICS if one not in (("map", 8), "offset_mass"))
    if "packed" in option:
        return tuple(one for one in STATISTICS if one != ("map", 8))
    return () if option == "pages" else STATISTICS
