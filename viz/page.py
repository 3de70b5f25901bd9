"""A page as a value: one HTML file that opens without a network, or a cell of a notebook.

examples -> header and blocks -> document -> pieces of HTML -> file, text, or output of a cell

Notebooks that trust what is in them run the cell's script, which puts the page in place of a text
and an image; others strip it, and those two are what is seen. The numbers are part of the cell's
output, and so of the notebook's file.
"""

import base64
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import urlencode

import numpy as np

from minibert.errors import AttentionError
from minibert.viz.document import Written, cell, document, page_header
from minibert.viz.example import Example, needed_parts
from minibert.viz.less import SAVED, has_weights, layers_of, lessened
from minibert.viz.payload import CODE_MAX, Array, cells_of, pool

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


def _pooled(example: Example) -> Array | None:
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


def _shrunk(codes: Array, side: int) -> Array:
    return pool(codes.astype(np.float32), side).astype(np.uint8)


def _png(shades: Array) -> bytes:
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


# The pictures of a page, in the order of their tabs.
VIEWS = ("head", "model", "neuron", "arithmetic", "map", "text", "layers")


@dataclass(frozen=True, repr=False)
class Page(Written):
    """Attention as one self-contained HTML file with linked views.

    It shows itself in a notebook and has `.save(path)`.
    """

    examples: tuple[Example, ...]
    """What can be looked at: a text in a model each."""
    view: str = "head"
    """The view that it opens with."""
    title: str | None = None
    start: tuple[tuple[str, str], ...] = ()
    """What else is chosen when it opens, as the page's address names it: ("layer", "3")."""

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        blocks = (named for i, one in enumerate(self.examples) for named in one.named_blocks(i))
        parts = needed_parts(self.examples)
        return document(self._header(self.examples), blocks, parts=parts)

    def _header(self, examples: Sequence[Example]) -> str:
        written = [one.written(i) for i, one in enumerate(examples)]
        return page_header(written, title=self.title, view=self.view, start=urlencode(self.start))

    @property
    def data(self) -> str:
        """The same as `html`, by the name that it has on what BertViz returns."""
        return self.html

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<Page of {self.size / 1000:.0f} kB; save('attention.html') writes it to a file>"

    def _repr_html_(self) -> str:
        """The page in a frame, where it reaches nothing outside; below 8 MB, see notebook.py."""
        held = replace(self, examples=fitting(self.examples) or self.examples)
        return (
            f'<iframe srcdoc="{escape(held.html)}" sandbox="allow-scripts allow-downloads"'
            f' title="Attention" style="width: 100%; height: {CELL_HEIGHT}px; border: 0">'
            f"{escape(repr(self))}</iframe>"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The page in a cell of Jupyter, VS Code or Colab, below 8 MB."""
        return {"text/html": cell_html(self.examples, self._header), "text/plain": repr(self)}

    def _mime_(self) -> tuple[str, str]:
        """The page in marimo, which runs no script of an output outside a frame."""
        return "text/html", self._repr_html_()


def checked_view(view: object) -> str:
    """The view, if there is one of that name. Raises AttentionError."""
    if view not in VIEWS:
        raise AttentionError(f"view={view!r}: there are {', '.join(VIEWS)}")
    return str(view)
