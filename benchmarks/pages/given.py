"""The attention that both programs show: random, seeded, with the peaks that real heads have.

probs = softmax(query · key / sqrt(d_head)), so that weights and vectors of a page say the same.
Each head looks, more or less sharply, at a neighbour, at itself, at the ends, or anywhere.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.pages.plan import Shape

WIDTH = 64
SCALE = WIDTH**-0.5
WORDS = ("the", "straw", "##berries", "were", "red", "and", "fresh", "so", "we", "bought", "##s")

Array = npt.NDArray[np.float32]


def token_strings(n: int) -> list[str]:
    """`n` strings of a word-piece vocabulary, special ones at both ends."""
    return ["[CLS]", *(WORDS[i % len(WORDS)] for i in range(n - 2)), "[SEP]"]


def vectors(shape: Shape, layer: int) -> tuple[Array, Array, Array]:
    """query, key and value of a layer, (head, position, d_head)."""
    generator = np.random.default_rng([7, shape.layers, shape.heads, shape.tokens, layer])
    size = (3, shape.heads, shape.tokens, WIDTH)
    query, key, value = generator.standard_normal(size, dtype=np.float32)
    places = generator.standard_normal((shape.tokens + 2, WIDTH), dtype=np.float32)
    end = generator.standard_normal(WIDTH, dtype=np.float32)
    for head in range(shape.heads):
        offset, (sharp, ending) = generator.integers(0, 3), generator.uniform(0, (1.3, 0.9))
        query[head] += sharp * places[1:-1] + ending * end
        key[head] += sharp * places[offset : offset + shape.tokens]
        key[head, [0, -1]] += ending * end
    return query, key, value


def probs(shape: Shape, layer: int) -> Tensor:
    """The weights of a layer, (head, query, key)."""
    query, key, _ = map(torch.from_numpy, vectors(shape, layer))
    return (query @ key.mT * SCALE).softmax(-1)


def attention(shape: Shape) -> list[Tensor]:
    """What transformers would give: (1, head, query, key) of each layer."""
    return [probs(shape, layer)[None] for layer in range(shape.layers)]


class GivenTrace:
    """What minibert.viz.view reads of a trace, all of it computed before."""

    def __init__(self, shape: Shape) -> None:
        from minibert import Tokens

        strings = tuple(token_strings(shape.tokens))
        ids = torch.arange(shape.tokens)[None]
        nothing = tuple((None,) * len(strings) for _ in range(1))
        readable = tuple(string.removeprefix("##") for string in strings)
        special = tuple(string.startswith("[") for string in strings)
        self.tokens = Tokens(
            ids=ids,
            mask=torch.ones_like(ids, dtype=torch.bool),
            segments=torch.zeros_like(ids),
            raw=(strings,),
            strings=(readable,),
            spans=nothing,
            words=nothing,
            special=(special,),
            texts=(),
        )
        self.model_name = "random"
        self.config = SimpleNamespace(
            n_layers=shape.layers,
            n_heads=shape.heads,
            d_head=WIDTH,
            causal=False,
            attention_scale=lambda layer: SCALE,
        )
        self.layers = [self._layer(shape, layer) for layer in range(shape.layers)]

    @staticmethod
    def _layer(shape: Shape, layer: int) -> Any:
        query, key, value = (torch.from_numpy(one)[None] for one in vectors(shape, layer))
        found = probs(shape, layer)[None]
        return SimpleNamespace(query=query, key=key, value=value, probs=found)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Any:
        return self.layers[layer]
