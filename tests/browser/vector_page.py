"""Pages with query, key and value, for the neuron and the arithmetic view: random, seeded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attention_pages import FakeSizes, FakeTokens, FakeTrace

from minibert.viz import viewing

TOKENS = ("[CLS]", "straw", "##berries", "[SEP]", "rain", "falls", "[SEP]")
LAYERS, HEADS, WIDTH = 2, 3, 11

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Vectors:
    """query, key and value, each (layer, head, position, d_head), and what they make."""

    query: Array
    key: Array
    value: Array
    causal: bool
    scale: float

    @property
    def rounded(self) -> "Vectors":
        """As a page holds them in half precision."""
        query, key, value = (part.astype(np.float16) for part in (self.query, self.key, self.value))
        return Vectors(query, key, value, self.causal, self.scale)

    def scores(self, layer: int, head: int) -> Array:
        query, key = (part[layer, head].astype(np.float64) for part in (self.query, self.key))
        return query @ key.T * self.scale

    def probs(self, layer: int, head: int) -> Array:
        scores = self.scores(layer, head)
        if self.causal:
            scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def some_vectors(
    n_tokens: int = len(TOKENS), *, causal: bool = False, width: int = WIDTH, heads: int = HEADS
) -> Vectors:
    numbers = np.random.default_rng(7).normal(0, 1.3, (3, LAYERS, heads, n_tokens, width))
    query, key, value = numbers.astype(np.float32)
    return Vectors(query, key, value, causal, float(1 / np.sqrt(width)))


def vector_page(
    vectors: Vectors,
    tokens: tuple[str, ...] = TOKENS,
    *,
    exact: tuple[int, int] | None = None,
    edited: bool = False,
    view: str = "neuron",
) -> str:
    """The HTML of a page; `exact` (layer, head) is there in single precision, and no other."""
    n_layers, n_heads, n_tokens, width = vectors.query.shape[:4]
    each = [[vectors.probs(i, j) for j in range(n_heads)] for i in range(n_layers)]
    probs = np.array(each, np.float32)[:, None, :: -1 if edited else 1]
    labels = FakeTokens(
        raw=(tokens,),
        strings=(tuple(one.removeprefix("##") for one in tokens),),
        segments=torch.zeros((1, n_tokens), dtype=torch.int64),
        special=(tuple(one.startswith("[") for one in tokens),),
        texts=(),
        spans=((None,) * n_tokens,),
    )
    numbers = torch.from_numpy(np.stack([vectors.query, vectors.key, vectors.value])[:, :, None])
    sizes = FakeSizes(n_layers, n_heads, width, vectors.causal)
    trace = FakeTrace(torch.from_numpy(probs.copy()), numbers, labels, sizes)
    return viewing.view(trace, view=view, vectors=exact is None, exact=exact).html
