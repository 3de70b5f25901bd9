"""The logit lens as a table: the most probable token of each row and position, shaded by its share.

Few columns hold the tokens upright, more of them turned; a long text
is colour alone.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.viz.plots.base import Array, Output, array, panel_at, sheet
from minibert.viz.plots.heat import Heat, add_title, colour_bar, colours
from minibert.viz.plots.labels import inches_of, label_axis, plain, plain_text
from minibert.viz.plots.style import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

__all__ = ["lens_table"]

# Columns whose tokens stand level, and those whose tokens are turned; inches of a cell of each.
_LEVEL, _TURNED = 12, 45
_LEVEL_CELL, _TURNED_CELL = (0.62, 0.22), (0.15, 0.62)
# Characters of a token at most and at least, and the part of a cell that they may fill.
_LETTERS, _FILLED = (12, 2), 0.94


def lens_table(
    probs: Any,
    tokens: Sequence[Sequence[str]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    positions: Sequence[int],
    title: str,
    unit: str = "probability",
    path: Output = None,
) -> Figure:
    """A figure of (row, position): `tokens` in cells coloured by `probs`."""
    values = array(probs)
    R, C = values.shape
    heat = Heat(values, rows=rows, columns=columns, unit=unit, limits=(0.0, 1.0))
    cell = _LEVEL_CELL if C <= _LEVEL else _TURNED_CELL if C <= _TURNED else None
    width, height = heat.size if cell is None else (C * cell[0], R * cell[1])
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, width, height)
        image = panel.imshow(
            np.ma.masked_invalid(values), cmap=colours(False), vmin=0, vmax=1, aspect="auto"
        )
        label_axis(panel, "x", columns, width, positions=positions)
        label_axis(panel, "y", rows, height)
        panel.set_xlabel("token")
        panel.spines[:].set_visible(True)
        if cell is not None:
            _write_tokens(panel, values, tokens, max(cell), turned=cell is _TURNED_CELL)
        add_title(panel, title)
        bar = panel_at(figure, width + 0.12, 0.11, height)
        colour_bar(figure, bar, image, [], unit)
    return figure


def _write_tokens(
    panel: Axes, values: Array, tokens: Sequence[Sequence[str]], inches: float, *, turned: bool
) -> None:
    most, least = _LETTERS
    for (row, column), value in np.ndenumerate(values):
        text = plain_text(panel, column, row, "", fontsize=6, rotation=90 if turned else 0)
        text.set(ha="center", va="center", color="white" if value > 0.55 else INK)
        for longest in range(most, least, -1):
            text.set_text(plain(tokens[row][column], longest=longest, spaces=True))
            if inches_of(text) <= _FILLED * inches:
                break
