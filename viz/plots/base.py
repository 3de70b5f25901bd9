"""The sheet that a figure for print is drawn on, its numbers, and the file it is saved to.

A figure is made without pyplot, so that no
window, no back end and no global state has a part in it; `sheet` cuts it to what was drawn.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from minibert.viz.document import write_bytes
from minibert.viz.plots.labels import measurer
from minibert.viz.plots.style import METADATA, RESULT_STYLE, kind_of, needed_matplotlib, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

__all__ = ["Array", "Figure", "Output", "array", "panel_at", "save", "sheet"]

Array = npt.NDArray[np.float64]
Output = str | Path | None

# Inches: more than any picture needs, and what is left white around one.
_SHEET, _MARGIN = 40.0, 0.08


def save(figure: Figure, output: str | Path) -> None:
    """Write a figure, as SVG, PDF or PNG by the end of the name."""
    kind, content = kind_of(output), io.BytesIO()
    figure.savefig(content, format=kind, dpi=200, metadata=METADATA[kind])
    write_bytes(content.getvalue(), output)


@contextmanager
def sheet(output: Output) -> Iterator[Figure]:
    """A figure to draw on with `panel_at`; afterwards it is cut to what was drawn, and saved.

    Raises MinibertError without matplotlib and for a kind of file that is none of three, before
    anything is drawn.
    """
    if output is not None:
        kind_of(output)
    matplotlib = needed_matplotlib()
    from minibert.viz.plots.figure import ResultFigure

    with style(matplotlib, RESULT_STYLE | _fonts(matplotlib)):
        figure = ResultFigure(figsize=(_SHEET, _SHEET))
        yield figure
        _cut(figure)
    if output is not None:
        save(figure, output)


def panel_at(figure: Figure, left: float, width: float, height: float, drop: float = 0.0) -> Axes:
    """Axes of a size in inches, that far from the left; tops are level but for `drop`."""
    bottom = _SHEET * 3 / 4 - drop - height
    x, y, w, h = (side / _SHEET for side in (_SHEET / 4 + left, bottom, width, height))
    return figure.add_axes((x, y, w, h))


def array(values: Any) -> Array:
    """A tensor's numbers on the host; nan for what is not finite."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _cut(figure: Figure) -> None:
    """Make the figure as large as what is on it; every panel keeps its size in inches."""
    # Ticks are made when they are first drawn, with the settings of that moment.
    figure.draw(measurer(figure.dpi))
    box = figure.get_tightbbox(measurer(figure.dpi))
    left, bottom = box.x0 - _MARGIN, box.y0 - _MARGIN
    width, height = box.width + 2 * _MARGIN, box.height + 2 * _MARGIN
    # The old fractions are read before the new size changes what they mean.
    places = [(panel, panel.get_position().bounds) for panel in figure.axes]
    figure.set_size_inches(width, height)
    for panel, (x, y, w, h) in places:
        moved = ((x * _SHEET - left) / width, (y * _SHEET - bottom) / height)
        panel.set_position((*moved, w * _SHEET / width, h * _SHEET / height))


def _fonts(matplotlib: Any) -> dict[str, Any]:
    """DejaVu Sans, and for what it lacks the fonts of the user's own settings that exist."""
    from matplotlib import font_manager

    chosen: list[str] = []
    for family in matplotlib.rcParams["font.family"]:
        chosen += matplotlib.rcParams.get(f"font.{family}", [family])
    known = set(font_manager.get_font_names())
    ours = "DejaVu Sans"
    return {"font.family": [ours, *(name for name in chosen if name in known and name != ours)]}
