"""What figures are put together from: heat maps, small maps of many heads, bars and spectra.

Signed numbers go from red by white at 0 to blue, shares from white to dark blue; grey is no number.
Over tokens, where most numbers are faint, colour grows with the square root of a number. In a lens
few columns hold the tokens upright, more of them turned; a long text is colour alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from minibert.viz.plots.sheet import (
    FAINT,
    INK,
    LINE,
    Axes,
    AxesImage,
    Colormap,
    Figure,
    Normalize,
    Output,
    inches_of,
    label_axis,
    panel_at,
    plain,
    plain_text,
    sheet,
)

# Inches of a cell at most, of a side in which every label fits, and of a side at most.
_CELL, _SIDE, _LABELLED, _WIDEST = 0.42, 4.2, 0.145, 6.6
_BAR, _GAP = 0.11, 0.12
# Inches that tables beside each other take at most, and that lie between those above each other.
_FIGURE, _BETWEEN = 9.0, 0.75
# Between ticks of a colour bar, but for powers of ten; letters of a line beside a short one.
_STEPS, _SHORT_LINE = (1, 2, 2.5, 5, 10), 16
# Inches that a cell needs before digits stand in it.
_DIGITS = (0.3, 0.15)


@dataclass(frozen=True)
class Heat:
    """A table as a picture shows it. `limits` are those of the colours, by default the data's."""

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    title: str = ""
    unit: str = ""
    row_title: str = ""
    column_title: str = ""
    signed: bool = False
    limits: tuple[float, float] | None = None
    tokens: str = ""
    """The axes along which labels are tokens, whose positions count: "x" or "xy"."""
    vocabulary: bool = False
    """True where labels are entries of a vocabulary, whose blanks count."""
    every: int = 1
    """Labels that are thinned out are left at multiples of this."""

    @property
    def range(self) -> tuple[float, float]:
        """The numbers at both ends of the colour bar."""
        if self.limits is not None:
            return self.limits
        largest = float(np.nanmax(np.abs(self.values), initial=0)) or 1.0
        return (-largest, largest) if self.signed else (0.0, largest)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        rows, columns = self.values.shape
        width, height = _side(columns), _side(rows)
        # A few layers of many tokens are not drawn as towers.
        return width, min(height, rows * max(0.2, 2.5 * width / columns))


