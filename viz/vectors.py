"""query, key and value of a page: as precise as it needs them, and whether they give the weights.

How scores of a layer become weights (`Looking`) -> vectors in half precision, or in a byte a number
(`Coded`) -> whether a browser computes the model's weights from them (`Comparing`) -> blocks.

Half precision is enough for most heads: the weights that a browser computes from it differ by
less than can be seen. Where scores are large it is not, and such heads have a byte more for each
number, or single precision where that is not enough; where no precision gives the model's weights,
an edit has changed them. On a page that would be large, a byte a number takes the place of half
precision, with 1, 2, 4 or 8 bits more for heads whose weights need it:

    step of a vector = its largest number / 100, as float16, rounded up
    code of a number = round(number / step), -100 to 100, as int8
    rest of a number = the part of its step that it lies in, of 2, 4, 16 or 256 parts

So a number is at most half a step from the model's: half a hundredth of the largest number of its
vector; with a rest, which stands for the middle of its part, half a part.
The codes of a layer, and the steps before them, are deflated: they use 201 of 256 values, and not
evenly.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from minibert.doors import PageSizes
from minibert.untrusted import Json
from minibert.viz.inputs import Paged, Sizes, of_heads
from minibert.viz.payload import Array, Block, block_of, pack_remainders, pack_vectors, refined

# Digits of a frequency: an angle at position 10,000 is then right to 1e-5.
_DIGITS = 10


@dataclass(frozen=True)
class Looking:
    """How products of queries and keys become scores of a softmax.

    scale      scores = scale * query·key
    causal     no query looks ahead
    window     how many keys before and after its own position a query sees; None: all
    soft_cap   scores become cap * tanh(score / cap); None: they stay
    """

    scale: float
    causal: bool
    window: tuple[int, int] | None = None
    soft_cap: float | None = None

    @classmethod
    def of_trace(cls, config: Sizes, layer: int) -> "Looking":
        """The scores of a layer of a trace's model."""
        scale, window = config.attention_scale(layer), config.window(layer)
        return cls(scale, config.causal, window, config.attention_soft_cap)

    def scores(self, products: Array, rows: Array) -> Array:
        """query·key, (..., row, key), as what the softmax is taken of; −inf where masked.

        `products` is changed in place; `rows`, (..., row), says which query each row is.
        """
        products *= self.scale
        return self.from_scaled(products, rows)

    def from_scaled(self, scores: Array, rows: Array) -> Array:
        """The masked scores, from products that are already scaled."""
        if self.soft_cap is not None:
            np.tanh(scores / self.soft_cap, out=scores)
            scores *= self.soft_cap
        n_keys = scores.shape[-1]
        before, after = self.window or (n_keys, n_keys)
        keys, queries = np.arange(n_keys), rows[..., None]
        if self.window is not None:
            np.putmask(scores, np.broadcast_to(keys < queries - before, scores.shape), -np.inf)
        if self.causal or self.window is not None:
            ahead = keys > queries + (0 if self.causal else after)
            np.putmask(scores, np.broadcast_to(ahead, scores.shape), -np.inf)
        return scores


