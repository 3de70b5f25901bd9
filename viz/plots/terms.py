"""Pictures of terms and spectra: the largest terms of a sum as bars, singular and eigenvalues."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.errors import TraceError
from minibert.viz.plots.base import Array, Output, array, panel_at, sheet
from minibert.viz.plots.heat import Heat, add_title, colour_bar, colours, draw_heat
from minibert.viz.plots.labels import plain, plain_text
from minibert.viz.plots.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

__all__ = ["eigenvalue_plane", "spectra", "spectrum", "terms"]

# Inches: a row of bars and the width of a panel.
_ROW, _WIDTH, _SQUARE = 0.19, 2.6, 2.3


def terms(
    values: Any,
    labels: Sequence[str],
    *,
    count: int,
    title: str,
    unit: str,
    total: str,
    table: Heat | None = None,
    path: Output = None,
) -> Figure:
    """A figure with the `count` largest terms as bars, the rest as one, and a table beside them.

    Raises TraceError for a count below 1.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TraceError(f"count={count!r}: expected a whole number of at least 1.")
    numbers, names = _largest(array(values), labels, count)
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, _WIDTH, max(3, len(numbers)) * _ROW)
        _draw_bars(panel, numbers, names)
        panel.set_xlabel(f"{unit}; {total}")
        add_title(panel, title)
        if table is not None:
            width, height = table.size
            image = draw_heat(panel_at(figure, _WIDTH + 0.8, width, height), table, table.range)
            bar = panel_at(figure, _WIDTH + width + 0.92, 0.11, height)
            colour_bar(figure, bar, image, [table], table.unit)
    return figure


def spectrum(values: Any, *, title: str, path: Output = None) -> Figure:
    """A figure of singular values in falling order."""
    with sheet(path) as figure:
        _draw_spectrum(panel_at(figure, 0.0, _WIDTH, _SQUARE), array(values), title)
    return figure


def spectra(singular: Any, eigenvalues: Any, *, title: str, path: Output = None) -> Figure:
    """A figure of the singular values of a matrix, and of its eigenvalues in the complex plane."""
    with sheet(path) as figure:
        _draw_spectrum(panel_at(figure, 0.0, _WIDTH, _SQUARE), array(singular), title)
        _draw_plane(panel_at(figure, _WIDTH + 0.85, _SQUARE, _SQUARE), eigenvalues, "Eigenvalues")
    return figure


def eigenvalue_plane(eigenvalues: Any, *, title: str, path: Output = None) -> Figure:
    """A figure of eigenvalues in the complex plane."""
    with sheet(path) as figure:
        _draw_plane(panel_at(figure, 0.0, _SQUARE, _SQUARE), eigenvalues, title)
    return figure


def _largest(numbers: Array, labels: Sequence[str], count: int) -> tuple[Array, list[str]]:
    """The terms that are farthest from 0, and the sum of the others, so that nothing is lost."""
    order = np.argsort(-np.abs(np.nan_to_num(numbers)), kind="stable")
    # One term left over is better shown than called the rest.
    count = len(order) if len(order) <= count + 1 else count
    top, rest = order[:count], order[count:]
    names = [labels[index] for index in top]
    if not len(rest):
        return numbers[top], names
    return np.append(numbers[top], numbers[rest].sum()), [*names, f"{len(rest)} others"]


def _draw_bars(panel: Axes, numbers: Array, names: Sequence[str]) -> None:
    blue, red = colours(True)(0.88), colours(True)(0.14)
    rows = range(len(numbers))
    panel.barh(rows, numbers, color=[red if n < 0 else blue for n in numbers], height=0.72)
    panel.set_yticks(rows, [plain(name, longest=28) for name in names], parse_math=False)
    panel.set_ylim(len(numbers) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.axvline(0, color=FAINT, linewidth=0.6)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="x", color=FAINT, alpha=0.2, linewidth=0.5)
    panel.set_axisbelow(True)
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


def _draw_spectrum(panel: Axes, values: Array, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.plot(values, marker="o", markersize=2.5, linewidth=0.9, color="#0072B2")
    panel.set_ylim(bottom=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.set_xlabel("number of the singular value")
    panel.set_ylabel("singular value")
    panel.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.5)
    add_title(panel, title)


def _draw_plane(panel: Axes, eigenvalues: Any, title: str) -> None:
    real, imaginary = array(eigenvalues.real), array(eigenvalues.imag)
    reach = 1.12 * (float(np.nanmax(np.hypot(real, imaginary), initial=0)) or 1.0)
    panel.axhline(0, color=FAINT, linewidth=0.5)
    panel.axvline(0, color=FAINT, linewidth=0.5)
    blue, red = colours(True)(0.88), colours(True)(0.14)
    panel.scatter(real, imaginary, s=11, c=[red if n < 0 else blue for n in real], linewidths=0)
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach))
    panel.set_xlabel("real part")
    panel.set_ylabel("imaginary part")
    add_title(panel, title)
