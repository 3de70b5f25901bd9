"""Labels along an axis: any token as one short line of plain text, thinned out until they fit."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from minibert.viz.plots.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = object

__all__ = ["LINE", "inches_of", "label_axis", "measurer", "plain", "plain_text", "step_for"]

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


def plain_text(panel: Axes, x: float | int, y: float | int, text: str, **options: Any) -> Any:
    """Text at a place, in which a dollar sign is a dollar sign."""
    return panel.text(x, y, text, parse_math=False, **options)


def inches_of(text: Any) -> float:
    """How wide a text is, or how high where it is turned."""
    dpi = text.get_figure().dpi
    box = text.get_window_extent(measurer(dpi))
    return max(box.width, box.height) / dpi


@lru_cache(maxsize=4)
def measurer(dpi: float) -> Any:
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
    axis: Literal["x", "y"],
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
    panel.tick_params(axis=axis, length=2 if step > 1 else 0, width=0.5, color=FAINT, pad=2)


def _drawable(character: str) -> str:
    escaped = unicodedata.category(character)[0] in "CM" and not _is_plain_mark(character)
    if escaped or (character.isspace() and character != " ") or not _has_glyph(character):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def _is_plain_mark(character: str) -> bool:
    """An accent that joins the letter before it, and no sign of its own."""
    return unicodedata.category(character) == "Mn"


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
