"""The table of `minibert patterns`: for each pattern the heads that follow it most."""

import math
from typing import TYPE_CHECKING

import numpy as np

from minibert.survey.pattern_table import PATTERNS
from minibert.survey.query_key_dimensions import dimensions_by_pattern
from minibert.terminal import Terminal, bar, visible

if TYPE_CHECKING:
    from minibert.survey.patterns import Example, HeadPatterns, PatternHead
    from minibert.survey.query_key_dimensions import QueryKeyDimensions

__all__ = ["dimension_table", "pattern_table"]

_BAR = 20


def pattern_table(found: "HeadPatterns", terminal: Terminal, *, examples: bool) -> list[str]:
    """Every pattern with its best heads, as lines; `*` marks heads that are named by it."""
    lines = ["* named by it: more than half of the attention that the baseline leaves (--help)"]
    for name, pattern in PATTERNS.items():
        documents = found.documents[name]
        lines += ["", terminal.paint(f"{name}: {pattern.words}", "bold")]
        if not documents:
            lines.append("  not measured: no row of these texts has such a key")
            continue
        best = found.best(name)
        header = ["head", "score", "", "95 % interval", "baseline"]
        lines += terminal.table(header, [_row(one, terminal) for one in best], "<><<>")
        if examples:
            lines += [
                f"    {one.layer}-{one.head}  {_shown(e)}" for one in best for e in one.examples
            ]
    return lines


def dimension_table(
    counted: "QueryKeyDimensions", found: "HeadPatterns", terminal: Terminal
) -> list[str]:
    """How many dimensions carry query·key in the heads that each pattern names, as lines."""
    title = f"dimensions that carry query·key, of {counted.d_head} (participation ratio)"
    rows = [
        [name, str(heads), f"{of_all:.1f}", f"{of_row:.1f}"]
        for name, (heads, of_all, of_row) in dimensions_by_pattern(counted, found).items()
    ]
    medians = (counted.participation, counted.participation_of_rows)
    rows.append(
        ["all heads, median", str(counted.count.size), *(f"{np.nanmedian(m):.1f}" for m in medians)]
    )
    header = ["heads named", "", "over all rows", "in one row"]
    return [terminal.paint(title, "bold"), *terminal.table(header, rows, "<>>>")]


def _row(one: "PatternHead", terminal: Terminal) -> list[str]:
    interval = "one document" if math.isnan(one.low) else f"{one.low:.3f} to {one.high:.3f}"
    return [
        f"{one.layer}-{one.head}{'*' if one.named else ''}",
        f"{one.score:.3f}",
        terminal.paint(bar(one.score, _BAR), "positive"),
        interval,
        "-" if math.isnan(one.baseline) else f"{one.baseline:.3f}",
    ]


def _shown(example: "Example") -> str:
    query, key = visible(example.query), visible(example.key)
    places = f"{example.query_position} → {example.key_position}"
    return f"{query} → {key} {example.weight:.2f}  ({places} in {visible(example.document)})"
