"""Why heads look where they look, for the weights of a page that are most likely asked about.

A page has no weights of the model, so the parts of scores (analysis/score_reasons.py) are computed
when it is made: for its largest weights, as many as a share of its bytes and a number of products
allow, or for all of the heads that are asked for. The block `why` is (field, weight) in 16 bits,
with the fields

    place of the head, query, key, score, what of the score is the same for every key,
    and of each of the 4 largest other pairs
    the query's component, the key's, their part of the score

Components are places in the header's list of names; scores are half precision. Where a score has
fewer pairs the last parts are 0. "why features" is the same with features in place of what they
are parts of, of the heads above them.

Of heads that are asked for the page also holds the vectors of each pair: "why vectors" (vector,
d_head) in half precision, and "why read", JSON of the same weights in the same order:

    weight  a list of at most 4 pairs
    pair    [query vector, what the query's head read, key vector, what the key's head read]
    read    a list of [position, part, [[component, part, read], ...]]

down to the words. Parts below a share of the weight's largest pair are left out, as `tree` does.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from minibert.analysis.head_reasons import parts_of_head, written_below
from minibert.analysis.reading import ROWS, Split, into_stream, same_for_every_key, seen_keys
from minibert.analysis.rows import wide
from minibert.analysis.stream import Component, Reader, Written, layer_of, sum_rounding
from minibert.errors import TraceError
from minibert.features import Features, check_features
from minibert.trace.read import Trace
from minibert.untrusted import Json
from minibert.viz.example import Sentence
from minibert.viz.inputs import of_heads
from minibert.viz.payload import Array, Block, block_of
from minibert.viz.vectors import Holding

_PAIRS = 4
# Smaller weights are not asked about; of the largest pair, smaller parts are not followed.
_LEAST, _FOLLOWED = 0.01, 0.1
# Of the bytes of a page, and what a weight takes of them, about.
_SHARE, _BYTES = 0.04, 20
# The fields that name components.
_NAMES = [5 + 3 * pair + side for pair in range(_PAIRS) for side in (0, 1)]
# Weights whose tables of pairs are held at once.
_AT_ONCE = 32

Heads = frozenset[tuple[int, int]]


class Reasons(NamedTuple):
    """The blocks of an example, and the field `why` of its header."""

    blocks: tuple[Block, ...]
    header: Json


@torch.no_grad()
def page_reasons(
    sentence: Sentence,
    holding: Holding,
    heads: Heads | None,
    size: int,
    multiplications: int,
    features: Features | None = None,
) -> Reasons | None:
    """The reasons of all weights of these heads of at least 1 %; with None, of the largest weights.

    These are as many as 4 % of `size`, the bytes of the page, and so many multiplications
    allow. None where there is no weight whose score is the sum of what heads and MLPs wrote.
    With `features` the same weights are split by them too; TraceError where the page has none that
    they are a part of.
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
    names, found, splits = dict[Component, int](), list[Array](), list[Split | None]([None])
    if features is not None:
        check_features(features, text.model, text.model_name)
        splits.append(Split(features.read(text), 0))
    below = None if heads is None else _Below(text)
    for split in splits:
        table = _Table(text, holding, names, split, below if split is None else None)
        rows = [row for place in range(len(holding.layers)) for row in table.of_layer(place, cells)]
        if not any(row.size for row in rows):
            if split is None:
                return None
            raise TraceError(f"{features!r} are not a part of any score on this page.")
        found.append(np.concatenate(rows, 1))
    used = np.unique(np.concatenate([fields[_NAMES] for fields in found], 1))
    every = list(names)
    header: Json = {"components": [every[name] for name in used], "least": round(least, 3)}
    if heads is not None and len(heads) < len(holding.layers) * len(holding.heads):
        header["heads"] = [f"{layer}-{head}" for layer, head in sorted(heads)]
    if features is not None:
        header["features"] = list(features.writes)
    blocks = [] if below is None else below.blocks()
    for name, fields in zip(("why", "why features"), found, strict=False):
        fields[_NAMES] = np.searchsorted(used, fields[_NAMES])
        options: Json = {"quantity": name, "shape": fields.shape}
        blocks.append(
            block_of(name, fields.astype(np.uint16), search=zlib.Z_DEFAULT_STRATEGY, **options)
        )
    return Reasons(tuple(blocks), header)


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
    split    the features that stand in place of what they are parts of, if any
    below    takes the vectors of the pairs, if it is wanted
    """

    text: Trace
    holding: Holding
    names: dict[Component, int]
    split: Split | None = None
    below: "_Below | None" = None

    def of_layer(self, place: int, cells: Array) -> Iterator[Array]:
        """The fields of the weights of the layer at this place, (field, weight), head by head."""
        cells, layer = cells[cells[:, 0] == place], self.holding.layers[place]
        if not len(cells):
            return
        positions, rows = np.unique(cells[:, 2:], return_inverse=True)
        places, attention = positions.tolist(), layer_of(self.text[layer]).attention
        written = self._written(layer, places)
        if written is None:
            return
        # Vectors are many numbers; in front of few positions they are read faster.
        written = written.gathered() if len(places) <= attention.d_head else written
        for number in np.unique(cells[:, 1]).tolist():
            head = self.holding.heads[number]
            sides = [
                self._of_side(layer, name, own, written, places)
                for name, own in (("query", head), ("key", head // attention.group))
            ]
            chosen = np.flatnonzero(cells[:, 1] == number)
            for some in np.split(chosen, range(_AT_ONCE, len(chosen), _AT_ONCE)):
                own = rows.reshape(-1, 2)[some].T
                both = [parts[at] for (_, parts), at in zip(sides, own, strict=True)]
                names = [names[at] for (names, _), at in zip(sides, own, strict=True)]
                yield self._fields(layer, head, cells[some], both, names)

    def _written(self, layer: int, places: list[int]) -> Written | None:
        """What was written below the layer; None where features are not a part of it."""
        written = written_below(self.text, layer, places)
        if self.split is not None:
            self.split.put(written, places, self.split.active(places))
            names = (one for block in written.blocks for each in block.writes for one in each[0])
            if not any(name.kind == "feature error" for name in names):
                return None
        return written

    def _of_side(
        self, layer: int, name: str, head: int, written: Written, places: list[int]
    ) -> tuple[Array, Tensor]:
        """The places of names (position, part), and parts (position, part, d_head), none all 0."""
        components, parts = parts_of_head(self.text, layer, name, head, written, places)
        own = np.array([self.names.setdefault(one, len(self.names)) for one in components])
        size = parts.abs().amax(-1).mT  # position component
        # Of features few are active at one position.
        kept = size.topk(int((size > 0).sum(-1).max()), -1).indices
        rows = torch.arange(len(kept), device=kept.device)[:, None]
        return own[kept.cpu().numpy()], parts.transpose(0, 1)[rows, kept]

    def _fields(
        self, layer: int, head: int, cells: Array, sides: list[Tensor], names: list[Array]
    ) -> Array:
        """The fields of some weights of a head; those whose pairs are not their score are left."""
        at = self.text[layer]
        scale, group = layer_of(at).attention.scale, layer_of(at).attention.group
        queries, keys = wide(at.query)[0, head], wide(at.key)[0, head // group]
        scores = (queries[cells[:, 2]] * keys[cells[:, 3]]).sum(-1) * scale
        pairs = (sides[0] @ sides[1].mT).flatten(1) * scale
        size = torch.maximum(pairs.abs().amax(-1), scores.abs())
        sums = (pairs.sum(-1) - scores).abs() <= sum_rounding(self.text.embed.dtype) * size
        # Fewer pairs are filled up.
        alike = same_for_every_key(self.text, layer)
        numbers = [number for name, number in self.names.items() if name in alike]
        same = torch.from_numpy(np.isin(names[1], numbers)).repeat(1, sides[0].shape[1])
        pairs = pairs[sums].cpu()
        same = same[sums.cpu()] * pairs
        own = functional.pad(pairs - same, (0, max(0, _PAIRS - pairs.shape[1])))
        kept, largest = sums.cpu().numpy(), own.abs().topk(_PAIRS, -1).indices
        places = np.divmod(largest.numpy() % pairs.shape[1], sides[1].shape[1])
        found = [
            np.take_along_axis(side[kept], at, 1) for side, at in zip(names, places, strict=True)
        ]
        triples = np.stack([*found, _half(own.gather(1, largest))], -1).reshape(
            len(own), 3 * _PAIRS
        )
        if self.below is not None:
            every, rows = list(self.names), np.flatnonzero(kept)[:, None]
            vectors = [side[rows, at] for side, at in zip(sides, places, strict=True)]
            writers = [[[every[one] for one in row] for row in side] for side in found]
            self.below.add(layer, head, cells[kept, 2:], vectors, writers, own.gather(1, largest))
        heads = cells[kept, :1] * len(self.holding.heads) + cells[kept, 1:2]
        whole = np.stack([_half(scores[sums]), _half(same.sum(-1))], 1)
        return np.concatenate([heads, cells[kept, 2:], whole, triples], 1).T


class _Node(NamedTuple):
    """What a head wrote at a position into a pair: `direction` · z, which is `part`.

    Of what it read, what is at least `least` goes into the list `read`.
    """

    position: int
    direction: Tensor
    part: float
    least: float
    read: list[object]


@dataclass
class _Below:
    """The vectors of each pair of weights, and what its heads had read."""

    text: Trace
    places: dict[tuple[object, ...], int] = field(default_factory=dict)
    vectors: list[Tensor] = field(default_factory=list)
    weights: list[list[list[object]]] = field(default_factory=list)
    nodes: dict[tuple[int, int], list[_Node]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self,
        layer: int,
        head: int,
        cells: Array,
        vectors: Sequence[Tensor],
        writers: Sequence[Sequence[Sequence[Component]]],
        parts: Tensor,
    ) -> None:
        """Weights of a head: of each the pairs' vectors, who wrote these, and their scores.

        cells (weight, [query, key]); vectors and writers query's and key's, (weight, pair).
        """
        attention = layer_of(self.text[layer]).attention
        weights = [[list[object]() for _ in row] for row in parts]
        for side, own in enumerate((head, head // attention.group)):
            name, places = ("query", "key")[side], cells[:, side].tolist()
            wanted = vectors[1 - side] * attention.scale
            readers = into_stream(self.text, layer, name, own, places, wanted).readers()
            for row, place in enumerate(places):
                for pair, writer in enumerate(writers[side][row]):
                    vector = self.places.setdefault(
                        (layer, own, name, place, writer), len(self.places)
                    )
                    self.vectors += [vectors[side][row, pair]] * (vector == len(self.vectors))
                    part, least = parts[row, pair].item(), _FOLLOWED * parts[row, 0].abs().item()
                    read = self.follow(writer, readers, (row, pair), place, part, least)
                    weights[row][pair] += [vector, read]
        self.weights += weights

    def follow(
        self,
        writer: Component,
        readers: dict[tuple[str, int | None], Reader],
        at: tuple[int, int],
        position: int,
        part: float,
        least: float,
    ) -> list[object]:
        """The list that `blocks` fills with what the writer, if it is a head, had read."""
        read = list[object]()
        if writer.kind == "head" and abs(part) >= least:
            layer, head = writer.layer or 0, writer.head or 0
            directions, scale = readers["attention", layer]
            matrix = wide(layer_of(self.text[layer]).attention.W_O[head])
            direction = matrix @ directions[at] * scale[at[0]]
            self.nodes[layer, head].append(_Node(position, direction, part, least, read))
        return read

    def blocks(self) -> list[Block]:
        """Both blocks, with all heads followed, those of the last layer first."""
        for layer in reversed(range(len(self.text))):
            for head in range(self.text.config.n_heads):
                nodes = self.nodes.pop((layer, head), [])
                for first in range(0, len(nodes), ROWS):
                    self.read(layer, head, nodes[first : first + ROWS])
        vectors = torch.stack(self.vectors).cpu().numpy().astype(np.float16)
        text = np.frombuffer(json.dumps(self.weights, separators=(",", ":")).encode(), np.uint8)
        return [
            block_of(
                name, numbers, quantity=name, shape=numbers.shape, search=zlib.Z_DEFAULT_STRATEGY
            )
            for name, numbers in (("why vectors", vectors), ("why read", text))
        ]

    def read(self, layer: int, head: int, nodes: list[_Node]) -> None:
        """Which tokens a head read, and who had written there."""
        at, group = self.text[layer, head], layer_of(self.text[layer]).attention.group
        positions = [node.position for node in nodes]
        wanted = torch.stack([node.direction for node in nodes])
        probs, wrote = wide(at.probs)[0, positions], (wide(at.z)[0, positions] * wanted).sum(-1)
        by_token = probs * (wanted @ wide(at.value)[0].mT)
        rounding = sum_rounding(self.text.embed.dtype)
        # An edit may have written what the head gives.
        parts = wanted.new_tensor([node.part for node in nodes])
        size = rounding * torch.maximum(by_token.abs().amax(-1), parts.abs())
        sums = torch.maximum((by_token.sum(-1) - parts).abs(), (wrote - parts).abs()) <= size
        least = wanted.new_tensor([node.least for node in nodes])[:, None]
        rows, keys = ((by_token.abs() >= least) & sums[:, None]).nonzero().T.tolist()
        if not rows:
            return
        directions = (probs[rows, keys][:, None] * wanted[rows])[:, None]
        reading = into_stream(self.text, layer, "value", head // group, keys, directions)
        (components, values), readers = reading.parts(), reading.readers()
        for n, (row, key) in enumerate(zip(rows, keys, strict=True)):
            own, below = values[:, n, 0], list[object]()
            for place in own.abs().argsort(descending=True).tolist():
                part = own[place].item()
                if abs(part) < nodes[row].least:
                    break
                deeper = self.follow(
                    components[place], readers, (n, 0), key, part, nodes[row].least
                )
                below.append([components[place], _short(part), deeper])
            nodes[row].read.append([key, _short(by_token[row, key].item()), below])


def _short(number: float) -> float:
    """The number with four digits."""
    return float(f"{number:.4g}")


def _half(numbers: Tensor) -> Array:
    """The bits of the numbers in half precision."""
    half: Array = numbers.cpu().numpy().astype(np.float16).view(np.uint16)
    return half
