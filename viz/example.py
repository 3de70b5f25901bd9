"""One text in one model as a page holds it: what its header says, and its numbers.

tokens -> labels; plain weights, or a sentence of a trace -> `Example`: header and blocks

A browser can compute the weights of a long text from query and key, which take 256 bytes a token
and head (128 where they are coded) where weights take one a token, head and token. It is given
both for a short text, and only the vectors for a long one and on a page that would be large, if
they give the model's weights: after an edit they may not.
"""

import math
import os
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from minibert.errors import AttentionError
from minibert.untrusted import Json
from minibert.viz.inputs import Paged, Sizes, checked_layer, of_heads, to_array
from minibert.viz.payload import (
    THUMBNAIL,
    Array,
    Block,
    encode_probs,
    pack_layer,
    pack_thumbnails,
    pool,
)
from minibert.viz.vectors import Holding, looking_header, packed_vectors, rotation_header

if TYPE_CHECKING:
    from minibert.text.tokens import Tokens
else:
    Tokens = object

_SPECIAL = frozenset(["[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|endoftext|>"])
_SPACE_MARKS = ("Ġ", "▁")
_PIECE_MARK = "##"
_END_MARK = "</w>"
_CLOSING = frozenset(".,;:!?")


@dataclass(frozen=True)
class Label:
    """One token as a page shows it; `piece` is True where it continues the token before it."""

    text: str
    raw: str
    special: bool
    segment: int
    piece: bool


def labels_from_tokens(tokens: Tokens, sentence: int) -> list[Label]:
    """The labels of one sentence, padding left out."""
    rows = zip(
        tokens.raw[sentence],
        tokens.strings[sentence],
        tokens.special[sentence],
        # Segments are a padded tensor: longer than the tuples.
        tokens.segments[sentence].tolist(),
        strict=False,
    )
    return [
        Label(text, raw, bool(special), int(segment), _is_piece(raw))
        for raw, text, special, segment in rows
    ]


def labels_from_strings(
    tokens: Sequence[str], sentence_b_start: int | None, prettify: bool = True
) -> list[Label]:
    """The labels of a tokenizer's own strings, made readable unless `prettify` is False."""
    start = len(tokens) if sentence_b_start is None else sentence_b_start
    return [
        Label(
            readable(token) if prettify else token,
            token,
            token in _SPECIAL,
            int(i >= start),
            _is_piece(token),
        )
        for i, token in enumerate(tokens)
    ]


def _is_piece(raw: str) -> bool:
    return raw.startswith(_PIECE_MARK) and len(raw) > len(_PIECE_MARK)


def readable(raw: str) -> str:
    """A tokenizer's own string without its marks for spaces and joints: `##`, `Ġ`, `▁`, `</w>`."""
    if _is_piece(raw):
        return raw[len(_PIECE_MARK) :]
    if raw.endswith(_END_MARK) and raw != _END_MARK:
        return raw[: -len(_END_MARK)]
    return " " + raw[1:] if raw.startswith(_SPACE_MARKS) else raw


def written_texts(labels: Sequence[Label]) -> list[str]:
    """The one or two texts that the labels spell, for tokens whose text is not known."""
    spaced = any(label.text.startswith(" ") for label in labels)
    texts = []
    for segment in sorted({label.segment for label in labels}):
        words = [label for label in labels if label.segment == segment and not label.special]
        joined = "".join(
            word.text if spaced or word.piece or word.text in _CLOSING else " " + word.text
            for word in words
        )
        texts.append(joined.strip())
    return texts


def is_cut(tokens: Tokens, sentence: int) -> bool:
    """True where the tokens of a known text end before the text, as `truncate=True` leaves them."""
    texts = tokens.texts[sentence] if tokens.texts else ()
    ends: list[int] = []
    before = (-1, 0)
    # Segments are a padded tensor: longer than the spans.
    pairs = zip(tokens.segments[sentence].tolist(), tokens.spans[sentence], strict=False)
    for segment, span in pairs:
        if span is None:
            continue
        # Models without segments give both texts the first; the second then starts over.
        if not ends or segment != before[0] or span[0] < before[1]:
            ends.append(0)
        ends[-1] = max(ends[-1], span[1])
        before = (segment, span[0])
    if len(ends) != len(texts):
        return False
    return any(end < _written_end(text) for end, text in zip(ends, texts, strict=True))


def _written_end(text: str) -> int:
    """Where a text ends but for blanks, controls and marks, which tokenizers may leave out."""
    end = len(text)
    while end and unicodedata.category(text[end - 1])[0] in "CMZ":
        end -= 1
    return end


