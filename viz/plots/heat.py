"""Heat maps: a table of numbers in colour, with its labels, a colour bar and, in few cells, digits.

Signed numbers go from red by white at 0 to blue, shares from white to dark blue; grey is no number.
Over tokens, where most numbers are faint, colour grows with the square root of a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from minibert.viz.plots.sheet import (
    INK,
    LINE,
    Output,
    inches_of,
    label_axis,
    panel_at,
    plain,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = AxesImage = Colormap = Figure = Normalize = object

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
