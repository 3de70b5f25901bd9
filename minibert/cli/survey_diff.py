"""`minibert survey-diff`: which heads changed between two surveys."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.errors import SurveyError
from minibert.terminal import Terminal, number, say

if TYPE_CHECKING:
    from minibert.survey.differences import SurveyDiff

__all__ = ["survey_diff"]

# Changes that a line of the table names.
_NAMED = 3


def survey_diff(
    folder_a: Annotated[Path, typer.Argument(metavar="DIR_A", help="A folder of minibert survey.")],
    folder_b: Annotated[Path, typer.Argument(metavar="DIR_B", help="The one to compare with it.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write every number to this .csv or .json file."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Pairs of heads that are shown, the least alike first.")
    ] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every pair and every number, as JSON.")
    ] = False,
) -> None:
    """Say which heads changed between two surveys of the same documents.

    Each head of A stands beside the head of B that behaves most like it, in whatever layer. A
    change is named where it is larger than the 95 % interval of the difference.
    """
    if output is not None and output.suffix not in (".csv", ".json"):
        raise SurveyError(f"{output}: its name must end in .csv or .json.")
    from minibert.survey.differences import diff
    from minibert.survey.tables import Survey

    found = diff(Survey.read(folder_a), Survey.read(folder_b))
    if output is not None:
        from minibert.viz.saving import write_bytes

        text = json.dumps(found.to_dict()) if output.suffix == ".json" else _csv(found)
        write_bytes(text.encode(), output)
    if as_json:
        say(json.dumps(found.to_dict()))
    else:
        say(*_table(found, Terminal.of(sys.stdout), top))


def _table(found: "SurveyDiff", terminal: Terminal, top: int) -> list[str]:
    changed = int(found.exceeds.any(1).sum())
    pairs = len(found.pairs)
    lines = [
        f"{changed} of {pairs} heads changed beyond the 95 % interval of some measure; "
        f"{sum(found.moved)} are most like a head in another place",
        "",
    ]
    header = ["head A", "head B", "distance", "largest changes beyond their interval"]
    rows = [
        [_name(a), _name(b), f"{found.distance[pair]:.2f}", _changes(found, pair)]
        for pair, (a, b) in enumerate(found.pairs[:top])
    ]
    lines += terminal.table(header, rows, "<<><")
    if pairs > top:
        lines.append(f"  and {pairs - top} more; --top {pairs} shows all")
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            lines += [
                "",
                f"only in {name}, without a partner:",
                *terminal.wrapped([_name(head) for head in only]),
            ]
    return lines


def _changes(found: "SurveyDiff", pair: int) -> str:
    """The changes that are largest beside how much heads differ."""
    # Where heads do not differ at all there is no change either.
    sizes = abs(found.change[pair]) / found.spread.clip(min=1e-300)
    order = [i for i in (-sizes).argsort(kind="stable") if found.exceeds[pair, i]]
    return ", ".join(
        f"{found.names[i]} {number(found.before[pair, i])} to {number(found.after[pair, i])}"
        for i in order[:_NAMED]
    )


def _name(head: tuple[int, int]) -> str:
    return f"{head[0]}-{head[1]}"


def _csv(found: "SurveyDiff") -> str:
    from minibert.survey.differences import COLUMNS

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    # Nothing for a number that there is not.
    writer.writerows(["" if value != value else value for value in row] for row in found.rows())
    return text.getvalue()
