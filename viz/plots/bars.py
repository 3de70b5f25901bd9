"""Bars and spectra: a number a token, the largest parts of a sum, singular and eigenvalues."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from minibert.viz.plots.heat import Heat, add_title, colour_bar, colours, draw_heat
from minibert.viz.plots.sheet import (
    FAINT,
    INK,
    Output,
    label_axis,
    panel_at,
    plain,
    plain_text,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

# Inches: a row of bars, the width of a panel, a square one, and a row of tokens at most.
_ROW, _WIDTH, _SQUARE, _WIDEST = 0.19, 2.6, 2.3, 6.6
# Bars that are named where not every token is; shorter ones than this share have no name.
_NAMES, _NAMED = 6, 0.15


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
    width = min(max(0.3 * len(tokens), 2.4), _WIDEST)
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
    for index in order[sizes[order] > _NAMED * sizes.max()].tolist():
        if len(named) < _NAMES and all(abs(index - other) >= apart for other in named):
            named.append(index)
    for index in named:
        up = numbers[index] >= 0
        text = plain_text(panel, index, numbers[index], plain(tokens[index]), fontsize=7)
        # Names at either end stay inside.
        edge = "right" if len(tokens) - index <= apart else "center"
        text.set(ha="left" if index < apart / 2 else edge, va="bottom" if up else "top")
    panel.margins(y=0.12)