def label_columns(labels: Sequence[Label]) -> Json:
    """The labels as a page's header has them, one list a field; `raw` null where it is `text`."""
    return {
        "text": [label.text for label in labels],
        "raw": [None if label.raw == label.text else label.raw for label in labels],
        "special": [int(label.special) for label in labels],
        "segment": [label.segment for label in labels],
        "piece": [int(label.piece) for label in labels],
    }


@dataclass(frozen=True)
class Example:
    """A text in a model; `about` is the header of data.js but for its arrays."""

    about: Json
    blocks: tuple[Block, ...]
    small: Array
    """A little picture of each head, in codes: (layer, head, row, column); not in the file."""

    @property
    def size(self) -> int:
        """Bytes of its numbers in a file."""
        return sum(len(block.data) for block in self.blocks)

    def written(self, index: int) -> Json:
        """The header of this example as the page's `index`-th."""
        names = (name for name, _ in self.named_blocks(index))
        arrays = zip(names, (block.entry for block in self.blocks), strict=True)
        return {**self.about, "arrays": [{**entry, "block": name} for name, entry in arrays]}

    def named_blocks(self, index: int) -> Iterator[tuple[str, str]]:
        """The name in the page, and the digits, of each block."""
        return ((f"e{index}-{block.name}", block.data) for block in self.blocks)

    def with_blocks(self, blocks: Sequence[Block], note: str = "") -> "Example":
        """The example with more numbers, or with a note."""
        notes = [*self.about["notes"], *([note] if note else [])]
        return replace(self, about={**self.about, "notes": notes}, blocks=(*self.blocks, *blocks))


# Pixels a side of a head in the little pictures, at most; of all heads together.
_TILE, PIXELS = 36, 250_000


