"""One sentence of a trace as a page holds it: weights, vectors, thumbnails.

A browser can compute the weights of a long text from query and key, which take 256 bytes a token
and head (128 where they are coded) where weights take one a token, head and token. It is given
both for a short text, and only the vectors for a long one and on a page that would be large, if
they give the model's weights: after an edit they may not.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minibert.errors import AttentionError
from minibert.viz.example import Example
from minibert.viz.inputs import Array, checked_layer, of_heads, to_array
from minibert.viz.labels import (
    Label,
    is_cut,
    label_columns,
    labels_from_tokens,
    written_texts,
)
from minibert.viz.looking import looking_header, n_key_heads, rotation_header
from minibert.viz.payload import (
    THUMBNAIL,
    Block,
    pack_layer,
    pack_thumbnails,
    pool,
)
from minibert.viz.vectors import Holding, packed_vectors

__all__ = ["Sentence", "sizes_of", "trace_example", "without_folder"]

# Above so many tokens a browser computes the weights: all of them, or those that are no future.
_LONGEST, _LONGEST_CAUSAL = 256, 512


@dataclass(frozen=True)
class Sentence:
    """A sentence of a trace, its padding left out."""

    trace: Any
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
    if not (read.agreeing or read.probs or holding.overview):
        read.probs = [_packed_probs(sentence, layer, holding) for layer in holding.layers]
    trace, labels = sentence.trace, sentence.labels
    config = trace.config
    known = trace.tokens.texts[sentence.index] if trace.tokens.texts else ()
    about = {
        "causal": bool(config.causal) and all(block.entry["triangle"] for block in read.probs),
        "cut": is_cut(trace.tokens, sentence.index),
        "edited": not read.agreeing,
        "heads": list(holding.heads),
        "key_tokens": None,
        "layers": list(holding.layers),
        "lens": None,
        "model": without_folder(trace.model_name),
        "name": name,
        "notes": [],
        "scale": _scales(config, holding) if read.vectors else None,
        "sizes": sizes_of(config),
        "texts": list(known) or written_texts(labels),
        "tokens": label_columns(labels),
    }
    about |= looking_header(config, holding.layers)
    if pictures := getattr(trace, "pictures", ()):
        about |= {"image": pictures[sentence.index], "texts": ["The picture"]}
    if not read.agreeing and (apart := getattr(config, "apart", "")):
        about["apart"] = apart
    if read.vectors:
        about |= rotation_header(config, holding.layers, len(labels))
    thumbnails = [pack_thumbnails(read.pooled)] if read.pooled else []
    return Example(about, (*thumbnails, *read.probs, *read.vectors))


def sizes_of(config: Any) -> dict[str, int]:
    """The sizes of a model that a page's example has; n_kv_heads where heads share keys."""
    sizes = {size: getattr(config, size) for size in ("d_head", "n_heads", "n_layers")}
    shared = n_key_heads(config)
    return sizes if shared == config.n_heads else {**sizes, "n_kv_heads": shared}


def without_folder(name: str) -> str:
    """A model's name; of a path only its end, since pages are passed on to others."""
    is_path = os.path.isabs(name) or name.startswith((".", "~"))
    return os.path.basename(os.path.normpath(name)) if is_path else name


def _scales(config: Any, holding: Holding) -> list[float]:
    return [float(config.attention_scale(layer)) for layer in holding.layers]


def _read(sentence: Sentence, holding: Holding) -> _Read:
    length, read = len(sentence.labels), _Read()
    longest = _LONGEST_CAUSAL if sentence.trace.config.causal else _LONGEST
    short = length <= longest and not holding.coded
    with_probs = not holding.overview and (short or not holding.vectors)
    for layer in holding.layers:
        probs = of_heads(sentence.probs(layer), holding.heads)
        if with_probs:
            read.probs.append(pack_layer(layer, probs))
        if length > THUMBNAIL or holding.overview:
            read.pooled.append(pool(probs))
        if not holding.overview:
            blocks, agreeing = packed_vectors(
                sentence.trace, layer, sentence.vectors, probs, holding
            )
            read.vectors.extend(blocks)
            read.agreeing &= agreeing
    return read


def _packed_probs(sentence: Sentence, layer: int, holding: Holding) -> Block:
    return pack_layer(layer, of_heads(sentence.probs(layer), holding.heads))
