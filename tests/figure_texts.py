"""What stands on a figure: every text that is drawn, where, and which of them touch."""

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

HOSTILE = (
    "$x^2$",
    "a\nb",
    "中文字",
    "😀",
    "</script>",
    "\x00\x1b",
    "_{",
    "\\frac",
    "‮abc",
    "w" * 10_000,
    "",
    " ",
    " the",
    "é́",
    "%&#~^",
)


def tokens(count: int, hostile: bool = False) -> tuple[str, ...]:
    """Labels of many widths, all different in meaning, or those that break programs."""
    words = HOSTILE if hostile else ("[CLS]", "the", "unbelievable", "fox", "i", "jumps", ",")
    return tuple(words[position % len(words)] for position in range(count))


def drawn(figure: Any) -> tuple[list[str], Any]:
    """The texts that are visible, and their boxes as rows of left, bottom, right, top in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = out_of_view(figure)
    found = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()).extents)
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]
    return [text for text, _ in found], np.array([box for _, box in found])


def out_of_view(figure: Any) -> set[Text]:
    """The labels of ticks beyond the ends of their axis, which are there and never drawn."""
    hidden = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-6 * (high - low)
            for tick in axis.get_major_ticks():
                if not low - slack <= tick.get_loc() <= high + slack:
                    hidden |= {tick.label1, tick.label2}
    return hidden


def cut_off(figure: Any) -> list[str]:
    """The texts that the edge of the figure cuts."""
    texts, boxes = drawn(figure)
    width, height = figure.canvas.get_width_height()
    inside = (boxes[:, :2] >= -1).all(1) & (boxes[:, 2] <= width + 1) & (boxes[:, 3] <= height + 1)
    return [texts[i] for i in np.flatnonzero(~inside)]


def named(panel: Any, axis: str) -> list[str]:
    """The labels along an axis."""
    labels = panel.get_xticklabels() if axis == "x" else panel.get_yticklabels()
    return [label.get_text() for label in labels]


def image(panel: Any, number: int = 0) -> Any:
    """The numbers of one image, masked where there are none."""
    return panel.images[number].get_array()
