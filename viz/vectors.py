"""query, key and value of a sentence, as precise as a page needs them.

Half precision is enough for most heads: the weights that a browser computes from it differ by
less than can be seen. Where scores are large it is not, and such heads have a byte more for each
number, or single precision where that is not enough; where no precision gives the model's weights,
an edit has changed them. On a page that would be large, a byte a number takes the place of half
precision, with a quarter or half of a byte more for heads whose weights need it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.viz.agreement import CODED_ERROR, HALF_ERROR, Comparing, Named
from minibert.viz.coded import Coded, coded, pack_coded, pack_quarters, pack_rest
from minibert.viz.inputs import Array, of_heads
from minibert.viz.looking import key_heads
from minibert.viz.payload import Block, pack_remainders, pack_vectors, refined

__all__ = ["Holding", "packed_values", "packed_vectors", "value_size", "vectors_size"]

Read = Callable[[str, int], Array]


@dataclass(frozen=True)
class Holding:
    """What a page holds of each sentence of a trace."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    vectors: bool
    exact: frozenset[tuple[int, int]]
    """Heads, by layer and head, whose vectors are not rounded."""
    overview: bool
    """Thumbnails, and no weights or vectors."""
    coded: bool = False
    """Vectors that are not exact in a byte a number; else in half precision."""

    def rounded(self, layer: int) -> bool:
        """True where the layer has heads with rounded vectors."""
        return self.vectors and any((layer, head) not in self.exact for head in self.heads)


def packed_vectors(
    trace: Any, layer: int, read: Read, probs: Array, holding: Holding
) -> tuple[list[Block], bool]:
    """query and key of a layer, value of its exact heads, and whether they give its weights.

    `read` gives (head, position, d_head) of all heads by name and layer, `probs` are the weights
    of the held ones. Heads that share a key-value head are all as fine as the finest of them, since
    its key is there once.
    """
    exact = [head for head in holding.heads if (layer, head) in holding.exact]
    if not exact and not holding.vectors:
        return [], True
    groups = _Groups(trace.config, holding.heads)
    whole = {name: read(name, layer) for name in ("query", "key")}
    single = {name: of_heads(vectors, groups.held(name)) for name, vectors in whole.items()}
    comparing = Comparing(trace, layer, probs, single, groups.key_places)
    form = (_codes(single) if holding.coded else None) or _Halves(single)
    agreeing, off = comparing.agreement(form.numbers, form.error)
    if not agreeing:
        off = set()
    off = groups.closed(off)
    quartered = form.quartered()
    rough = groups.closed(comparing.off(quartered, form.error)) if off and quartered else off
    coarse = comparing.off(form.finer(), form.error) if rough & off else set()
    fine = off - groups.closed(coarse)
    precise = {holding.heads[place] for place in off - fine}
    blocks = []
    if holding.rounded(layer) and not precise.union(exact).issuperset(holding.heads):
        blocks += form.blocks(layer, agreeing=agreeing)
        for name, place, head in groups.parts(fine):
            pack = form.rests if groups.any_of(name, place, rough) else form.quarters
            blocks.append(pack(name, layer, head, place))
    alone = [
        holding.heads.index(head) for head in (precise.union(exact) if holding.vectors else exact)
    ]
    for name, _, head in groups.parts(set(alone)):
        blocks.append(pack_vectors(name, layer, whole[name][head], head=head))
    for head in key_heads(trace.config, exact):
        blocks.append(pack_vectors("value", layer, read("value", layer)[head], head=head))
    return blocks, agreeing


class _Groups:
    """The held heads of a layer, by place, and the key-value heads that they read."""

    def __init__(self, config: Any, heads: tuple[int, ...]) -> None:
        self.heads = list(heads)
        self.key_heads = key_heads(config, heads)
        self.key_places = [self.key_heads.index(*key_heads(config, [head])) for head in heads]

    def held(self, name: str) -> list[int]:
        """The numbers of the heads that a quantity is held of."""
        return self.heads if name == "query" else self.key_heads

    def closed(self, places: set[int]) -> set[int]:
        """These heads and those that share a key-value head with them."""
        read = {self.key_places[place] for place in places}
        return {place for place, key in enumerate(self.key_places) if key in read}

    def any_of(self, name: str, place: int, places: set[int]) -> bool:
        """True where this place of query or key belongs to one of these heads."""
        read = places if name == "query" else {self.key_places[one] for one in places}
        return place in read

    def parts(self, places: set[int]) -> Iterator[tuple[str, int, int]]:
        """Name, place and number of query and key of these heads; a key that is shared once."""
        seen = set()
        for place in sorted(places):
            yield "query", place, self.heads[place]
            key = self.key_places[place]
            if key not in seen:
                yield "key", key, self.key_heads[key]
            seen.add(key)


