"""The figure of what `minibert train` logged (scores.jsonl): how the heads of a model form."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.errors import MinibertError
from minibert.untrusted import read_text
from minibert.viz.plots.sheet import (
    FAINT,
    INK,
    STYLE,
    Axes,
    Figure,
    kind_of,
    needed_matplotlib,
    save,
    style,
)

Real = npt.NDArray[np.float64]
EXPECTED = (
    "expected an object with tokens, loss and heads, and in heads for each pattern one list of "
    "scores a layer, or null"
)
# A run that measures a thousand times writes some MB.
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class ScoresLog:
    """A log of training, a row for each moment of measuring; NaN where nothing was measured.

    heads   (moment, layer, head) for each pattern that was measured at all
    """

    tokens: Real
    loss: Real
    held_out_loss: Real
    heads: Mapping[str, Real]


class Row(NamedTuple):
    """One line; scores are (layer, head), and the line's place is for messages."""

    where: str
    tokens: float
    loss: float
    held_out_loss: float
    heads: Mapping[str, Real]


def read_scores(path: Path) -> ScoresLog:
    """The log at this path.

    Raises MinibertError for a file that cannot be read or is empty, and with the number of the
    line for one that is no measurement, that does not fit the lines above it, or goes back.
    """
    lines = enumerate(read_text(path, MinibertError, most=_MOST_BYTES).splitlines(), start=1)
    rows = [_row(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not rows:
        raise MinibertError(f"{path}: there is no line in it; expected one a measurement.")
    nothing = np.full(_one_shape(rows), math.nan)
    names = dict.fromkeys(name for row in rows for name in row.heads)
    heads = {name: np.stack([row.heads.get(name, nothing) for row in rows]) for name in names}
    return ScoresLog(
        tokens=np.array([row.tokens for row in rows]),
        loss=np.array([row.loss for row in rows]),
        held_out_loss=np.array([row.held_out_loss for row in rows]),
        heads={name: scores for name, scores in heads.items() if np.isfinite(scores).any()},
    )


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
        measured = {name: scores for name, scores in row["heads"].items() if scores is not None}
        losses = [
            math.nan if loss is None else float(loss)
            for loss in (row["loss"], row.get("held_out_loss"))
        ]
        return Row(
            where,
            float(row["tokens"]),
            losses[0],
            losses[1],
            heads={name: _scores(scores) for name, scores in measured.items()},
        )
    except KeyError as error:
        raise MinibertError(f"{where}: there is no {error} in it; {EXPECTED}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise MinibertError(f"{where}: no measurement ({error}); {EXPECTED}.") from error


def _scores(value: object) -> Real:
    scores = np.array(value, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores of shape {scores.shape}")
    return scores


def _one_shape(rows: Sequence[Row]) -> tuple[int, ...]:
    """Layers and heads, the same in every line; checks that tokens grow from line to line."""
    shape: tuple[int, ...] | None = None
    seen = -math.inf
    for row in rows:
        for scores in row.heads.values():
            shape = scores.shape if shape is None else shape
            if scores.shape != shape:
                raise MinibertError(
                    f"{row.where}: scores of {_times(scores.shape)} layers x heads after scores of "
                    f"{_times(shape)}; expected those of one model."
                )
        if not row.tokens > seen:
            raise MinibertError(
                f"{row.where}: {row.tokens:.0f} tokens after {seen:.0f}; expected more with each "
                "line. Are there two runs in one file?"
            )
        seen = row.tokens
    return shape or (0, 0)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


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
