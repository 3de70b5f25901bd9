"""What is checked and timed, declared once: the fields of a call, and what follows from them.

Inputs (`drawing.py`), truth, tolerances and likely causes follow from the declaration, and the
work that a roofline needs: operations, exponentials and bytes, counted exactly.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import AttentionError

#: Keys before and after its own position that a query sees; None: as many as there are.
Window = tuple[int | None, int | None]
#: Keys of a page, as in vLLM (Kwon et al. 2023).
PAGE = 16


@dataclass(frozen=True)
class Sentence:
    """How many queries and keys one sentence has, and the position of its first query."""

    queries: int
    keys: int
    first: int

    def seen(self, work: "Workload") -> tuple[Tensor, Tensor]:
        """The first key that each query sees, and the last; the last is smaller where none is."""
        position = self.first + torch.arange(self.queries)
        low, high = torch.zeros_like(position), torch.full_like(position, self.keys - 1)
        if work.causal:
            # The keys of a prefix are seen in spite of the order.
            high = torch.minimum(high, position.clamp_min(work.prefix - 1))
        before, after = work.window or (None, None)
        if before is not None:
            low = (position - before).clamp_min(0)
        if after is not None and (not work.causal or work.prefix):
            high = torch.minimum(high, position + after)
        return low, high


@dataclass(frozen=True)
class Workload:
    """One attention call: a batch of sentences of the same kind.

    tokens     keys of the longest sentence
    lengths    "full", or "varied": from all tokens down to a quarter of them
    queries    None: as many as keys; else the last ones
    key_heads  heads of key and value; None: as many as of query
    d_value    size of a value; None: d_head
    layout     "padded", "packed" (one after the other, batch 1) or "paged" (pages of 16 keys)
    window     keys before and after its own position that a query sees
    prefix     keys that all queries see, in spite of causal
    backward   the gradients of query, key and value for a given gradient of z as well
    scale      None: 1/sqrt(d_head)
    strided    memory is (batch, position, head, d_head), as a model hands over its views
    dead_rows  some queries may see no key, where what is asked says so
    """

    batch: int
    heads: int
    tokens: int
    d_head: int
    dtype: str
    causal: bool
    lengths: str = "full"
    queries: int | None = None
    key_heads: int | None = None
    d_value: int | None = None
    layout: str = "padded"
    window: Window | None = None
    prefix: int = 0
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    mask: bool = False
    bias: bool = False
    strided: bool = False
    scale: float | None = None
    backward: bool = False
    dead_rows: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        # From JSON a pair comes as a list, which has no hash.
        if self.window is not None:
            before, after = self.window
            object.__setattr__(self, "window", (before, after))

    def fields(self) -> dict[str, Any]:
        """The fields of a row."""
        return asdict(self)

    @property
    def n_queries(self) -> int:
        """Queries of the longest sentence."""
        return self.tokens if self.queries is None else self.queries

    @property
    def n_key_heads(self) -> int:
        """Heads of key and value."""
        return self.key_heads or self.heads

    @property
    def value_size(self) -> int:
        """The size of a value."""
        return self.d_value or self.d_head

    @property
    def factor(self) -> float:
        """The scale of the scores."""
        return 1 / math.sqrt(self.d_head) if self.scale is None else self.scale

    def asks(self) -> frozenset[str]:
        """The options and shapes of `Implementation` that a function must take for it."""
        packed, paged = self.layout == "packed", self.layout == "paged"
        said = {
            "lengths": paged or (self.lengths != "full" and not packed),
            "packed": packed,
            "packed_keys": packed and self.queries is not None,
            "pages": paged,
            "causal": self.causal,
            "window": self.window is not None,
            "prefix": self.prefix > 0,
            "soft_cap": self.soft_cap is not None,
            "alibi_slopes": self.alibi,
            "sinks": self.sinks,
            "mask": self.mask,
            "bias": self.bias,
            "scale": self.scale is not None,
            "groups": self.n_key_heads != self.heads,
            "value_size": self.value_size != self.d_head,
        }
        return frozenset(name for name, true in said.items() if true)

    def real_keys(self) -> list[int]:
        """The length of each sentence."""
        if self.lengths == "full":
            return [self.tokens] * self.batch
        steps = max(1, self.batch - 1)
        return [max(1, round(self.tokens * (1 - 0.75 * i / steps))) for i in range(self.batch)]

    def sentences(self) -> Iterator[Sentence]:
        """Each sentence; a padded one has the queries of the longest."""
        for keys in self.real_keys():
            if self.layout == "packed":
                queries = math.ceil(keys * self.n_queries / self.tokens)
                yield Sentence(queries, keys, keys - queries)
            else:
                end = keys if self.layout == "paged" else self.tokens
                yield Sentence(self.n_queries, keys, end - self.n_queries)

    @property
    def pairs(self) -> int:
        """The (query, key) pairs that are allowed, in all heads: padded queries count.

        Causal order, window, prefix and lengths are counted to the key.
        """
        total = 0
        for one in self.sentences():
            low, high = one.seen(self)
            total += int((high - low + 1).clamp_min(0).sum())
        return self.heads * total

    @property
    def flop(self) -> int:
        """Multiplications and additions, as `flop_formula` says."""
        forward = 2 * (self.d_head + self.value_size)
        backward = 6 * self.d_head + 4 * self.value_size if self.backward else 0
        return (forward + backward) * self.pairs

    @property
    def flop_formula(self) -> str:
        """What `flop` counts: two products forward, five backward (Dao 2023, section 3.1)."""
        formula = "2 * (d_head + d_value)"
        if self.backward:
            formula = f"({formula} + 6 * d_head + 4 * d_value)"
        return f"{formula} * allowed (query, key) pairs"

    @property
    def bytes(self) -> int:
        """query read once and z written once, and once the keys and values that a query sees.

        Backward: the same inputs once more, z and its gradient read, three gradients written.
        """
        rows = sum(one.queries for one in self.sentences()) * self.heads
        keys = sum(self._keys_seen(one) for one in self.sentences()) * self.n_key_heads
        vectors = rows * self.d_head + keys * (self.d_head + self.value_size)
        z = rows * self.value_size
        numbers = 3 * vectors + 3 * z if self.backward else vectors + z
        itemsize: int = getattr(torch, self.dtype).itemsize
        return numbers * itemsize

    def _keys_seen(self, one: Sentence) -> int:
        low, high = one.seen(self)
        alive = high >= low
        steps = torch.zeros(one.keys + 1, dtype=torch.int64)
        ones = torch.ones_like(low[alive])
        steps.index_add_(0, low[alive], ones).index_add_(0, high[alive] + 1, -ones)
        return int((steps.cumsum(0) > 0).sum())

    def cut(self, tokens: int, *, batch: int | None = None, heads: int | None = None) -> "Workload":
        """The same at another size: window and prefix shrink with the tokens, groups stay.

        The groups are at most as many queries a key head as there are heads.
        """
        heads = min(heads or self.heads, self.heads)
        groups = min(self.heads // self.n_key_heads, heads)

        def less(size: int | None) -> int | None:
            return None if size is None else math.ceil(size * tokens / self.tokens)

        queries = None if self.queries is None else less(self.queries)
        return replace(
            self,
            tokens=tokens,
            batch=min(batch or self.batch, self.batch),
            heads=heads // groups * groups,
            key_heads=heads // groups,
            queries=queries,
            window=None if self.window is None else (less(self.window[0]), less(self.window[1])),
            prefix=less(self.prefix) or 0,
        )

    def about(self) -> str:
        """What batch, heads, tokens, d_head, dtype, causal and lengths leave unsaid; may be ""."""
        before, after = self.window or (None, None)
        sides = [f"{n} {side}" for n, side in ((before, "before"), (after, "after")) if n]
        said = {
            "1 query" if self.queries == 1 else f"{self.queries} queries": self.queries is not None,
            f"{self.n_key_heads} key heads": self.n_key_heads != self.heads,
            f"d_value {self.value_size}": self.value_size != self.d_head,
            self.layout: self.layout != "padded",
            f"window {' and '.join(sides) or '0'}": self.window is not None,
            f"prefix {self.prefix}": self.prefix > 0,
            f"soft cap {self.soft_cap or 0:g}": self.soft_cap is not None,
            "ALiBi": self.alibi,
            "sinks": self.sinks,
            "forward and backward": self.backward,
        }
        return ", ".join(text for text, true in said.items() if true)


def _named(name: str, sizes: tuple[int, int, int, int], **fields: Any) -> Workload:
    batch, heads, tokens, d_head = sizes
    asked: dict[str, Any] = {"dtype": "bfloat16", "causal": True} | fields
    return Workload(batch, heads, tokens, d_head, name=name, **asked)


#: The attention of models that people run, from the config files of their publishers. Grouped
#: heads: Llama 3 (Grattafiori et al. 2024), Mistral 7B v0.1, whose window of 4096 counts the query
#: itself (Jiang et al. 2023), Gemma 2 9B (Gemma Team 2024); 192 numbers a key and 128 a value:
#: DeepSeek-V3 (2024).
WORKLOADS = {
    one.name: one
    for one in (
        _named("bert-base-512", (32, 12, 512, 64), causal=False, lengths="varied"),
        _named("gpt2-1024", (16, 12, 1024, 64)),
        _named("llama3-8b-prefill", (2, 32, 8192, 128), key_heads=8),
        _named(
            "llama3-8b-decode",
            (32, 32, 8192, 128),
            key_heads=8,
            queries=1,
            layout="paged",
            lengths="varied",
        ),
        _named("mistral-window", (1, 32, 16384, 128), key_heads=8, window=(4095, None)),
        _named("gemma2-soft-cap", (2, 16, 8192, 256), key_heads=8, soft_cap=50.0),
        _named("deepseek-mla", (4, 128, 4096, 192), d_value=128),
        _named("vit", (64, 12, 197, 64), causal=False),
    )
}


def workload_named(name: str) -> Workload:
    """The workload of this name. Raises AttentionError when there is none."""
    if name not in WORKLOADS:
        raise AttentionError(f"no workload {name}; known are {', '.join(WORKLOADS)}.")
    return WORKLOADS[name]
