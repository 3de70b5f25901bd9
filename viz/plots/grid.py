"""Maps made of many cells: a small map for each of many heads, and the tokens of a lens.

In the lens few columns hold the tokens upright, more of them turned; a long text is colour alone.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from minibert.viz.plots.heat import Heat, add_title, colour_bar, colours, scale
from minibert.viz.plots.sheet import (
    FAINT,
    INK,
    Output,
    inches_of,
    label_axis,
    panel_at,
    plain,
    plain_text,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = AxesImage = Figure = object

# Inches: a tile at most, the whole width, and the gaps between tiles with and without a name.
_TILE, _WIDEST, _NAMED, _UNNAMED = 1.5, 6.6, 0.22, 0.05
# Cells along a side of a tile; beyond them blocks are drawn as their largest.
_FINEST = 128
# Columns whose tokens stand level, and those whose tokens are turned; inches of a cell of each.
_LEVEL, _TURNED = 12, 45
_LEVEL_CELL, _TURNED_CELL = (0.62, 0.22), (0.15, 0.62)
# Characters of a token at most and at least, and the part of a cell that they may fill.
_LETTERS, _FILLED = (12, 2), 0.94


def head_grid(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    names: Sequence[str],
    title: str,
    unit: str,
    signed: bool = False,
    path: Output = None,
) -> Figure:
    """A figure with a small map for each head of (layer, head, query, key).

    Several layers stand one to a row, on one scale of colours; the heads of one layer have `names`
    above them. Where a text has more than 128 tokens, a cell is the largest of a block.
    """
    (L, H), block = values.shape[:2], math.ceil(values.shape[-1] / _FINEST)
    heads = [_pooled(table, block) for layer in values for table in layer]
    across = H if L > 1 else min(H, 4)
    largest = float(np.nanmax(np.abs(values), initial=0)) or 1.0
    unit += f" (the largest of each {block} x {block})" if block > 1 else ""
    with sheet(path) as figure:
        gap = _NAMED if L == 1 else _UNNAMED
        tile = min(_TILE, _WIDEST / across - gap)
        down = math.ceil(len(heads) / across)
        size = across * (tile + gap) - gap, down * (tile + gap) - gap
        panel = panel_at(figure, 0.0, *size)
        limits = (-largest if signed else 0.0, largest)
        image = _tiles(panel, heads, across, gap / tile, limits, names if L == 1 else ())
        if L > 1:
            pitch = 1 + gap / tile
            _tile_ticks(panel, "x", [str(head) for head in range(H)], pitch)
            _tile_ticks(panel, "y", rows, pitch)
            panel.set_xlabel("head")
            panel.set_ylabel("layer")
        add_title(panel, title, pad=6 if L > 1 else 18)
        colour_bar(figure, panel_at(figure, size[0] + 0.12, 0.11, size[1]), image, [], unit)
    return figure


def _pooled(table: np.ndarray, block: int) -> np.ndarray:
    """The number that is farthest from 0 in each block of block x block cells."""
    if block == 1:
        return table
    missing = -len(table) % block
    whole = np.pad(table, (0, missing), constant_values=0)
    blocks = whole.reshape(len(whole) // block, block, -1, block).swapaxes(1, 2)
    cells = blocks.reshape(*blocks.shape[:2], -1)
    largest = np.abs(cells).argmax(-1, keepdims=True)
    return np.take_along_axis(cells, largest, -1)[..., 0]


def _tiles(
    panel: Axes,
    heads: Sequence[np.ndarray],
    across: int,
    gap: float,
    limits: tuple[float, float],
    names: Sequence[str],
) -> AxesImage:
    """The image of the last head; a head is a square of side 1."""
    from matplotlib.patches import Rectangle

    for number, table in enumerate(heads):
        row, column = divmod(number, across)
        left, top = column * (1 + gap), row * (1 + gap)
        image = panel.imshow(
            np.ma.masked_invalid(table),
            cmap=colours(limits[0] < 0),
            norm=scale(limits, faint=True),
            extent=(left, left + 1, top + 1, top),
            aspect="auto",
        )
        frame = Rectangle((left, top), 1, 1, fill=False, edgecolor=FAINT, linewidth=0.4)
        frame.set_clip_on(False)
        panel.add_patch(frame)
        if names:
            plain_text(panel, left, top - gap * 0.15, names[number], fontsize=7)
    down = math.ceil(len(heads) / across)
    panel.set(xlim=(0, across * (1 + gap) - gap), ylim=(down * (1 + gap) - gap, 0))
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    return image


def _tile_ticks(panel: Axes, axis: str, names: Sequence[str], pitch: float) -> None:
    place = panel.set_xticks if axis == "x" else panel.set_yticks
    place([0.5 + pitch * number for number in range(len(names))], names)
    panel.tick_params(axis="x" if axis == "x" else "y", length=0, pad=2)


def lens_table(
    heat: Heat, texts: Sequence[Sequence[str]], positions: Sequence[int], path: Output
) -> Figure:
    """A figure of (row, position): `texts` in cells that their probabilities colour."""
    R, C = heat.values.shape
    cell = _LEVEL_CELL if C <= _LEVEL else _TURNED_CELL if C <= _TURNED else None
    width, height = heat.size if cell is None else (C * cell[0], R * cell[1])
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, width, height)
        image = panel.imshow(
            np.ma.masked_invalid(heat.values), cmap=colours(False), vmin=0, vmax=1, aspect="auto"
        )
        label_axis(panel, "x", heat.columns, width, positions=positions)
        label_axis(panel, "y", heat.rows, height)
        panel.set_xlabel("token")
        panel.spines[:].set_visible(True)
        if cell is not None:
            _write_texts(panel, heat.values, texts, max(cell), turned=cell is _TURNED_CELL)
        add_title(panel, heat.title)
        colour_bar(figure, panel_at(figure, width + 0.12, 0.11, height), image, [], heat.unit)
    return figure


def _write_texts(
    panel: Axes, values: np.ndarray, texts: Sequence[Sequence[str]], inches: float, *, turned: bool
) -> None:
    most, least = _LETTERS
    for (row, column), value in np.ndenumerate(values):
        text = plain_text(panel, column, row, "", fontsize=6, rotation=90 if turned else 0)
        text.set(ha="center", va="center", color="white" if value > 0.55 else INK)
        for longest in range(most, least, -1):
            text.set_text(plain(texts[row][column], longest=longest, spaces=True))
            if inches_of(text) <= _FILLED * inches:
                break
