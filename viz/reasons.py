"""Why heads look where they look, for the weights of a page that are most likely asked about.

A page has no weights of the model, so the parts of scores (analysis/reasons.py) are computed when
it is made: for its largest weights, as many as a share of its bytes and a number of multiplications
allow, or for all of the heads that are asked for. The block `why` is (field, weight) in 16 bits,
with the fields

    place of the head, query, key, score, and of each of the 4 largest pairs
    the query's component, the key's, their part of the score

Components are places in the header's list of names; scores are half precision.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from minibert.analysis.head_reasons import parts_of_head, written_below
from minibert.analysis.reading import seen_keys
from minibert.analysis.rows import wide
from minibert.analysis.stream import layer_of, sum_rounding
from minibert.trace.read import Trace
from minibert.untrusted import Json
from minibert.viz.example import Sentence
from minibert.viz.inputs import of_heads
from minibert.viz.payload import Array, Block, block_of
from minibert.viz.vectors import Holding

_PAIRS = 4
# Smaller weights are not asked about.
_LEAST = 0.01
# Of the bytes of a page, and what a weight takes of them, about.
_SHARE, _BYTES = 0.04, 20
# Weights whose tables of pairs are held at once.
_AT_ONCE = 32

Heads = frozenset[tuple[int, int]]


class Reasons(NamedTuple):
    """The block of an example, and the field `why` of its header."""

    block: Block
    header: Json


@torch.no_grad()
def page_reasons(
    sentence: Sentence, holding: Holding, heads: Heads | None, size: int, multiplications: int
) -> Reasons | None:
    """Those of all weights of these heads of at least 1 %, or with None of the largest of all.

    These are as many as 4 % of `size`, the bytes of the page, and so many multiplications
    allow. None where there is no weight whose score is the sum of what heads and MLPs wrote.
    """
    assert isinstance(sentence.trace, Trace)
    text = sentence.trace.text(sentence.index)
    cells, weights = _weights(sentence, text, holding, heads)
    least = _LEAST
    if heads is None:
        most = min(int(_SHARE * size) // _BYTES, multiplications // _cost(text))
        if most < len(cells):
            kept = np.sort(np.argsort(-weights, kind="stable")[:most])
            cells, weights = cells[kept], weights[kept]
            least = float(weights.min(initial=1))
    table = _Table(text, holding, {}, [0] * len(holding.layers))
    rows = [row for place in range(len(holding.layers)) for row in table.of_layer(place, cells)]
    if not any(row.size for row in rows):
        return None
    fields = np.concatenate(rows, 1)
    header: Json = {"components": list(table.names), "counts": table.counts}
    header |= {"least": round(least, 3)}
    if heads is not None and len(heads) < len(holding.layers) * len(holding.heads):
        header["heads"] = [f"{layer}-{head}" for layer, head in sorted(heads)]
    block = block_of(
        "why", fields, quantity="why", shape=fields.shape, search=zlib.Z_DEFAULT_STRATEGY
    )
    return Reasons(block, header)


def _cost(text: Trace) -> int:
    """Multiplications of a weight in the last layer, about: the parts of both sides, and pairs."""
    config = text.config
    components = len(text) * (config.n_heads + 3)
    return components * config.d_head * (2 * config.d_model + components)


def _weights(
    sentence: Sentence, text: Trace, holding: Holding, heads: Heads | None
) -> tuple[Array, Array]:
    """Cells (weight, [layer, head, query, key]) and weights, where a query sees several keys.

    Layers and heads are places on the page.
    """
    cells, weights = [], []
    for place, layer in enumerate(holding.layers):
        probs = of_heads(sentence.probs(layer), holding.heads)
        seen = seen_keys(text, layer, range(len(sentence.labels)))
        wanted = (probs >= _LEAST) & (seen & (seen.sum(-1, keepdim=True) > 1)).cpu().numpy()
        if heads is not None:
            wanted &= np.array([(layer, head) in heads for head in holding.heads])[:, None, None]
        own = np.argwhere(wanted)
        cells.append(np.insert(own, 0, place, axis=1))
        weights.append(probs[tuple(own.T)])
    return np.concatenate(cells), np.concatenate(weights)


@dataclass(frozen=True)
class _Table:
    """The fields of weights, one layer after the other.

    names    of the components, each with its place in the header's list
    counts   how many pairs a score has, by the place of the layer
    """

    text: Trace
    holding: Holding
    names: dict[str, int]
    counts: list[int]

    def of_layer(self, place: int, cells: Array) -> Iterator[Array]:
        """The fields of the weights of the layer at this place, (field, weight), head by head."""
        cells, layer = cells[cells[:, 0] == place], self.holding.layers[place]
        if not len(cells):
            return
        positions, rows = np.unique(cells[:, 2:], return_inverse=True)
        places, attention = positions.tolist(), layer_of(self.text[layer]).attention
        written = written_below(self.text, layer, places)
        # Vectors are many numbers; in front of few positions they are read faster.
        written = written.gathered() if len(places) <= attention.d_head else written
        for number in np.unique(cells[:, 1]).tolist():
            head = self.holding.heads[number]
            sides = [
                parts_of_head(self.text, layer, name, own, written, places)
                for name, own in (("query", head), ("key", head // attention.group))
            ]
            names = [
                np.array([self.names.setdefault(str(one), len(self.names)) for one in components])
                for components, _ in sides
            ]
            self.counts[place] = len(names[0]) * len(names[1])
            chosen = np.flatnonzero(cells[:, 1] == number)
            for some in np.split(chosen, range(_AT_ONCE, len(chosen), _AT_ONCE)):
                both = [
                    parts[:, torch.from_numpy(rows.reshape(-1, 2)[some, side])]
                    for side, (_, parts) in enumerate(sides)
                ]
                yield self._fields(layer, head, cells[some], both, names)

    def _fields(
        self, layer: int, head: int, cells: Array, sides: list[Tensor], names: list[Array]
    ) -> Array:
        """The fields of some weights of a head; those whose pairs are not their score are left."""
        at = self.text[layer]
        scale, group = layer_of(at).attention.scale, layer_of(at).attention.group
        queries, keys = wide(at.query)[0, head], wide(at.key)[0, head // group]
        scores = (queries[cells[:, 2]] * keys[cells[:, 3]]).sum(-1) * scale
        pairs = torch.einsum("anh,bnh->nab", *sides).flatten(1) * scale
        size = torch.maximum(pairs.abs().amax(-1), scores.abs())
        sums = (pairs.sum(-1) - scores).abs() <= sum_rounding(self.text.embed.dtype) * size
        # Fewer pairs are filled up; the header says how many there are.
        own = functional.pad(pairs[sums].cpu(), (0, max(0, _PAIRS - pairs.shape[1])))
        kept, largest = sums.cpu().numpy(), own.abs().topk(_PAIRS, -1).indices
        one, other = np.divmod(largest.numpy() % pairs.shape[1], len(names[1]))
        parts = _half(own.gather(1, largest))
        triples = np.stack([names[0][one], names[1][other], parts], -1).reshape(
            len(own), 3 * _PAIRS
        )
        heads = cells[kept, :1] * len(self.holding.heads) + cells[kept, 1:2]
        score = _half(scores[sums])[:, None]
        return np.concatenate([heads, cells[kept, 2:], score, triples], 1).astype(np.uint16).T


def _half(numbers: Tensor) -> Array:
    """The bits of the numbers in half precision."""
    half: Array = numbers.cpu().numpy().astype(np.float16).view(np.uint16)
    return half
