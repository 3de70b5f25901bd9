"""What the tests of pages share: random attention, a stand-in for a trace, hostile text."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LAYERS, HEADS, TOKENS = 3, 5, 7
HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"'`${window.pwned=1}",
    "\u202egnp.exe",
    "👩‍👩‍👧",
    "a\x00b",
    "\ud800",
    "<!--",
    "{{script}}",
    "x" * 10_000,
)


def softmax(shape: tuple[int, ...], *, causal: bool = False, seed: int = 0) -> np.ndarray:
    """Random attention: rows add up to one."""
    scores = np.random.default_rng(seed).normal(0, 2, shape)
    if causal:
        scores = np.where(np.tril(np.ones(shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def names(n: int) -> list[str]:
    return [f"t{i}" for i in range(n)]


@dataclass
class FakeTokens:
    raw: Any
    strings: Any
    segments: Any
    special: Any
    texts: Any
    spans: Any = ((None,) * TOKENS, (None,) * 5)


@dataclass
class FakeSizes:
    n_layers: int
    n_heads: int


@dataclass
class FakeLayer:
    probs: torch.Tensor


@dataclass
class FakeTrace:
    """A trace of two sentences, of 7 and 5 tokens, padded to 7."""

    probs: torch.Tensor  # (layer, batch, head, query, key)
    tokens: FakeTokens
    config: FakeSizes
    model_name: str = "fake"

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, layer: int) -> FakeLayer:
        return FakeLayer(self.probs[layer])


def fake_trace() -> FakeTrace:
    """A pair and a single sentence, with random weights."""
    raw = (("[CLS]", "straw", "##berries", "[SEP]", "rain", "falls", "[SEP]"), tuple(names(5)))
    tokens = FakeTokens(
        raw=raw,
        strings=(("[CLS]", "straw", "berries", *raw[0][3:]), raw[1]),
        segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0] * 7]),
        special=tuple(tuple(token.startswith("[") for token in row) for row in raw),
        texts=(("Strawberries", "rain falls"), ("five tokens",)),
    )
    probs = torch.from_numpy(softmax((LAYERS, 2, HEADS, TOKENS, TOKENS)))
    return FakeTrace(probs, tokens, FakeSizes(LAYERS, HEADS))
