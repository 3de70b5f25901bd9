"""Pages with query, key and value, for the neuron and the arithmetic view: random, seeded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.viz.document import document, header_json
from minibert.viz.example import label_columns, labels_from_strings
from minibert.viz.payload import pack_layer, pack_vectors

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
    n_layers, n_heads, _, width = vectors.query.shape
    names = ("query", "key", "value")
    blocks = []
    for layer in range(n_layers):
        probs = np.stack([vectors.probs(layer, head) for head in range(n_heads)])
        blocks.append(pack_layer(layer, probs[::-1] if edited else probs))
        parts = {name: getattr(vectors, name)[layer] for name in names}
        if exact is None:
            blocks += [pack_vectors(name, layer, part) for name, part in parts.items()]
    if exact is not None:
        for name in names:
            numbers = getattr(vectors, name)[exact]
            blocks.append(pack_vectors(name, exact[0], numbers, head=exact[1]))
    example = {
        "arrays": [block.entry for block in blocks],
        "causal": vectors.causal,
        "cut": False,
        "edited": edited,
        "heads": list(range(n_heads)),
        "key_tokens": None,
        "layers": list(range(n_layers)),
        "lens": None,
        "model": "random",
        "name": "",
        "notes": [],
        "scale": [vectors.scale] * n_layers,
        "sizes": {"n_layers": n_layers, "n_heads": n_heads, "d_head": width},
        "texts": [],
        "tokens": label_columns(labels_from_strings(tokens, None)),
    }
    header = {"examples": [example], "format": 2, "title": None, "view": view}
    pieces = ((block.name, block.data) for block in blocks)
    return "".join(document(header_json(header), pieces))
