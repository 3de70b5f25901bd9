"""The sheet that a figure for print is drawn on: its style, its labels, and its file.

A figure is made without pyplot, so that no window, no back end and no global state has a part in
it. The style stands on top of the user's own matplotlib settings, whose fonts it keeps.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from minibert.errors import MinibertError, how_to_install
from minibert.terminal import visible
from minibert.viz.document import write_bytes

if TYPE_CHECKING:
    from matplotlib import axes, figure

    Axes = axes.Axes
    Figure = figure.Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

Output = str | Path | None

INK, FAINT = "#222222", "#767676"
# Okabe and Ito's colours, which every kind of colour vision tells apart, without the palest two.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLE = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "font.size": 8.0,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 200.0,
    # Text stays text, so that it can be searched and set in another face.
    "svg.fonttype": "none",
    "svg.hashsalt": "minibert",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
# Without the date, so that the same numbers give the same bytes.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}


def check_output(output: str | Path) -> None:
    """Raise MinibertError for what no figure can be saved as, before work begins for it."""
    if _kind_of(output) not in _METADATA:
        raise MinibertError(f"cannot save {output}: expected a name ending in .svg, .pdf or .png")
    _needed_matplotlib()


def _kind_of(output: str | Path) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def _needed_matplotlib() -> ModuleType:
    """matplotlib. Raises MinibertError, which names the extra to install, where it is absent."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MinibertError(
            f"plots need matplotlib, which cannot be imported ({error}); "
            f"install it: {how_to_install('plots')}. See docs/install.md#extras"
        ) from error
    return matplotlib


@contextmanager
def sheet(output: Output, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches to draw on; it is saved where `output` is given.

    Raises MinibertError without matplotlib and for a kind of file that is none of three, before
    anything is drawn.
    """
    if output is not None:
        check_output(output)
    with _needed_matplotlib().rc_context(_STYLE):
        figure = _figure_class()(figsize=(width, height), layout="constrained")
        yield figure
        # Ticks are made when they are first drawn, with the settings of that moment.
        figure.draw_without_rendering()
        if output is not None:
            kind, content = _kind_of(output), io.BytesIO()
            figure.savefig(content, format=kind, metadata=_METADATA[kind])
            write_bytes(content.getvalue(), output)


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """A matplotlib Figure that a notebook shows; of others it does so once pyplot was imported."""
    from matplotlib.figure import Figure

    class ResultFigure(Figure):
        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=100)
            return content.getvalue()

    return ResultFigure


def plain(token: str, longest: int = 22) -> str:
    """A token as one short line without blanks around it, in which controls are written out."""
    shown = visible(token.strip(" "), space=" ") or "␣" * len(token)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def label_axis(panel: Axes, axis: str, labels: Sequence[str], inches: float) -> None:
    """Name the cells 0, 1, 2 ... along "x" or "y", as many of them as fit without touching.

    Where some are left out, each that is named has its number before it.
    """
    step = max(1, round(0.16 * len(labels) / inches + 0.49))
    ticks = range(0, len(labels), step)
    number = (lambda tick: f"{tick} ") if step > 1 else (lambda tick: "")
    named = [f"{number(tick)}{plain(labels[tick])}" for tick in ticks]
    # A dollar sign is a dollar sign.
    (panel.set_xticks if axis == "x" else panel.set_yticks)(ticks, named, parse_math=False)
    room = 14 * inches / len(labels) * step
    if axis == "x":
        panel.tick_params(axis="x", length=0, rotation=90 if max(map(len, named)) > room else 0)
    else:
        panel.tick_params(axis="y", length=0)