def heat_maps(heats: Sequence[Heat], path: Output = None) -> Figure:
    """A figure of tables of one shape beside each other, on one scale of colours."""
    low = min(heat.range[0] for heat in heats)
    high = max(heat.range[1] for heat in heats)
    with sheet(path) as figure:
        width, height = heats[0].size
        across = min(len(heats), max(1, int(_FIGURE // (width + 2 * _GAP))))
        for number, heat in enumerate(heats):
            row, column = divmod(number, across)
            place = column * (width + 2 * _GAP), row * (height + _BETWEEN)
            panel = panel_at(figure, place[0], width, height, place[1])
            image = draw_heat(panel, heat, (low, high), named=column == 0)
        bar = panel_at(figure, across * (width + 2 * _GAP) - _GAP, _BAR, height)
        colour_bar(figure, bar, image, heats, heats[0].unit)
    return figure


def draw_heat(
    panel: Axes, heat: Heat, limits: tuple[float, float], *, named: bool = True, digits: bool = True
) -> AxesImage:
    """The image of a table on a panel of its size; rows have labels where `named`."""
    values, (width, height) = heat.values, heat.size
    image = panel.imshow(
        np.ma.masked_invalid(values),
        cmap=colours(heat.signed),
        norm=scale(limits, faint=bool(heat.tokens)),
        aspect="auto",
    )
    for axis, labels, inches in (("x", heat.columns, width), ("y", heat.rows, height)):
        positions = range(len(labels)) if axis in heat.tokens else None
        label_axis(
            panel, axis, labels, inches,
            positions=positions, every=heat.every, spaces=heat.vocabulary,
        )  # fmt: skip
    panel.set_xlabel(heat.column_title)
    if named:
        panel.set_ylabel(heat.row_title)
    else:
        panel.set_yticks([])
    panel.spines[:].set_visible(True)
    add_title(panel, heat.title)
    rows, columns = values.shape
    if digits and width / columns >= _DIGITS[0] and height / rows >= _DIGITS[1]:
        _write_digits(panel, values, image)
    return image


def colours(signed: bool) -> Colormap:
    """Red, white, blue for signed numbers, white to dark blue for shares; grey for no number."""
    from matplotlib import colormaps

    return colormaps["RdBu" if signed else "Blues"].with_extremes(bad="#e4e4e4")


def scale(limits: tuple[float, float], *, faint: bool) -> Normalize:
    """How numbers become colours: evenly, or where they are `faint` by their square roots."""
    from matplotlib.colors import FuncNorm, Normalize

    return FuncNorm((_root, _square), *limits) if faint else Normalize(*limits)


def _root(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(roots: np.ndarray) -> np.ndarray:
    return roots * np.abs(roots)


def colour_bar(
    figure: Figure, panel: Axes, image: AxesImage, heats: Sequence[Heat], unit: str
) -> None:
    """The colour bar of an image on a panel of its own, with arrows where numbers go beyond."""
    low, high = image.get_clim()
    slack = 1e-6 * (high - low)
    numbers = np.concatenate([np.zeros(0), *(heat.values.ravel() for heat in heats)])
    beyond = bool((numbers < low - slack).any()), bool((numbers > high + slack).any())
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
        beyond, "neither"
    )
    inches = panel.get_position().height * figure.get_figheight()
    bar = figure.colorbar(image, cax=panel, extend=extend, ticks=_bar_ticks(image, inches))
    bar.set_label(unit)
    if inches_of(panel.yaxis.label) > inches:
        # Beside and below a short bar there is room for the words, and above it stands the title.
        bar.set_label(fill(unit, _SHORT_LINE, break_long_words=False), loc="top")
    bar.outline.set_linewidth(0.4)
    panel.tick_params(length=2, width=0.5)


def _bar_ticks(image: AxesImage, inches: float) -> np.ndarray:
    """Round numbers in the range of the colours, as many up to six as do not touch."""
    from matplotlib.ticker import MaxNLocator

    low, high = image.get_clim()
    # A tick a little beyond the end is drawn at the end.
    slack = 1e-3 * (high - low)
    ticks = np.zeros(0)
    for count in (5, 4, 3, 2, 1):
        ticks = np.asarray(MaxNLocator(count, steps=_STEPS).tick_values(low, high))
        ticks = ticks[(low - slack <= ticks) & (ticks <= high + slack)]
        apart = np.diff(image.norm(ticks)) * inches
        if (apart >= LINE).all():
            break
    return ticks


def add_title(panel: Axes, title: str, *, pad: int = 6) -> None:
    """The title above the left corner, in which a dollar sign is a dollar sign."""
    if title:
        shown = plain(title, longest=90)
        text = panel.set_title(shown, loc="left", fontsize=9, fontweight="bold", pad=pad)
        text.set_parse_math(False)


def _side(count: int) -> float:
    """Inches for so many cells: small tables have large cells, long ones the whole width."""
    return min(_CELL * count, max(_SIDE, _LABELLED * count), _WIDEST)


def _write_digits(panel: Axes, values: np.ndarray, image: AxesImage) -> None:
    largest = max(np.nanmax(np.abs(values), initial=0), *np.abs(image.get_clim()))
    decimals = next((n for n, bound in ((2, 9.995), (1, 99.95), (0, 999.5)) if largest < bound), -1)
    if decimals < 0 or largest < 0.05:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            # Rounded first: there is no −0.00.
            text = f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            panel.text(
                column,
                row,
                text,
                color="white" if dark else INK,
                fontsize=6.5,
                horizontalalignment="center",
                verticalalignment="center",
            )


# Inches: a tile at most, the whole width, and the gaps between tiles with and without a name.
_TILE, _GRID_WIDEST, _NAMED, _UNNAMED = 1.5, 6.6, 0.22, 0.05
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
        tile = min(_TILE, _GRID_WIDEST / across - gap)
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


# Inches: a row of bars, the width of a panel, a square one, and a row of tokens at most.
_ROW, _WIDTH, _SQUARE, _BARS_WIDEST = 0.19, 2.6, 2.3, 6.6
# Bars that are named where not every token is; shorter ones than this share have no name.
_NAMES, _LEAST_NAMED = 6, 0.15


def token_bars(
    figure: Figure,
    left: float,
    numbers: np.ndarray,
    tokens: Sequence[str],
    title: str,
    unit: str,
    position: int | None = None,
) -> None:
    """A bar a token, blue up and red down; that of `position` is outlined.

    In a long text the largest bars are named.
    """
    width = min(max(0.3 * len(tokens), 2.4), _BARS_WIDEST)
    panel = panel_at(figure, left, width, 1.9)
    bars = panel.bar(range(len(numbers)), numbers, color=_signs(numbers), width=0.8)
    panel.set_xlim(-0.6, len(numbers) - 0.4)
    panel.axhline(0, color=FAINT, linewidth=0.6)
    panel.set_ylabel(unit)
    _ruled(panel, "y")
    if position is not None:
        bars[position].set(edgecolor="black", linewidth=1.0)
    label_axis(panel, "x", tokens, width, positions=range(len(tokens)))
    if len(panel.get_xticks()) < len(tokens):
        _name_largest(panel, numbers, tokens, width)
    add_title(panel, title)


def parts(
    values: np.ndarray,
    labels: Sequence[str],
    count: int,
    title: str,
    unit: str,
    table: Heat | None = None,
    path: Output = None,
) -> Figure:
    """A figure with the `count` largest parts as bars, the rest as one, and a table beside them."""
    numbers, names = _largest(values, labels, count)
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, _WIDTH, max(3, len(numbers)) * _ROW)
        _draw_parts(panel, numbers, names)
        panel.set_xlabel(unit)
        add_title(panel, title)
        if table is not None:
            width, height = table.size
            image = draw_heat(panel_at(figure, _WIDTH + 0.8, width, height), table, table.range)
            bar = panel_at(figure, _WIDTH + width + 0.92, 0.11, height)
            colour_bar(figure, bar, image, [table], table.unit)
    return figure


def spectrum(figure: Figure, left: float, values: np.ndarray, title: str, unit: str) -> None:
    """Numbers in falling order, as a line."""
    from matplotlib.ticker import MaxNLocator

    panel = panel_at(figure, left, _WIDTH, _SQUARE)
    panel.plot(values, marker="o", markersize=2.5, linewidth=0.9, color="#0072B2")
    panel.set_ylim(bottom=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.set_xlabel(f"number of the {unit}")
    panel.set_ylabel(unit)
    _ruled(panel, "y")
    add_title(panel, title)


def eigenvalue_plane(figure: Figure, left: float, values: np.ndarray, title: str) -> None:
    """Complex numbers as points of the plane, red where their real part is below 0."""
    panel = panel_at(figure, left, _SQUARE, _SQUARE)
    reach = 1.12 * (float(np.nanmax(np.abs(values), initial=0)) or 1.0)
    panel.axhline(0, color=FAINT, linewidth=0.5)
    panel.axvline(0, color=FAINT, linewidth=0.5)
    panel.scatter(values.real, values.imag, s=11, c=_signs(values.real), linewidths=0)
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach))
    panel.set_xlabel("real part")
    panel.set_ylabel("imaginary part")
    add_title(panel, title)


def _signs(numbers: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Blue for numbers of at least 0, red for others."""
    blue, red = colours(True)(0.88), colours(True)(0.14)
    return [red if number < 0 else blue for number in numbers]


def _ruled(panel: Axes, axis: str) -> None:
    """Faint lines behind what is drawn."""
    panel.grid(axis="x" if axis == "x" else "y", color=FAINT, alpha=0.2, linewidth=0.5)
    panel.set_axisbelow(True)


def _largest(
    numbers: np.ndarray, labels: Sequence[str], count: int
) -> tuple[np.ndarray, list[str]]:
    """The parts that are farthest from 0, and the sum of the others, so that nothing is lost."""
    order = np.argsort(-np.abs(np.nan_to_num(numbers)), kind="stable")
    # One part left over is better shown than called the rest.
    count = len(order) if len(order) <= count + 1 else count
    top, rest = order[:count], order[count:]
    names = [labels[index] for index in top]
    if not len(rest):
        return numbers[top], names
    return np.append(numbers[top], numbers[rest].sum()), [*names, f"{len(rest)} others"]


def _draw_parts(panel: Axes, numbers: np.ndarray, names: Sequence[str]) -> None:
    rows = range(len(numbers))
    panel.barh(rows, numbers, color=_signs(numbers), height=0.72)
    panel.set_yticks(rows, [plain(name, longest=28) for name in names], parse_math=False)
    panel.set_ylim(len(numbers) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.axvline(0, color=FAINT, linewidth=0.6)
    panel.spines["left"].set_visible(False)
    _ruled(panel, "x")
    low, high = min(0.0, np.nanmin(numbers)), max(0.0, np.nanmax(numbers))
    room = 0.22 * ((high - low) or 1.0)
    # The digits at the end of the longest bars need a place inside.
    panel.set_xlim(low - room * (low < 0), high + room * (high > 0 or low == 0))
    largest = max(high, -low)
    digits = ".2f" if largest >= 0.095 else ".3f" if largest >= 0.0095 else ".1e"
    for row, number in zip(rows, numbers, strict=True):
        written = f" {number:+{digits}} ".replace("-", "−")
        text = plain_text(panel, number, row, written, fontsize=6.5)
        text.set(ha="left" if number >= 0 else "right", va="center", color=INK)


def _name_largest(panel: Axes, numbers: np.ndarray, tokens: Sequence[str], width: float) -> None:
    """Write the tokens of the largest bars at their ends, those that stand far enough apart."""
    apart = 0.9 * len(tokens) / width
    named: list[int] = []
    sizes = np.abs(np.nan_to_num(numbers))
    order = np.argsort(-sizes, kind="stable")
    for index in order[sizes[order] > _LEAST_NAMED * sizes.max()].tolist():
        if len(named) < _NAMES and all(abs(index - other) >= apart for other in named):
            named.append(index)
    for index in named:
        up = numbers[index] >= 0
        text = plain_text(panel, index, numbers[index], plain(tokens[index]), fontsize=7)
        # Names at either end stay inside.
        edge = "right" if len(tokens) - index <= apart else "center"
        text.set(ha="left" if index < apart / 2 else edge, va="bottom" if up else "top")
    panel.margins(y=0.12)
