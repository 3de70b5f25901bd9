"""A small map for each of many heads, or one head of them large."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from minibert.errors import TraceError
from minibert.trace.places import check_index
from minibert.viz.plots.base import Array, Output, array, panel_at, sheet
from minibert.viz.plots.heat import add_title, colour_bar, colours, scale
from minibert.viz.plots.style import FAINT
from minibert.viz.plots.tokens import Labels, chosen_sentence, token_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

__all__ = ["head_grid", "matrix_of_head"]

# Inches: a tile at most, the whole width, and the gaps between tiles with and without a name.
_TILE, _WIDEST, _NAMED, _UNNAMED = 1.5, 6.6, 0.22, 0.05
# Cells along a side of a tile; beyond them blocks are drawn as their largest.
_FINEST = 128


def matrix_of_head(
    values: Any,
    layers: Sequence[int],
    labels: Labels,
    *,
    layer: int | None,
    head: int | None,
    sentence: int,
    name: str,
    unit: str,
    signed: bool = False,
    path: Output = None,
) -> Figure:
    """A figure of one head of (layer, batch, head, query, key), or of all that are not chosen.

    `layers` are the numbers of the layers on the first axis. Raises TraceError for a layer, head
    or sentence that is not there, and for a head of no layer where there are several.
    """
    shown = list(layers) if layer is None else [_known_layer(layer, layers)]
    if head is None:
        rows = [list(layers).index(number) for number in shown]
        return head_grid(
            values[rows],
            labels,
            layers=shown,
            sentence=sentence,
            title=f"{name}, {'layer ' + str(shown[0]) if len(shown) == 1 else 'every head'}",
            unit=unit,
            signed=signed,
            path=path,
        )
    if len(shown) > 1:
        raise TraceError(
            f"head={head} of which layer? Give layer= too, one of {', '.join(map(str, layers))}."
        )
    number = check_index("head", head, values.shape[2])
    matrices = values[list(layers).index(shown[0]), :, number]
    title = f"{name}, head {shown[0]}-{number}"
    return token_map(
        matrices, labels, sentence=sentence, title=title, unit=unit, signed=signed, path=path
    )


def head_grid(
    values: Any,
    labels: Labels,
    *,
    layers: Sequence[int],
    sentence: int,
    title: str,
    unit: str,
    signed: bool = False,
    path: Output = None,
) -> Figure:
    """A figure with a small map for each head of (layer, batch, head, query, key).

    Several layers stand one to a row, on one scale of colours; where a text has more than 128
    tokens, a cell is the largest of a block.
    """
    index, tokens = chosen_sentence(labels, sentence)
    N = len(tokens)
    tables = array(values[:, index, :, :N, :N])
    block = math.ceil(N / _FINEST)
    heads = [_pooled(table, block) for layer in tables for table in layer]
    L, H = tables.shape[:2]
    across = H if L > 1 else min(H, 4)
    largest = float(np.nanmax(np.abs(tables), initial=0)) or 1.0
    unit += f" (the largest of each {block} x {block})" if block > 1 else ""
    with sheet(path) as figure:
        gap = _NAMED if L == 1 else _UNNAMED
        tile = min(_TILE, _WIDEST / across - gap)
        down = math.ceil(len(heads) / across)
        size = across * (tile + gap) - gap, down * (tile + gap) - gap
        panel = panel_at(figure, 0.0, *size)
        image = _tiles(panel, heads, across, gap / tile, signed, largest, L == 1)
        if L > 1:
            pitch = 1 + gap / tile
            _tile_ticks(panel, "x", [str(head) for head in range(H)], pitch)
            _tile_ticks(panel, "y", [str(layer) for layer in layers], pitch)
            panel.set_xlabel("head")
            panel.set_ylabel("layer")
        add_title(panel, title, pad=6 if L > 1 else 18)
        bar = panel_at(figure, size[0] + 0.12, 0.11, size[1])
        colour_bar(figure, bar, image, [], unit)
    return figure


def _known_layer(layer: int, layers: Sequence[int]) -> int:
    """The layer counted from the front, where it is one of those that were computed."""
    if list(layers) == list(range(len(layers))):
        return check_index("layer", layer, len(layers))
    if layer not in layers:
        raise TraceError(
            f"Layer {layer} is not in this result; it has {', '.join(map(str, layers))}."
        )
    return layer


def _pooled(table: Array, block: int) -> Array:
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
    heads: Sequence[Array],
    across: int,
    gap: float,
    signed: bool,
    largest: float,
    named: bool,
) -> Any:
    """The image of the last head; a head is a square of side 1."""
    limits = (-largest if signed else 0.0, largest)
    for number, table in enumerate(heads):
        row, column = divmod(number, across)
        left, top = column * (1 + gap), row * (1 + gap)
        image = panel.imshow(
            np.ma.masked_invalid(table),
            cmap=colours(signed),
            norm=scale(limits, faint=True),
            extent=(left, left + 1, top + 1, top),
            aspect="auto",
        )
        panel.add_patch(_frame(left, top))
        if named:
            panel.text(left, top - gap * 0.15, f"head {number}", fontsize=7)
    down = math.ceil(len(heads) / across)
    panel.set(xlim=(0, across * (1 + gap) - gap), ylim=(down * (1 + gap) - gap, 0))
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    return image


def _frame(left: float, top: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), 1, 1, fill=False, edgecolor=FAINT, linewidth=0.4, clip_on=False)


def _tile_ticks(panel: Axes, axis: Literal["x", "y"], names: Sequence[str], pitch: float) -> None:
    place = panel.set_xticks if axis == "x" else panel.set_yticks
    place([0.5 + pitch * number for number in range(len(names))], names)
    panel.tick_params(axis=axis, length=0, pad=2)