def small_side(n_heads: int) -> int:
    """Cells a side of a head's little picture, so that many heads do not make a large image."""
    return max(1, min(_TILE, math.isqrt(PIXELS // n_heads)))


def _little(pooled: Sequence[Array]) -> Array:
    """The little pictures of the weights of all layers, (head, query, key) each."""
    side = small_side(len(pooled) * len(pooled[0]))
    return encode_probs(np.stack([pool(weights, side) for weights in pooled]))


def needed_parts(examples: Sequence[Example]) -> tuple[str, ...]:
    """The parts of `document.PARTS` that some example has the numbers for."""
    held = {block.entry["quantity"] for example in examples for block in example.blocks}
    vectors, layers = "query" in held, any(example.about["lens"] for example in examples)
    return ("page", *(["vectors"] if vectors else []), *(["layers"] if layers else []))


def weights_example(
    probs: dict[int, Array],
    labels: Sequence[Label],
    *,
    n_layers: int,
    heads: Sequence[int],
    key_labels: Sequence[Label] | None = None,
    name: str = "",
    model: str = "",
) -> Example:
    """Attention weights, (head, query, key) of each layer by its number, as an example."""
    n_heads = len(next(iter(probs.values())))
    shown = {layer: of_heads(weights, heads) for layer, weights in probs.items()}
    # Two at a time: compressing lets go of Python's lock.
    with ThreadPoolExecutor(2) as workers:
        blocks = list(workers.map(pack_layer, shown, shown.values()))
    triangle = all(block.entry["triangle"] for block in blocks)
    if max(next(iter(shown.values())).shape[1:]) > THUMBNAIL:
        # In front: the small pictures of all heads can be drawn before the rest is there.
        blocks.insert(0, pack_thumbnails([pool(weights) for weights in shown.values()]))
    about = header_of(
        labels,
        causal=triangle,
        heads=list(heads),
        key_tokens=None if key_labels is None else label_columns(key_labels),
        layers=list(probs),
        model=model,
        name=name,
        sizes={"d_head": None, "n_heads": n_heads, "n_layers": n_layers},
        texts=[*written_texts(labels), *written_texts(key_labels or ())],
    )
    return Example(about, tuple(blocks), _little(list(shown.values())))


def header_of(labels: Sequence[Label], **about: object) -> Json:
    """The header of a text with these tokens; what is not said is as in a plain pass."""
    usual: Json = {
        "cut": False,
        "edited": False,
        "key_tokens": None,
        "lens": None,
        "name": "",
        "notes": [],
        "scale": None,
    }
    return {**usual, "tokens": label_columns(labels), **about}


# Above so many tokens a browser computes the weights: all of them, or those that are not future.
_LONGEST, _LONGEST_CAUSAL = 256, 512


@dataclass(frozen=True)
class Sentence:
    """A sentence of a trace, its padding left out."""

    trace: Paged
    index: int
    labels: list[Label] = field(init=False)

    def __post_init__(self) -> None:
        """Raise AttentionError for a sentence without tokens."""
        labels = labels_from_tokens(self.trace.tokens, self.index)
        if not labels:
            raise AttentionError(f"sentence {self.index} of the trace has no tokens")
        object.__setattr__(self, "labels", labels)

    def probs(self, layer: int) -> Array:
        """The weights of a layer, (head, query, key)."""
        name, length = f"trace[{layer}].probs", len(self.labels)
        probs = to_array(self.trace[layer].probs[self.index], name)[:, :length, :length]
        # An edit may have changed the sums of rows on purpose.
        return checked_layer(probs, f"{name}[{self.index}]", row_sums=False)

    def vectors(self, name: str, layer: int) -> Array:
        """query, key or value of a layer, (head or kv_head, position, d_head)."""
        where = f"trace[{layer}].{name}"
        vectors = getattr(self.trace[layer], name)[self.index, :, : len(self.labels)]
        numbers = to_array(vectors, where)
        if not np.isfinite(numbers.sum()) and not np.isfinite(numbers).all():
            head, position, _ = np.argwhere(~np.isfinite(numbers))[0]
            raise AttentionError(
                f"{where}[{self.index}] is not finite at head {head}, position {position}"
            )
        return numbers


@dataclass
class _Read:
    """What came of reading all layers once."""

    probs: list[Block] = field(default_factory=list)
    vectors: list[Block] = field(default_factory=list)
    pooled: list[Array] = field(default_factory=list)
    agreeing: bool = True
    """The vectors give the model's weights."""


def trace_example(sentence: Sentence, name: str, holding: Holding) -> Example:
    """The sentence, as an example of that name, with all that `holding` asks for but value."""
    read = _read(sentence, holding)
    if not (read.agreeing or read.probs):
        read.probs = [
            pack_layer(layer, of_heads(sentence.probs(layer), holding.heads))
            for layer in holding.layers
        ]
    trace, labels = sentence.trace, sentence.labels
    config = trace.config
    known = trace.tokens.texts[sentence.index] if trace.tokens.texts else ()
    about = header_of(
        labels,
        causal=bool(config.causal) and all(block.entry["triangle"] for block in read.probs),
        cut=is_cut(trace.tokens, sentence.index),
        edited=not read.agreeing,
        heads=list(holding.heads),
        layers=list(holding.layers),
        model=without_folder(trace.model_name),
        name=name,
        scale=scales_of(config, holding.layers) if read.vectors else None,
        sizes=sizes_of(config),
        texts=list(known) or written_texts(labels),
        **looking_header(config, holding.layers),
    )
    if not read.agreeing and (apart := getattr(config, "apart", "")):
        about["apart"] = apart
    if read.vectors:
        about |= rotation_header(config, holding.layers, len(labels))
    thumbnails = [pack_thumbnails(read.pooled)] if len(labels) > THUMBNAIL else []
    blocks = (*thumbnails, *read.probs, *read.vectors)
    return Example(about, blocks, _little(read.pooled))


def sizes_of(config: Sizes) -> dict[str, int]:
    """The sizes of a model that a page's example has; n_kv_heads where heads share keys."""
    sizes = {size: getattr(config, size) for size in ("d_head", "n_heads", "n_layers")}
    shared = config.n_kv_heads
    return sizes if shared == config.n_heads else {**sizes, "n_kv_heads": shared}


def without_folder(name: str) -> str:
    """A model's name; of a path only its end, since pages are passed on to others."""
    is_path = os.path.isabs(name) or name.startswith((".", "~"))
    return os.path.basename(os.path.normpath(name)) if is_path else name


def scales_of(config: Sizes, layers: Sequence[int]) -> list[float]:
    """What query·key is multiplied by in each layer."""
    return [float(config.attention_scale(layer)) for layer in layers]


def _read(sentence: Sentence, holding: Holding) -> _Read:
    length, read = len(sentence.labels), _Read()
    longest = _LONGEST_CAUSAL if sentence.trace.config.causal else _LONGEST
    short = length <= longest and not holding.coded
    with_probs = short or not holding.vectors
    for layer in holding.layers:
        probs = of_heads(sentence.probs(layer), holding.heads)
        if with_probs:
            read.probs.append(pack_layer(layer, probs))
        read.pooled.append(pool(probs))
        blocks, agreeing = packed_vectors(sentence.trace, layer, sentence.vectors, probs, holding)
        read.vectors.extend(blocks)
        read.agreeing &= agreeing
    return read
