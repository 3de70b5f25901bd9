"""A pass as the views draw it: the header of a page's example, and its blocks when looked at.

The numbers are those of a static page (payload.py, static/core/data/data.js), not packed: weights
in one byte, square-root coded; query, key and value in single precision, as the model had them.
"""

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import MinibertError
from minibert.trace.read import Trace
from minibert.viz.labels import label_columns
from minibert.viz.lens import computed_lens, has_lens
from minibert.viz.looking import looking_header, rotation_header
from minibert.viz.payload import THUMBNAIL, encode_probs, pool
from minibert.viz.trace_example import Sentence, sizes_of

__all__ = ["block_of", "header_of"]

_LENS = "lens"
_VECTORS = ("query", "key", "value")
_BLOCK = re.compile(r"(probs|query|key|value)-(0|[1-9]\d{0,3})")


def header_of(trace: Trace, model: str, *, edited: bool) -> dict[str, Any]:
    """The header of the pass: ExampleHeader of data.js. `edited`: scores or probs were."""
    config, labels = trace.config, Sentence(trace, 0).labels
    arrays = [
        _entry(name, layer, [_n_heads(trace, name), len(labels), _width(trace, name)])
        for layer in range(config.n_layers)
        for name in ("probs", *_VECTORS)
    ]
    if len(labels) > THUMBNAIL:
        shape = [config.n_layers, config.n_heads, THUMBNAIL, THUMBNAIL]
        arrays.insert(0, {**_entry("probs", 0, shape), "block": "thumbnails", "layer": None})
        arrays[0]["quantity"] = "thumbnails"
    return {
        "arrays": arrays,
        "causal": bool(config.causal),
        "cut": False,
        "edited": edited,
        "heads": list(range(config.n_heads)),
        "key_tokens": None,
        "layers": list(range(config.n_layers)),
        "lens": {"block": _LENS} if has_lens(trace) else None,
        "model": model,
        "name": "",
        "notes": [],
        "scale": [float(config.attention_scale(layer)) for layer in range(config.n_layers)],
        "sizes": sizes_of(config),
        "texts": list(trace.tokens.texts[0]),
        "tokens": label_columns(labels),
        **looking_header(config, range(config.n_layers)),
        **rotation_header(config, range(config.n_layers), len(labels)),
    }


def _n_heads(trace: Trace, name: str) -> int:
    return trace.config.n_kv_heads if name in ("key", "value") else trace.config.n_heads


def _width(trace: Trace, name: str) -> int:
    return trace.allowed.position if name == "probs" else trace.config.d_head


def _entry(name: str, layer: int, shape: list[int]) -> dict[str, Any]:
    codes = name == "probs"
    return {
        "block": f"{name}-{layer}",
        "coding": "sqrt" if codes else "plain",
        "dtype": "uint8" if codes else "float32",
        "head": None,
        "layer": layer,
        "packing": "none",
        "quantity": name,
        "shape": shape,
        "triangle": False,
    }


def block_of(trace: Trace, name: str) -> npt.NDArray[Any]:
    """The numbers of a block that `header_of` names, in its shape; the lens as JSON.

    Raises MinibertError for another name and for predictions that are not finite, and
    AttentionError for other numbers that are not.
    """
    sentence = Sentence(trace, 0)
    if name == _LENS and has_lens(trace):
        return _lens_block(trace, len(sentence.labels))
    if name == "thumbnails" and len(sentence.labels) > THUMBNAIL:
        pooled = [pool(sentence.probs(layer)) for layer in range(trace.config.n_layers)]
        return encode_probs(np.stack(pooled))
    found = _BLOCK.fullmatch(name)
    if not found or int(found[2]) >= trace.config.n_layers:
        raise MinibertError(f"There is no block {name!r:.80} of this pass.")
    quantity, layer = found[1], int(found[2])
    if quantity == "probs":
        return encode_probs(sentence.probs(layer))
    return sentence.vectors(quantity, layer).astype(np.float32, copy=False)


def _lens_block(trace: Trace, length: int) -> npt.NDArray[Any]:
    """The bytes of what each layer would predict."""
    try:
        text = json.dumps(computed_lens(trace, 0, length), allow_nan=False)
    except ValueError as error:
        raise MinibertError(
            "What a layer would predict has NaN or infinity. An edit has set too large a value, or "
            "the weights are broken."
        ) from error
    return np.frombuffer(text.encode(), np.uint8)
