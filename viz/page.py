"""A page as a value: what it shows, written out as one HTML file that opens without a network.

examples -> header and blocks -> document -> pieces of HTML -> file, text, or frame of a notebook
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from minibert.errors import AttentionError
from minibert.viz.document import document
from minibert.viz.example import Example, needed_parts
from minibert.viz.notebook import CELL_HEIGHT, cell_html, fitting
from minibert.viz.payload import header_json
from minibert.viz.saving import write_page

__all__ = ["VIEWS", "Page", "checked_view"]

# The pictures of a page, in the order of their tabs.
VIEWS = ("head", "model", "neuron", "arithmetic", "map", "text", "layers")

_FORMAT = 2


@dataclass(frozen=True, repr=False)
class Page:
    """Attention as one self-contained HTML file with linked views.

    It shows itself in a notebook and has `.save(path)`. What it holds is kept in pieces: the
    file's text exists only while `html` is read.
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
        header = {
            "examples": [one.written(i) for i, one in enumerate(examples)],
            "format": _FORMAT,
            "start": urlencode(self.start),
            "title": self.title,
            "view": self.view,
        }
        return header_json(header)

    @property
    def html(self) -> str:
        """The whole file as one text."""
        return "".join(self.pieces())

    @property
    def data(self) -> str:
        """The same as `html`, by the name that it has on what BertViz returns."""
        return self.html

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(
            len(piece) if piece.isascii() else len(piece.encode()) for piece in self.pieces()
        )

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

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The page in a cell of Jupyter, VS Code or Colab, below 8 MB; see notebook.py."""
        return {"text/html": cell_html(self.examples, self._header), "text/plain": repr(self)}

    def _mime_(self) -> tuple[str, str]:
        """The page in marimo, which runs no script of an output outside a frame."""
        return "text/html", self._repr_html_()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path of the file, now written whole or not at all; see `saving.write_page`.

        Raises MinibertError when the folder is missing, may not be written to, or is full.
        """
        return write_page(self.pieces(), path)


def checked_view(view: Any) -> str:
    """The view, if there is one of that name. Raises AttentionError."""
    if view not in VIEWS:
        raise AttentionError(f"view={view!r}: there are {', '.join(VIEWS)}")
    return str(view)
