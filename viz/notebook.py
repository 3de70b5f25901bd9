"""A page in a cell of a notebook: the picture that moves, and what is left of it without scripts.

examples, header -> HTML: text, PNG, script -> mime bundle

Notebooks that trust what is in them run the script, which puts the page in place of the text and
the image; others strip it, and those two are what is seen. The numbers are part of the cell's
output, and so of the notebook's file.
"""

import base64
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from minibert.viz.document import cell
from minibert.viz.example import Example, needed_parts
from minibert.viz.less import SAVED, has_weights, layers_of, lessened
from minibert.viz.payload import CODE_MAX, cells_of, pool

__all__ = [
    "CELL_BYTES",
    "CELL_HEIGHT",
    "CELL_TALLEST",
    "cell_html",
    "fitting",
    "picture",
    "surroundings",
]

# marimo shows no output above this size, Colab and VS Code become slow.
CELL_BYTES = 8_000_000
# CSS pixels: of a frame, and of a cell at most, which is as tall as what it shows.
CELL_HEIGHT, CELL_TALLEST = 720, 900
# What the image and the text take beside script and numbers, at most.
_STILL = 300_000
# Pixels a side of a head in the picture without scripts, at most, and between two; of all heads.
_TILE, _GAP, _PIXELS = 36, 4, 250_000
# Fewer shades than codes: the image is half as large, and looks the same.
_SHADE = 8
_PAPER, _INK = (255, 255, 255), (29, 60, 110)


def fitting(examples: Sequence[Example], limit: int = CELL_BYTES) -> tuple[Example, ...]:
    """The examples with as much of their numbers as a cell can hold, noting what was left out.

    What goes first is in less.py; empty when not even an overview fits.
    """
    room = limit - surroundings()
    for tried in lessened(tuple(examples)):
        written = sum(example.size + len(json.dumps(example.about)) for example in tried)
        if written <= room:
            return tried
    return ()


def surroundings() -> int:
    """Bytes of a cell that hold no numbers, at most."""
    return sum(len(piece.encode()) for piece in cell("", "{}", (), height=CELL_TALLEST)) + _STILL


def cell_html(
    examples: Sequence[Example],
    header: Callable[[Sequence[Example]], str],
    *,
    limit: int = CELL_BYTES,
    height: int = CELL_TALLEST,
) -> str:
    """HTML of at most `limit` bytes: an element with a text and an image, and a script for it.

    `header` gives the page's header, as JSON that may stand in a script, of the examples it holds.
    """
    held = fitting(examples, limit)
    if not held:
        too_large = f"This page is too large for a notebook. {SAVED}"
        return f"<div>{_still(examples, too_large)}</div>"
    untrusted = "To use the picture, trust this notebook or run its cell again."
    blocks = [named for i, one in enumerate(held) for named in one.named_blocks(i)]
    written = header(held)
    identity = _identity(written, blocks)
    parts = needed_parts(held)
    script = "".join(cell(identity, written, blocks, height=height, parts=parts))
    still = _still(held, untrusted)
    return f'<div data-minibert="{identity}">{still}\n<script>\n{script}</script></div>'


def _identity(header: str, blocks: Sequence[tuple[str, str]]) -> str:
    """The same for the same page, so that running a cell again does not change its notebook."""
    digest = hashlib.sha256(header.encode())
    for _, data in blocks:
        digest.update(data.encode())
    return digest.hexdigest()[:24]


def _still(examples: Sequence[Example], advice: str) -> str:
    """What is seen where no script runs: what this is, and a picture of it."""
    about = examples[0].about
    sizes, n_tokens = about["sizes"], len(about["tokens"]["text"])
    layers, heads = len(about["layers"]), len(about["heads"])
    named = f"{about['model']}, " if about["model"] else ""
    what = f"Attention: {named}{layers} of {sizes['n_layers']} layers, {heads} of"
    what += f" {sizes['n_heads']} heads, {n_tokens} tokens."
    text = _printable(" / ".join(about["texts"]))
    lines = f"<p><b>{escape(_printable(what))}</b><br>{escape(text)}</p><p>{escape(advice)}</p>"
    image = picture(examples[0])
    if not image:
        return lines
    seen = "A row a layer, a column a head; in each, a row a token that looks, a column a token "
    seen += "that is looked at: the darker, the more."
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return f'{lines}<p><img alt="{seen}" src="{source}"></p><p>{seen}</p>'


def _printable(text: str, limit: int = 400) -> str:
    """Text for HTML and for a notebook's file, which is UTF-8: no NUL, no lone surrogates."""
    shown = "".join(one if one.isprintable() else "�" for one in " ".join(text.split()))
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def picture(example: Example) -> bytes:
    """A PNG of every head, a row a layer; empty when the example holds no weights.

    Written by hand: it is small, and the same with and without matplotlib.
    """
    codes = _pooled(example)
    if codes is None:
        return b""
    n_layers, n_heads, n_queries, n_keys = codes.shape
    enlarged = max(1, _side(example) // max(n_queries, n_keys))
    tiles = codes.repeat(enlarged, -2).repeat(enlarged, -1)
    height, width = tiles.shape[-2:]
    image = np.zeros((n_layers, height + _GAP, n_heads, width + _GAP), np.uint8)
    shades = np.maximum(tiles // _SHADE, 2)
    image[:, :height, :, :width] = shades.transpose(0, 2, 1, 3)
    return _png(image.reshape(n_layers * (height + _GAP), n_heads * (width + _GAP)))


def _pooled(example: Example) -> npt.NDArray[np.uint8] | None:
    """Codes of all heads, (layer, head, query, key), at most a tile's pixels a side."""
    side = _side(example)
    ready = [one for one in example.blocks if one.entry["quantity"] == "thumbnails"]
    if ready:
        return _shrunk(cells_of(ready[0]), side)
    if not has_weights(example):
        return None
    return np.stack([_shrunk(codes, side) for codes in layers_of(example)])


def _side(example: Example) -> int:
    """Pixels a side of a head, so that many heads do not make a large image."""
    n_heads = len(example.about["layers"]) * len(example.about["heads"])
    return max(1, min(_TILE, math.isqrt(_PIXELS // n_heads)))


def _shrunk(codes: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    return pool(codes.astype(np.float32), side).astype(np.uint8)


def _png(shades: npt.NDArray[np.uint8]) -> bytes:
    """A PNG (ISO/IEC 15948) of a shade for every `_SHADE` codes; 0 is paper, the last is ink."""
    height, width = shades.shape
    darkest = np.arange(_SHADE - 1, CODE_MAX + 1, _SHADE)
    share = np.where(darkest < _SHADE, 0, darkest / CODE_MAX)[:, None]
    palette = np.rint((1 - share) * _PAPER + share * np.array(_INK)).astype(np.uint8)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), shades], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
