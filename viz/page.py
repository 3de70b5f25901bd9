"""A page as a value: one HTML file that opens without a network, or a cell of a notebook.

examples -> header and blocks -> document -> pieces of HTML -> file, text, or output of a cell

In a cell the file stands in a frame, which reaches nothing outside, over a text and an image. Where
no frame is shown, as in a notebook that is not trusted, those two are what is seen; on paper made
by LaTeX it is the image. All of it is part of the cell's output, and so of the notebook's file.
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import get_args
from urllib.parse import urlencode

import numpy as np

from minibert.doors import View
from minibert.errors import AttentionError, did_you_mean
from minibert.viz.document import Written, document, page_header
from minibert.viz.example import PIXELS, Example, needed_parts
from minibert.viz.payload import CODE_MAX, Array

# marimo shows no output above this size, Colab and VS Code become slow.
CELL_BYTES = 8_000_000
# CSS pixels.
CELL_HEIGHT = 720
_TOO_LARGE = (
    "This page is too large for a notebook. `.save(path)` writes it to a file; a page of fewer"
    " layers or heads, or of a smaller model, can be shown here."
)
_TRUST = "To use the picture, trust this notebook or run its cell again."
# Pixels between two heads in the picture without scripts.
_GAP = 4
# Fewer shades than codes: the image is half as large, and looks the same.
_SHADE = 8
_PAPER, _INK = (255, 255, 255), (29, 60, 110)


def still(examples: Sequence[Example], advice: str) -> str:
    """What is seen where no script runs: what this is, and a picture of it; "" for no example."""
    if not examples:
        return ""
    about = examples[0].about
    sizes, n_tokens = about["sizes"], len(about["tokens"]["text"])
    layers, heads = len(about["layers"]), len(about["heads"])
    named = f"{about['model']}, " if about["model"] else ""
    what = f"Attention: {named}{layers} of {sizes['n_layers']} layers, {heads} of"
    what += f" {sizes['n_heads']} heads, {n_tokens} tokens."
    text = _printable(" / ".join(about["texts"]))
    lines = f"<p><b>{escape(_printable(what))}</b><br>{escape(text)}</p><p>{escape(advice)}</p>"
    seen = (
        "One row for each layer, one column for each head. Within each, rows are the tokens that "
    )
    seen += "look and columns the tokens looked at: darker means more."
    source = f"data:image/png;base64,{base64.b64encode(picture(examples[0])).decode()}"
    return f'{lines}<p><img alt="{seen}" src="{source}"></p><p>{seen}</p>'


def _printable(text: str, limit: int = 400) -> str:
    """Text for HTML and for a notebook's file, which is UTF-8: no NUL, no lone surrogates."""
    shown = "".join(one if one.isprintable() else "�" for one in " ".join(text.split()))
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def picture(example: Example) -> bytes:
    """A PNG of every head, a row a layer.

    Written by hand: it is small, and the same with and without matplotlib.
    """
    n_layers, n_heads, n_queries, n_keys = example.small.shape
    side = math.isqrt(PIXELS // (n_layers * n_heads))
    enlarged = max(1, side // max(n_queries, n_keys))
    tiles = example.small.repeat(enlarged, -2).repeat(enlarged, -1)
    height, width = tiles.shape[-2:]
    image = np.zeros((n_layers, height + _GAP, n_heads, width + _GAP), np.uint8)
    shades = np.maximum(tiles // _SHADE, 2)
    image[:, :height, :, :width] = shades.transpose(0, 2, 1, 3)
    return _png(image.reshape(n_layers * (height + _GAP), n_heads * (width + _GAP)))


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


class Shown(Written):
    """A page that shows itself in a notebook."""

    examples: tuple[Example, ...]
    """What can be looked at: a text in a model each."""
    height: int = CELL_HEIGHT
    """CSS pixels in a cell."""

    @property
    def fits_cell(self) -> bool:
        """True where a notebook can hold the page."""
        return len(self._framed()) <= CELL_BYTES

    def _framed(self) -> str:
        place = f"grid-area: 1 / 1; margin: 0; width: 100%; height: {self.height}px"
        # Nothing is painted behind the page: until a browser draws it, the picture is seen.
        return (
            f'<div style="display: grid"><div style="{place}; overflow: hidden">'
            f"{still(self.examples, _TRUST)}</div>"
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts allow-downloads"'
            f' title="Attention" style="{place}; border: 0"></iframe></div>'
        )

    def _repr_html_(self) -> str:
        """The page in a frame over its picture; above 8 MB only the picture."""
        html = self._framed()
        return html if len(html) <= CELL_BYTES else f"<div>{still(self.examples, _TOO_LARGE)}</div>"

    def _repr_png_(self) -> bytes | None:
        """The picture of the first text, for what shows no HTML."""
        return picture(self.examples[0]) if self.examples else None

    def _mime_(self) -> tuple[str, str]:
        """The page in marimo."""
        return "text/html", self._repr_html_()


# The pictures of a page, in the order of their tabs.
VIEWS: tuple[str, ...] = get_args(View)


@dataclass(frozen=True, repr=False)
class Page(Shown):
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
        numbered = list(enumerate(self.examples))
        written, start = [one.written(i) for i, one in numbered], urlencode(self.start)
        header = page_header(written, title=self.title, view=self.view, start=start)
        blocks = (named for i, one in numbered for named in one.named_blocks(i))
        return document(header, blocks, parts=needed_parts(self.examples))

    @property
    def data(self) -> str:
        """The page's HTML, by the name that BertViz's results use for it."""
        return self.html

    def __repr__(self) -> str:
        """One line: the text of a page is long."""
        return f"<Page of {self.size / 1000:.0f} kB; save('attention.html') writes it to a file>"


def checked_view(view: object) -> str:
    """The view, if there is one of that name. Raises AttentionError."""
    if view not in VIEWS:
        guess = did_you_mean(view, VIEWS)
        raise AttentionError(f"view={view!r}{guess}: there are {', '.join(VIEWS)}")
    return str(view)