class _Halves:
    """query and key of a layer's held heads in half precision."""

    error = HALF_ERROR

    def __init__(self, single: Named) -> None:
        self.single = single
        self.numbers = {name: rounded(vectors) for name, vectors in single.items()}

    def quartered(self) -> Named | None:
        """None: there is nothing between these and `finer`."""
        return None

    def finer(self) -> Named:
        """With a byte more for each number."""
        with np.errstate(over="ignore", invalid="ignore"):
            return {name: refined(vectors) for name, vectors in self.single.items()}

    def blocks(self, layer: int, *, agreeing: bool) -> list[Block]:
        """All heads; in single precision where halves are infinite and no weights tell."""
        kept = self.numbers if _finite(*self.numbers.values()) or agreeing else self.single
        exact = kept is self.single
        return [pack_vectors(name, layer, part, single=exact) for name, part in kept.items()]

    def rests(self, name: str, layer: int, head: int, place: int) -> Block:
        """What makes query or key of one head finer."""
        return pack_remainders(name, layer, head, self.single[name][place])

    quarters = rests


class _Codes:
    """The same in a byte a number."""

    error = CODED_ERROR

    def __init__(self, codes: dict[str, Coded]) -> None:
        self.codes = codes
        self.numbers: Named = {name: one.numbers for name, one in codes.items()}

    def quartered(self) -> Named:
        """With a quarter of a byte more for each number."""
        return {name: one.quartered for name, one in self.codes.items()}

    def finer(self) -> Named:
        """With half a byte more for each number."""
        return {name: one.finer for name, one in self.codes.items()}

    def blocks(self, layer: int, *, agreeing: bool) -> list[Block]:
        """All heads, whether or not they give the weights."""
        return [pack_coded(name, layer, one) for name, one in self.codes.items()]

    def rests(self, name: str, layer: int, head: int, place: int) -> Block:
        """What makes query or key of one head finer."""
        return pack_rest(name, layer, head, self.codes[name], place)

    def quarters(self, name: str, layer: int, head: int, place: int) -> Block:
        """What makes query or key of one head finer, but less."""
        return pack_quarters(name, layer, head, self.codes[name], place)


def _codes(single: Named) -> _Codes | None:
    """None where numbers are too large for it."""
    codes = {name: coded(vectors) for name, vectors in single.items()}
    known = {name: one for name, one in codes.items() if one is not None}
    return _Codes(known) if len(known) == len(codes) else None


def rounded(vectors: Array) -> Array:
    """The same in half precision; infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return vectors.astype(np.float16)


def _finite(*vectors: Array) -> bool:
    return all(bool(np.isfinite(one).all()) for one in vectors)


def value_size(holding: Holding, n_tokens: int, config: Any) -> int:
    """Bytes that `packed_values` take in a file."""
    return _size(holding, n_tokens * len(key_heads(config, holding.heads)), config)


def vectors_size(holding: Holding, n_tokens: int, config: Any) -> int:
    """Bytes that query and key take in a file."""
    return value_size(holding, n_tokens, config) + _size(
        holding, n_tokens * len(holding.heads), config
    )


def _size(holding: Holding, n_vectors: int, config: Any) -> int:
    """Bytes of so many vectors a layer."""
    n_layers = sum(holding.rounded(layer) for layer in holding.layers)
    # Four characters of text are three bytes.
    each = 4 if holding.coded else 8
    return each * n_layers * n_vectors * config.d_head // 3


def packed_values(read: Read, holding: Holding, config: Any) -> list[Block]:
    """value of all held key-value heads, rounded."""
    blocks = []
    heads = key_heads(config, holding.heads)
    for layer in filter(holding.rounded, holding.layers):
        value = of_heads(read("value", layer), heads)
        codes = coded(value) if holding.coded else None
        if codes is not None:
            blocks.append(pack_coded("value", layer, codes))
        else:
            exact = not _finite(rounded(value))
            blocks.append(pack_vectors("value", layer, value, single=exact))
    return blocks
