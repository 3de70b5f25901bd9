"""The figure of `minibert bench`: time by length of the text, a line for each implementation."""

from collections.abc import Mapping, Sequence
from typing import Any

from minibert.errors import MinibertError
from minibert.viz.plots.sheet import (
    FAINT,
    INK,
    Axes,
    Figure,
    Output,
    panel_at,
    sheet,
)

# Okabe and Ito's colours; the kernel itself is drawn in ink.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_WIDTH, _HEIGHT, _STEP = 2.6, 2.0, 3.4


def bench_times(rows: Sequence[Mapping[str, Any]], output: Output = None) -> Figure:
    """The figure of the rows that `minibert bench --output` writes.

    A panel for each number type, order and state of the cache; medians in ms with a band from p20
    to p80, both axes logarithmic. Rows without a time are left out. With `output` the figure is
    written there as well, as SVG, PDF or PNG by the end of its name.

    Raises MinibertError without matplotlib, for another kind of file, and when nothing was timed.
    """
    timed = [row for row in rows if row["ok"]]
    if not timed:
        raise MinibertError("there is nothing to draw: no row has a time.")
    panels = list(dict.fromkeys(map(_panel, timed)))
    names = list(dict.fromkeys(str(row["implementation"]) for row in timed))
    with sheet(output) as figure:
        for number, panel in enumerate(panels):
            axes = panel_at(figure, number * _STEP, _WIDTH, _HEIGHT)
            _draw(axes, [row for row in timed if _panel(row) == panel], names)
            axes.set_title(", ".join(panel), loc="left", color=INK)
            if number == 0:
                axes.set_ylabel("ms, median of single calls")
                axes.legend(frameon=False, fontsize=7)
    return figure


def _panel(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(row["dtype"]), "causal" if row["causal"] else "full", f"{row['cache']} cache"


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    others = [row["implementation"] for row in rows if row["role"] != "kernel"]
    colours = dict(zip(dict.fromkeys(others), _COLOURS * len(rows), strict=False))
    for name in names:
        line = sorted(
            (row for row in rows if row["implementation"] == name), key=lambda row: row["tokens"]
        )
        if not line:
            continue
        tokens = [row["tokens"] for row in line]
        colour = colours.get(name, INK)
        axes.plot(tokens, [row["median_ms"] for row in line], "o-", ms=3, color=colour, label=name)
        low, high = ([row[part] for row in line] for part in ("p20_ms", "p80_ms"))
        axes.fill_between(tokens, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    tokens = sorted({row["tokens"] for row in rows})
    axes.set_xticks(tokens, [str(n) for n in tokens])
    axes.minorticks_off()
    axes.grid(color=FAINT, alpha=0.2, linewidth=0.5)
    axes.set_xlabel("tokens")
