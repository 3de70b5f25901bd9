"""The figure of what `minibert train` logged (scores.jsonl): how the heads of a model form."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minibert.errors import MinibertError
from minibert.untrusted import read_text
from minibert.viz.plots.sheet import COLOURS, FAINT, INK, Axes, Figure, sheet

Real = npt.NDArray[np.float64]
# A run that measures a thousand times writes some MB.
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class ScoresLog:
    """A log of training, a row for each moment of measuring; NaN where nothing was measured.

    heads   (moment, layer, head) for each pattern that was measured at all
    """

    tokens: Real
    losses: Mapping[str, Real]
    heads: Mapping[str, Real]


def read_scores(path: Path) -> ScoresLog:
    """The log at this path.

    Raises MinibertError for a file that cannot be read or is empty, and with the number of the
    line for one that is not a measurement, or has other heads than the first.
    """
    rows: list[tuple[float, list[float | None], dict[str, Real]]] = []
    shape: tuple[int, ...] = ()
    for number, line in enumerate(read_text(path, MinibertError, most=_MOST_BYTES).splitlines(), 1):
        try:
            row = json.loads(line)
            heads = {n: np.array(s, np.float64) for n, s in row["heads"].items() if s is not None}
            shape = shape or next((scores.shape for scores in heads.values()), ())
            if any(scores.shape != shape or scores.ndim != 2 for scores in heads.values()):
                raise ValueError("scores are not (layer, head) as in the lines above")
            rows.append((float(row["tokens"]), [row["loss"], row.get("held_out_loss")], heads))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise MinibertError(
                f"{path}, line {number}: no measurement ({error}); expected an object with tokens,"
                " loss and heads, and for each pattern one list of scores a layer, or null."
            ) from error
    if not rows:
        raise MinibertError(f"{path}: there is no line in it; expected one a measurement.")
    nothing = np.full(shape, math.nan)
    names = dict.fromkeys(name for *_, heads in rows for name in heads)
    scores = {name: np.stack([heads.get(name, nothing) for *_, heads in rows]) for name in names}
    losses = np.array([losses for _, losses, _ in rows], np.float64).T
    return ScoresLog(
        np.array([tokens for tokens, *_ in rows]),
        dict(zip(("training", "held-out text"), losses, strict=True)),
        {name: values for name, values in scores.items() if np.isfinite(values).any()},
    )


# What stands above a panel: the name, and what the score is the mean attention to.
_TITLES = {
    "previous": "Previous token",
    "next": "Next token",
    "duplicate": "Duplicate token",
    "induction": "Induction: to what came next, earlier",
    "delimiter": "Delimiter: [SEP] or end of text",
}


def training_scores(log: str | Path, output: str | Path | None = None) -> Figure:
    """The figure of a log of training: the heads as they form, and the loss.

    `log` is the scores.jsonl that `minibert train` writes. There is a panel for each pattern
    that was measured and a line for each head in the colour of its layer; the head that is best
    at the end is named, "layer-head" counted from 0. The last panel is the loss. Tokens seen are
    on a logarithmic axis where they grow more than tenfold, which has no place for the start at
    0 tokens. With `output` the figure is written there as well, as SVG, PDF or PNG by the end of
    its name.

    Raises MinibertError without matplotlib, for another kind of file, and for a log that cannot
    be read, with the number of the line.
    """
    scores = read_scores(Path(log))
    count = len(scores.heads) + 1
    columns = count if count <= 3 else (count + 1) // 2
    rows = -(-count // columns)
    with sheet(output, 2.5 * columns + 0.4, 2.0 * rows + 0.5) as figure:
        panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)
        for panel in panels[count:]:
            panel.remove()
        for panel, (name, values) in zip(panels, scores.heads.items(), strict=False):
            _draw_heads(panel, scores.tokens, values)
            panel.set_title(_TITLES.get(name, name))
            panel.set_ylabel("mean attention")
        _draw_loss(panels[count - 1], scores)
        positive = scores.tokens[scores.tokens > 0]
        if len(positive) and positive[-1] > 10 * positive[0]:
            panels[0].set_xscale("log", nonpositive="mask")
        figure.supxlabel("tokens seen", fontsize="medium")
        if scores.heads:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=6)
    return figure


def _draw_heads(panel: Axes, tokens: Real, values: Real) -> None:
    """A line for each head, the best one last and on top, with its name at its end."""
    _, n_layers, n_heads = values.shape
    moment = int(np.flatnonzero(np.isfinite(values).any(axis=(1, 2)))[-1])
    best = tuple(map(int, np.unravel_index(np.nanargmax(values[moment]), values.shape[1:])))
    colours = _colours(n_layers)
    for layer, head in sorted(np.ndindex(n_layers, n_heads), key=lambda place: place == best):
        strong = (layer, head) == best
        panel.plot(
            tokens,
            values[:, layer, head],
            color=colours[layer],
            linewidth=1.8 if strong else 0.8,
            alpha=1.0 if strong else 0.6,
            # One moment is not a line yet.
            marker="o" if len(tokens) == 1 else None,
            label=f"layer {layer}" if head == 0 else None,
        )
    panel.annotate(
        f"{best[0]}-{best[1]}",
        (tokens[moment], values[moment, *best]),
        xytext=(4, 0),
        textcoords="offset points",
        color=colours[best[0]],
        fontweight="bold",
        annotation_clip=False,
    )
    panel.set_ylim(0, 1)
    panel.grid(axis="y", color=FAINT, alpha=0.2, linewidth=0.5)


def _draw_loss(panel: Axes, scores: ScoresLog) -> None:
    for (name, losses), colour in zip(scores.losses.items(), (FAINT, INK), strict=True):
        there = np.isfinite(losses)
        marker = "o" if there.sum() == 1 else None
        if there.any():
            panel.plot(scores.tokens[there], losses[there], color=colour, marker=marker, label=name)
    panel.legend()
    panel.set_title("Loss, nats per predicted token")


def _colours(n_layers: int) -> Sequence[object]:
    """The colours of layers; from dark to light where there are more than colours with names."""
    if n_layers <= len(COLOURS):
        return COLOURS
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 0.9, n_layers)))
