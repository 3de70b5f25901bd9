"""A figure that keeps its look wherever it is saved or shown.

Only sheet.py imports this file, and only to draw: it cannot be imported without matplotlib.
"""

import io
from typing import Any

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure

from minibert.viz.plots.sheet import METADATA, RESULT_STYLE, style


class ResultFigure(Figure):
    """A matplotlib Figure; text is saved as text, and a notebook shows it without pyplot."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw everything, with minibert's settings in place of the user's."""
        with style(RESULT_STYLE):
            super().draw(renderer)

    def savefig(self, fname: Any, **options: Any) -> None:
        """As matplotlib's own, at 200 dots an inch and without a date unless told otherwise."""
        kind = str(options.get("format") or str(fname).rpartition(".")[2]).lower()
        options.setdefault("metadata", METADATA.get(kind))
        with style(RESULT_STYLE):
            super().savefig(fname, **options)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        # matplotlib shows a figure in a notebook only once pyplot was imported.
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=144)
        width, height = (round(96 * side) for side in self.get_size_inches())
        return content.getvalue(), {"width": width, "height": height}
