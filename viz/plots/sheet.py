"""The sheet that a figure for print is drawn on: its style, its text, and the file it is saved to.

A figure is made without pyplot, so that no window, no back end and no global state has a part in
it; `sheet` cuts it to what was drawn. A label is one short line of plain text, whatever the token,
and labels are thinned out until they fit.
"""

import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from minibert.errors import MinibertError, how_to_install
from minibert.viz.document import write_bytes

if TYPE_CHECKING:
    from matplotlib import axes, backend_bases, colors, figure, image, text

    Axes = axes.Axes
    AxesImage = image.AxesImage
    Colormap = colors.Colormap
    Figure = figure.Figure
    Normalize = colors.Normalize
    RendererBase = backend_bases.RendererBase
    Text = text.Text
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = AxesImage = Colormap = Figure = Normalize = RendererBase = Text = object

Output = str | Path | None

INK, FAINT = "#222222", "#767676"
STYLE = {
    "font.size": 8.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,
    "svg.hashsalt": "minibert",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
# A result's figure: text stays text, so that it can be searched and set in another face.
RESULT_STYLE = {**STYLE, "svg.fonttype": "none", "savefig.dpi": 200.0, "figure.dpi": 100.0}
# Without the date, so that the same numbers give the same bytes.
METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}


def kind_of(output: str | Path) -> str:
    """The kind of file that a name asks for: svg, pdf or png. Raises MinibertError for others."""
    kind = Path(output).suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise MinibertError(f"cannot save {output}: expected a name ending in .svg, .pdf or .png")
    return kind


def needed_matplotlib() -> ModuleType:
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
def style(settings: Mapping[str, object]) -> Iterator[None]:
    """matplotlib's own settings with `settings` on top, and the user's back afterwards."""
    matplotlib = needed_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


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
    with style(RESULT_STYLE | _fonts(needed_matplotlib())):
        figure = _figure_class()(figsize=(_SHEET, _SHEET))
        yield figure
        _cut(figure)
    if output is not None:
        save(figure, output)


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """A matplotlib Figure that keeps its look; text is text, and a notebook shows it by itself."""
    from matplotlib.figure import Figure

    class ResultFigure(Figure):
        def draw(self, renderer: RendererBase) -> None:
            with style(RESULT_STYLE):
                super().draw(renderer)

        def savefig(self, fname: Any, **options: Any) -> None:
            # At 200 dots an inch and without a date unless told otherwise.
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

    return ResultFigure


def panel_at(figure: Figure, left: float, width: float, height: float, drop: float = 0.0) -> Axes:
    """Axes of a size in inches, that far from the left; tops are level but for `drop`."""
    bottom = _SHEET * 3 / 4 - drop - height
    x, y, w, h = (side / _SHEET for side in (_SHEET / 4 + left, bottom, width, height))
    return figure.add_axes((x, y, w, h))


def array(values: Tensor | np.ndarray) -> np.ndarray:
    """The numbers on the host in double precision; nan for what is not finite."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.to(torch.complex128 if values.is_complex() else torch.float64).numpy()
    numbers = values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
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


def _fonts(matplotlib: ModuleType) -> dict[str, list[str]]:
    """DejaVu Sans, and for what it lacks the fonts of the user's own settings that exist."""
    from matplotlib import font_manager

    chosen: list[str] = []
    for family in matplotlib.rcParams["font.family"]:
        chosen += matplotlib.rcParams.get(f"font.{family}", [family])
    known = set(font_manager.get_font_names())
    ours = "DejaVu Sans"
    return {"font.family": [ours, *(name for name in chosen if name in known and name != ours)]}


# Inches that a line of text needs, and that stay free between words side by side.
LINE, _SPACE = 0.145, 0.05
_LONGEST = 22


def plain(token: str, *, longest: int = _LONGEST, spaces: bool = False) -> str:
    """A token as one line that can be drawn: controls and what no font has are escaped.

    Blanks around it are left out, or stand as "␣" with `spaces` and where there is nothing else.
    """
    body = token.strip(" ")
    if spaces or not body:
        front = len(token) - len(token.lstrip(" ")) if body else len(token)
        body = "␣" * min(front, longest) + body
    body = re.sub("  +", " ", body)
    # Twice as much as fits is enough to know what fits.
    shown = "".join(_drawable(character) for character in body[: 2 * longest])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def plain_text(
    panel: Axes, x: float | int, y: float | int, text: str, *, fontsize: float, rotation: int = 0
) -> Text:
    """Text at a place, in which a dollar sign is a dollar sign."""
    return panel.text(x, y, text, parse_math=False, fontsize=fontsize, rotation=rotation)


def inches_of(text: Text) -> float:
    """How wide a text is, or how high where it is turned."""
    figure = text.get_figure()
    assert figure is not None, "only text that stands on a figure is measured"
    dpi = figure.dpi
    box = text.get_window_extent(measurer(dpi))
    return max(box.width, box.height) / dpi


@lru_cache(maxsize=4)
def measurer(dpi: float) -> RendererBase:
    """A canvas of one pixel that text is measured with.

    Left to itself, matplotlib makes a canvas as large as the figure for every measurement.
    """
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, dpi)


def step_for(count: int, inches: float, *, every: int = 1) -> int:
    """Every how many of `count` labels can stand within so many inches, in round numbers."""
    steps = (1, *(every * round_number for round_number in (1, 2, 5, 10, 20, 25, 50, 100, 200)))
    fitting = [step for step in steps if step * inches / count >= LINE]
    return fitting[0] if fitting else max(1, count)


def label_axis(
    panel: Axes,
    axis: str,
    labels: Sequence[str],
    inches: float,
    *,
    positions: Sequence[int] | None = None,
    every: int = 1,
    spaces: bool = False,
) -> None:
    """Name the cells 0, 1, 2 ... along "x" or "y", as many of them as fit without touching.

    Where some are left out, each that is named has its number of `positions` before it. `spaces`
    as in `plain`.
    """
    step = step_for(len(labels), inches, every=every)
    ticks = range(0, len(labels), step)
    named = [plain(labels[tick], spaces=spaces) for tick in ticks]
    if positions is not None and step > 1:
        named = [f"{positions[tick]} {name}" for tick, name in zip(ticks, named, strict=True)]
    place = panel.set_xticks if axis == "x" else panel.set_yticks
    written = [tick.label1 for tick in place(ticks, named, parse_math=False)]
    room = step * inches / len(labels) - _SPACE
    if axis == "x" and any(inches_of(text) > room for text in written):
        panel.tick_params(axis="x", rotation=90)
    panel.tick_params(
        axis="x" if axis == "x" else "y", length=2 if step > 1 else 0, width=0.5, color=FAINT, pad=2
    )


def _drawable(character: str) -> str:
    kind = unicodedata.category(character)
    # An accent joins the letter before it, and is no sign of its own.
    escaped = kind[0] in "CM" and kind != "Mn"
    if escaped or (character.isspace() and character != " ") or not _has_glyph(character):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def _has_glyph(character: str) -> bool:
    from matplotlib import rcParams

    return character.isascii() or any(
        ord(character) in _glyphs(family) for family in rcParams["font.family"]
    )


@lru_cache(maxsize=16)
def _glyphs(family: str) -> frozenset[int]:
    from matplotlib import font_manager

    # A name by itself would be read as a pattern, in which a hyphen means a size.
    path = font_manager.findfont(font_manager.FontProperties(family=[family]))
    font = font_manager.get_font(path)
    return frozenset(font.get_charmap())