def key_heads(config: Sizes, heads: Sequence[int]) -> list[int]:
    """The key-value heads that these heads read, each once, in their order."""
    return list(dict.fromkeys(head * config.n_kv_heads // config.n_heads for head in heads))


def looking_header(config: Sizes, layers: Sequence[int]) -> Json:
    """The fields of a page's example about this, where the model has any of it."""
    each = [Looking.of_trace(config, layer) for layer in layers]
    windows = [one.window and list(one.window) for one in each]
    soft_cap = config.attention_soft_cap
    found: Json = {} if soft_cap is None else {"soft_cap": float(soft_cap)}
    return found | {"windows": windows} if any(windows) else found


def rotation_header(config: Sizes, layers: Sequence[int], n_tokens: int) -> Json:
    """How query and key are turned in each layer of a text of so many tokens, in a rotary model.

    `rotary` has the turns that there are, `turned` the place there of each layer's.
    """
    if isinstance(config, PageSizes) or config.rotary is None:
        return {}
    each = [config.rotary_of(layer) or config.rotary for layer in layers]
    known = list(dict.fromkeys(each))
    rotary = [
        {
            "amplitude": one.amplitude,
            "frequencies": [float(f"{number:.{_DIGITS}g}") for number in one.frequencies(n_tokens)],
        }
        for one in known
    ]
    return {"rotary": rotary, "turned": [known.index(one) for one in each]}


# Codes on either side of zero.
STEPS = 100
# Bits of a rest; the fewest that are enough are taken.
_RESTS = (1, 2, 4, 8)


class Coded:
    """Vectors, (..., position, d_head), as codes and steps."""

    steps: Array
    """(..., position)."""
    codes: Array
    left: Array
    """What the codes leave, in steps."""

    def __init__(self, vectors: Array) -> None:
        """Raise OverflowError where half precision has no number as large as a step."""
        largest = np.abs(vectors).max(-1) / STEPS
        with np.errstate(over="ignore"):
            steps = largest.astype(np.float16)
            self.steps = np.where(steps < largest, np.nextafter(steps, np.float16(np.inf)), steps)
        if not np.isfinite(self.steps).all():
            raise OverflowError("a vector is too large for steps in half precision")
        step = self._step
        safe = np.where(step > 0, step, 1)
        self.codes = np.rint(vectors / safe).astype(np.int8)
        self.left = (vectors - self.codes * step) / safe

    @property
    def _step(self) -> Array:
        return self.steps[..., None].astype(np.float32)

    @property
    def numbers(self) -> Array:
        """What the codes say."""
        return self.codes * self._step

    def rests(self, bits: int) -> Array:
        """The part of its step that each number lies in; of 4 parts -2 is the lowest."""
        most = 2 ** (bits - 1)
        return np.clip(np.floor(self.left * 2**bits), -most, most - 1).astype(np.int8)

    def finer(self, bits: int) -> Array:
        """What the codes say with rests of so many bits."""
        middles = (self.rests(bits) + np.float32(0.5)) / np.float32(2**bits)
        return (self.codes + middles) * self._step


def coded(vectors: Array) -> Coded | None:
    """The vectors as codes; None where they are too large for steps in half precision."""
    try:
        return Coded(vectors)
    except OverflowError:
        return None


def pack_coded(name: str, layer: int, vectors: Coded) -> Block:
    """query, key or value of one layer, (head, position, d_head): all steps, then all codes."""
    steps = np.ascontiguousarray(vectors.steps, "<f2").view(np.int8)
    return block_of(
        f"{name}-{layer}",
        np.concatenate([steps.ravel(), vectors.codes.ravel()]),
        quantity=name,
        layer=layer,
        shape=vectors.codes.shape,
        coding="steps",
    )


def pack_finer(name: str, layer: int, head: int, vectors: Coded, place: int, *, bits: int) -> Block:
    """What makes query or key of one head, (position, d_head), finer: rests of so many bits.

    The first of a byte is in its low bits.
    """
    parts, each = vectors.rests(bits)[place], 8 // bits
    padded = np.append(parts.ravel(), np.zeros(-parts.size % each, np.int8)).view(np.uint8)
    shifted = (padded & 2**bits - 1).reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return block_of(
        f"{name}-rest-{layer}-{head}",
        np.bitwise_or.reduce(shifted, 1),
        quantity=f"{name} rest",
        layer=layer,
        head=head,
        coding=f"{bits} bits",
        shape=parts.shape,
        packing="none",
    )


# What rounding to half precision may cost a weight, and what single precision may.
HALF_ERROR, _SINGLE_ERROR = 1.2e-3, 1e-4
# What a byte a number may cost a weight: as much as the codes of weights themselves.
CODED_ERROR = 4e-3
# Queries of a head whose weights are computed from what is shipped, to see whether they agree: all
# of most texts, and those that rounding changes most of a longer one.
_CHECKED_QUERIES = 512
# Of them those that are compared at once.
_ROWS = 64

# By how much a model in half precision has rounded its weights itself.
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}

Named = dict[str, Array]


def softmax(scores: Array) -> Array:
    """The weights of scores, along the last axis; changed in place."""
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


class Comparing:
    """A layer's weights beside those that a browser computes from its vectors.

    Compared are some queries of each head: those in which rounding changes most. `key_places` are
    the places of each head's key-value head among those of key.
    """

    def __init__(
        self, trace: Paged, layer: int, probs: Array, single: Named, key_places: list[int]
    ) -> None:
        edited = getattr(trace, "edited_from", None) is not None
        n_rows = probs.shape[1] if edited else min(probs.shape[1], _CHECKED_QUERIES)
        # (head, row)
        self.rows = np.broadcast_to(np.arange(probs.shape[1]), probs.shape[:2])
        if n_rows < probs.shape[1]:
            largest = probs.max(-1)
            # A weight p moves by p·(1 - p) times the change of its score, which grows with the
            # query.
            suspicion = largest * (1 - largest) * np.linalg.norm(single["query"], axis=-1)
            self.rows = np.argpartition(-suspicion, n_rows)[:, :n_rows]
        self.probs, self.single, self.key_places = probs, single, key_places
        self.looking = Looking.of_trace(trace.config, layer)
        dtype = getattr(trace, "dtype", None) or trace[layer].query.dtype
        self.slack = 16 * _EPSILON.get(str(dtype).removeprefix("torch."), 0.0)

    def errors(self, query: Array, key: Array) -> list[float]:
        """The largest difference in each head."""
        places = self.key_places if len(key) != len(query) else range(len(query))
        each = []
        for head, place in enumerate(places):
            # Some rows at a time: in double precision they are larger than all that a page holds.
            parts = np.split(self.rows[head], range(_ROWS, len(self.rows[head]), _ROWS))
            each.append(max(self._error(head, query[head], key[place], rows) for rows in parts))
        return each

    def _error(self, head: int, query: Array, key: Array, rows: Array) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            # As a browser computes them.
            products = query[rows].astype(np.float64) @ key.T.astype(np.float64)
            errors = softmax(self.looking.scores(products, rows))
            errors -= self.probs[head, rows]
            error = float(np.abs(errors, out=errors).max())
        # Infinite scores give NaN, which does not count as agreement.
        return math.inf if math.isnan(error) else error

    def agreement(self, rounded: Named, error: float) -> tuple[bool, set[int]]:
        """Whether the vectors give the weights, and which heads, by place, rounding spoils."""
        off = self.off(rounded, error)
        if not off:
            return True, off
        return max(self.errors(**self.single)) <= max(_SINGLE_ERROR, self.slack), off

    def off(self, vectors: Named, error: float) -> set[int]:
        """The places of the heads whose weights are further than `error` from the model's."""
        errors = self.errors(**vectors)
        return {place for place, one in enumerate(errors) if one > max(error, self.slack)}


Read = Callable[[str, int], Array]


@dataclass(frozen=True)
class Holding:
    """What a page holds of each sentence of a trace."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    vectors: bool
    exact: frozenset[tuple[int, int]]
    """Heads, by layer and head, whose vectors are not rounded."""
    coded: bool = False
    """Vectors that are not exact in a byte a number; else in half precision."""

    def rounded(self, layer: int) -> bool:
        """True where the layer has heads with rounded vectors."""
        return self.vectors and any((layer, head) not in self.exact for head in self.heads)


def packed_vectors(
    trace: Paged, layer: int, read: Read, probs: Array, holding: Holding
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
    rests = []
    for bits, finer in form.finer() if off else ():
        still = off & groups.closed(comparing.off(finer, form.error))
        rests += [(bits, *part) for part in groups.parts(off - still)]
        off = still
        if not off:
            break
    precise = {holding.heads[place] for place in off}
    blocks = []
    if holding.rounded(layer) and not precise.union(exact).issuperset(holding.heads):
        blocks += form.blocks(layer, agreeing=agreeing)
        for bits, name, place, head in rests:
            blocks.append(form.rests(name, layer, head, place, bits=bits))
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

    def __init__(self, config: Sizes, heads: tuple[int, ...]) -> None:
        self.heads = list(heads)
        self.key_heads = key_heads(config, heads)
        self.key_places = [self.key_heads.index(*key_heads(config, [head])) for head in heads]

    def held(self, name: str) -> list[int]:
        """The numbers of the heads that a quantity is held of."""
        return self.heads if name == "query" else self.key_heads

    def closed(self, places: set[int]) -> set[int]:
        """The given heads and those that share a key-value head with them."""
        read = {self.key_places[place] for place in places}
        return {place for place, key in enumerate(self.key_places) if key in read}

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

    def finer(self) -> Iterator[tuple[int, Named]]:
        """With 8 bits more for each number."""
        with np.errstate(over="ignore", invalid="ignore"):
            yield 8, {name: refined(vectors) for name, vectors in self.single.items()}

    def blocks(self, layer: int, *, agreeing: bool) -> list[Block]:
        """All heads; in single precision where halves are infinite and no weights tell."""
        kept = self.numbers if _finite(*self.numbers.values()) or agreeing else self.single
        exact = kept is self.single
        return [pack_vectors(name, layer, part, single=exact) for name, part in kept.items()]

    def rests(self, name: str, layer: int, head: int, place: int, *, bits: int) -> Block:
        """What makes query or key of one head finer."""
        return pack_remainders(name, layer, head, self.single[name][place])


class _Codes:
    """Numbers coded in one byte each."""

    error = CODED_ERROR

    def __init__(self, codes: dict[str, Coded]) -> None:
        self.codes = codes
        self.numbers: Named = {name: one.numbers for name, one in codes.items()}

    def finer(self) -> Iterator[tuple[int, Named]]:
        """The numbers with more bits each, the fewest bits first."""
        for bits in _RESTS:
            yield bits, {name: one.finer(bits) for name, one in self.codes.items()}

    def blocks(self, layer: int, *, agreeing: bool) -> list[Block]:
        """All heads, whether or not they give the weights."""
        return [pack_coded(name, layer, one) for name, one in self.codes.items()]

    def rests(self, name: str, layer: int, head: int, place: int, *, bits: int) -> Block:
        """What makes query or key of one head finer."""
        return pack_finer(name, layer, head, self.codes[name], place, bits=bits)


def _codes(single: Named) -> _Codes | None:
    """None where numbers are too large for it."""
    with suppress(OverflowError):
        return _Codes({name: Coded(vectors) for name, vectors in single.items()})
    return None


def rounded(vectors: Array) -> Array:
    """The numbers in half precision; infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return vectors.astype(np.float16)


def _finite(*vectors: Array) -> bool:
    return all(bool(np.isfinite(one).all()) for one in vectors)


def value_size(holding: Holding, n_tokens: int, config: Sizes) -> int:
    """Bytes that `packed_values` take in a file."""
    return _size(holding, n_tokens * len(key_heads(config, holding.heads)), config)


def vectors_size(holding: Holding, n_tokens: int, config: Sizes) -> int:
    """Bytes that query and key take in a file."""
    return value_size(holding, n_tokens, config) + _size(
        holding, n_tokens * len(holding.heads), config
    )


def _size(holding: Holding, n_vectors: int, config: Sizes) -> int:
    """Bytes of so many vectors a layer."""
    n_layers = sum(holding.rounded(layer) for layer in holding.layers)
    # Five characters of text are four bytes.
    each = 5 if holding.coded else 10
    return each * n_layers * n_vectors * config.d_head // 4


def packed_values(read: Read, holding: Holding, config: Sizes) -> list[Block]:
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
