"""The figure of what `minibert train` logged: how the heads of a model form."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.viz.plots.scores_log import Real, ScoresLog, read_scores
from minibert.viz.plots.sheet import FAINT, INK, STYLE, kind_of, needed_matplotlib, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional: a run-time type checker must not ask for it.
    Axes = Figure = object


# What stands above a panel: the name, and what the score is the mean attention to.
TITLES = {
    "previous": ("Previous token", "attention to the token before"),
    "next": ("Next token", "attention to the token after"),
    "duplicate": ("Duplicate token", "attention to the same token, earlier"),
    "induction": ("Induction", "attention to what came next, earlier"),
    "delimiter": ("Delimiter", "attention to [SEP] or end of text"),
}
# Okabe and Ito's colours, which every kind of colour vision tells apart, without the palest two.
LAYER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
PANEL_WIDTH, PANEL_HEIGHT = 2.35, 1.85


def training_scores(log: str | Path, output: str | Path | None = None) -> Figure:
    """The figure of a log of training: the heads as they form, and the loss.

    `log` is the scores.jsonl that `minibert train` writes. There is a panel for each pattern
    that was measured and a line for each head in the colour of its layer; the head that is best
    at the end is named, "layer-head" counted from 0. The last panel is the loss. Tokens seen are
    on a logarithmic axis where they grow more than tenfold, which has no place for the start at
    0 tokens. With `output` the figure is written
    there as well, as SVG, PDF or PNG by the end of its name.

    Raises MinibertError without matplotlib, for another kind of file, and for a log that cannot
    be read, with the number of the line.
    """
    if output is not None:
        kind_of(output)
    needed_matplotlib()
    scores = read_scores(Path(log))
    with style(STYLE):
        figure = _draw(scores)
        # Ticks are made when they are first drawn, with the settings of that moment.
        figure.draw_without_rendering()
        if output is not None:
            save(figure, output)
    return figure


def check_output(output: str | Path) -> None:
    """Raise MinibertError for what no figure can be saved as, before work begins for it."""
    kind_of(output)
    needed_matplotlib()


def _draw(scores: ScoresLog) -> Figure:
    from matplotlib.figure import Figure

    count = len(scores.heads) + 1
    columns = count if count <= 3 else (count + 1) // 2
    rows = -(-count // columns)
    size = (PANEL_WIDTH * columns + 0.4, PANEL_HEIGHT * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)
    for panel, (name, values) in zip(panels, scores.heads.items(), strict=False):
        _draw_heads(panel, scores.tokens, values, name)
    for panel in panels[: count - 1 : columns]:
        panel.set_ylabel("mean attention")
    _draw_loss(panels[count - 1], scores)
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:
        _tokens_axis(panel, scores.tokens)
    figure.supxlabel("tokens seen", fontsize="medium")
    if scores.heads:
        _layer_legend(figure, next(iter(scores.heads.values())).shape[1])
    return figure


def _draw_heads(panel: Axes, tokens: Real, values: Real, name: str) -> None:
    """A line for each head, the best one last and on top, with its name at its end."""
    _, n_layers, n_heads = values.shape
    best, moment = _best(values)
    for layer in range(n_layers):
        for head in range(n_heads):
            strong = (layer, head) == best
            panel.plot(
                tokens,
                values[:, layer, head],
                color=_colour(layer, n_layers),
                linewidth=1.8 if strong else 0.8,
                alpha=1.0 if strong else 0.6,
                zorder=3 if strong else 2,
                # One moment is no line yet.
                marker="o" if len(tokens) == 1 else None,
                markersize=3,
                gid=f"{name} {layer}-{head}",
            )
    end = (tokens[moment], values[moment, *best])
    _name_line(panel, f"{best[0]}-{best[1]}", end, _colour(best[0], n_layers))
    panel.set_ylim(0, 1)
    panel.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    _title(panel, *TITLES.get(name, (name, "")))


def _best(values: Real) -> tuple[tuple[int, int], int]:
    """The layer and head with the largest score when scores were last measured, and that moment."""
    moment = int(np.flatnonzero(np.isfinite(values).any(axis=(1, 2)))[-1])
    layer, head = np.unravel_index(np.nanargmax(values[moment]), values.shape[1:])
    return (int(layer), int(head)), moment


def _draw_loss(panel: Axes, scores: ScoresLog) -> None:
    from matplotlib.ticker import MaxNLocator

    lines = (
        ("training", scores.loss, FAINT, 0.9),
        ("held-out text", scores.held_out_loss, INK, 1.6),
    )
    for name, values, colour, width in lines:
        measured = np.isfinite(values)
        if measured.any():
            panel.plot(
                scores.tokens[measured],
                values[measured],
                color=colour,
                linewidth=width,
                marker="o" if measured.sum() == 1 else None,
                markersize=3,
                label=name,
                gid=f"loss {name}",
            )
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel.legend(loc="upper right", frameon=False, handlelength=1.4, borderaxespad=0.2)
    _title(panel, "Loss", "nats per predicted token")


def _colour(layer: int, n_layers: int) -> Any:
    """The colour of a layer; from dark to light where there are more layers than names for them."""
    if n_layers <= len(LAYER_COLOURS):
        return LAYER_COLOURS[layer]
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * layer / (n_layers - 1))


def _name_line(panel: Axes, text: str, end: tuple[float, float], colour: Any) -> None:
    panel.annotate(
        text,
        end,
        xytext=(4, 0),
        textcoords="offset points",
        color=colour,
        fontweight="bold",
        verticalalignment="center",
        annotation_clip=False,
    )


def _title(panel: Axes, name: str, meaning: str) -> None:
    panel.set_title(name, loc="left", fontsize=9, fontweight="bold", pad=14)
    panel.annotate(
        meaning,
        (0, 1),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color=FAINT,
        fontsize=7.5,
    )


def _tokens_axis(panel: Axes, tokens: Real) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = tokens[tokens > 0]
    if len(positive) and positive[-1] > 10 * positive[0]:
        panel.set_xscale("log", nonpositive="mask")
        # Threes too, where there are few powers of ten.
        few = positive[-1] < 300 * positive[0]
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 3) if few else (1,)))
        panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda count, _: _short(count)))
    panel.tick_params(labelbottom=True)
    panel.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.5)
    panel.set_axisbelow(True)


def _short(count: float) -> str:
    """A count of tokens in few characters: 200k, 1.5M, 10G."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:g}{letter}"
    return f"{count:g}"


def _layer_legend(figure: Figure, n_layers: int) -> None:
    from matplotlib.lines import Line2D

    # A shade stands between its neighbours, so that some of them explain all.
    shown = np.unique(np.linspace(0, n_layers - 1, len(LAYER_COLOURS)).round().astype(int)).tolist()
    handles = [
        Line2D([], [], color=_colour(layer, n_layers), linewidth=1.8, label=f"layer {layer}")
        for layer in shown
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
    )
