"""Pictures over the tokens of one sentence: token x token, layer x token, bars.

One sentence is chosen,
without its padding; queries go down and keys across.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.trace.places import check_index
from minibert.viz.plots.base import Array, Output, array, panel_at, sheet
from minibert.viz.plots.heat import Heat, add_title, colours, heat_map
from minibert.viz.plots.labels import label_axis, plain, plain_text
from minibert.viz.plots.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object

__all__ = ["Labels", "bars_or_layers", "chosen_sentence", "token_bars", "token_map"]

Labels = Sequence[Sequence[str]]

# Inches of a row of bars at most.
_WIDEST = 6.6
# Bars that are named where not every token is.
_NAMES = 6
# Shorter bars than this share of the longest have no name.
_NAMED = 0.15


def chosen_sentence(labels: Labels, sentence: int) -> tuple[int, Sequence[str]]:
    """The sentence's place in the batch and its tokens.

    Raises TraceError for a sentence that is not there.
    """
    index = check_index("sentence", sentence, len(labels))
    return index, labels[index]


def token_map(
    values: Any,
    labels: Labels,
    *,
    sentence: int,
    title: str,
    unit: str,
    signed: bool = False,
    limits: tuple[float, float] | None = None,
    path: Output = None,
) -> Figure:
    """A figure of one sentence of (batch, query, key)."""
    index, tokens = chosen_sentence(labels, sentence)
    N = len(tokens)
    heat = Heat(
        values[index, :N, :N],
        rows=tokens,
        columns=tokens,
        title=title,
        unit=unit,
        row_title="query",
        column_title="key",
        signed=signed,
        limits=limits,
        tokens="xy",
    )
    return heat_map(heat, path)


def bars_or_layers(
    values: Any,
    labels: Labels,
    *,
    layer: int | None,
    sentence: int,
    positions: Sequence[int],
    name: str,
    unit: str,
    path: Output = None,
) -> Figure:
    """A figure of one sentence of (layer, batch, position) about its token at its position.

    Bars of one layer, or for None all layers down and tokens across. Raises TraceError for a layer
    or sentence that is not there.
    """
    index, tokens = chosen_sentence(labels, sentence)
    position = positions[index]
    title = f"{name} “{tokens[position].strip()}” at position {position}"
    if layer is not None:
        row = check_index("layer", layer, len(values))
        return token_bars(
            values[row],
            labels,
            sentence=index,
            title=title + (f", over what enters layer {row}" if row else ""),
            unit=unit,
            position=position,
            path=path,
        )
    heat = Heat(
        values[:, index, : len(tokens)],
        rows=[str(layer) for layer in range(len(values))],
        columns=tokens,
        title=title,
        unit=unit,
        row_title="what enters\nlayer",
        tokens="x",
    )
    return heat_map(heat, path)


def token_bars(
    values: Any,
    labels: Labels,
    *,
    sentence: int,
    title: str,
    unit: str,
    position: int | None = None,
    path: Output = None,
) -> Figure:
    """A figure of one sentence of (batch, position): a bar a token, blue up and red down.

    The token at `position` has its bar outlined. In a long text the largest bars are named.
    """
    index, tokens = chosen_sentence(labels, sentence)
    numbers = array(values[index, : len(tokens)])
    width, height = min(max(0.3 * len(tokens), 2.4), _WIDEST), 1.9
    with sheet(path) as figure:
        panel = panel_at(figure, 0.0, width, height)
        blue, red = colours(True)(0.88), colours(True)(0.14)
        bars = panel.bar(
            range(len(numbers)), numbers, color=[red if n < 0 else blue for n in numbers], width=0.8
        )
        panel.set_xlim(-0.6, len(numbers) - 0.4)
        panel.axhline(0, color=FAINT, linewidth=0.6)
        panel.set_ylabel(unit)
        panel.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.5)
        panel.set_axisbelow(True)
        if position is not None:
            bars[position].set(edgecolor="black", linewidth=1.0)
        label_axis(panel, "x", tokens, width, positions=range(len(tokens)))
        if len(panel.get_xticks()) < len(tokens):
            _name_largest(panel, numbers, tokens, width)
        add_title(panel, title)
    return figure


def _name_largest(panel: Axes, numbers: Array, tokens: Sequence[str], width: float) -> None:
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
        side = (
            "left" if index < apart / 2 else "right" if len(tokens) - index <= apart else "center"
        )
        text.set(ha=side, va="bottom" if up else "top")
    panel.margins(y=0.12)
