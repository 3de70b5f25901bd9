"""How long minibert needs for what a researcher does to a model, beside its peers.

    python -m benchmarks.instruments [--quick] [--rows REGEX] [--threads 2] [--rounds 9]
                                     [--output FILE]

All in one process, interleaved, on random weights, without a network. What a contender computes
is compared with transformers in float32 with plain hooks first; one that is wrong, cannot, or is
not installed is a row with the reason and no speed. The rows go to
`benchmarks/results/instruments-<processor>-<date>.jsonl`.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cases import Case, Shape
from benchmarks.instruments.entries import ENTRIES
from benchmarks.instruments.entry import MINIBERT, Entry
from benchmarks.instruments.measure import measure
from benchmarks.instruments.tasks import TASKS, Task
from benchmarks.models import chosen_backends
from benchmarks.session import Kept, parse, session
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

# Peers of this benchmark alone: their versions go into the rows too.
PACKAGES = ("pyvene",)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every row of minibert was right."""
    description = "Speed of interpretability work beside the peers."
    chosen = parse(arguments, description, rounds=9, quick_rounds=3)
    with session(chosen.threads, PACKAGES) as known:
        rows = collect(chosen, known)
    return 0 if all(row["ok"] for row in rows if row.get("kind") == MINIBERT) else 1


def collect(chosen: argparse.Namespace, known: Row) -> list[Row]:
    """All rows, shown as they come; in the file at the end, in `.partial.jsonl` until then."""
    kept = Kept("instruments", chosen)
    for table in tables(chosen.quick, chosen.rows, ENTRIES, chosen.rounds):
        kept.rows.extend({**row, **known} for row in table)
        show(table)
        kept.save()
    kept.rows.append({**chosen_backends(), **known})
    return kept.finish()


def tables(
    quick: bool, wanted: re.Pattern[str] | None, entries: Sequence[Entry], rounds: int
) -> Iterator[list[Row]]:
    """The rows of each task at each shape, one model after the other."""
    plan = [
        (shape, task, entered)
        for task in TASKS
        for shape in task.shapes(quick=quick)
        if (entered := select(task, shape, entries, wanted))
    ]
    for model in dict.fromkeys(shape.model for shape, _, _ in plan):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(model, Path(folder))
            for shape, task, entered in plan:
                if shape.model == model:
                    yield list(measure(case, task, shape, entered, rounds))


def select(
    task: Task, shape: Shape, entries: Sequence[Entry], wanted: re.Pattern[str] | None
) -> list[Entry]:
    """Who answers a task at a shape, of those asked for."""
    entered = [one for one in entries if one.task == task.name]
    if wanted is None:
        return entered
    return [one for one in entered if wanted.search(f"{task.name} {shape} {one.contender.name}")]


WIDTHS = (48, 12, 20, 8, 12, 8)
HEADINGS = ("implementation", "median ms", "p20 - p80", "ratio", "documented", "error")


def show(table: Sequence[Row]) -> None:
    """Print the rows of one task at one shape, and whether the target is met."""
    first = table[0]
    shape = f"{first['model']} B{first['batch']} T{first['position']}"
    print(f"\n{first['task']}, {shape}; target {first['target']}")
    headings = ("implementation", "held MiB", "peak MiB", *HEADINGS[3:])
    print(line(headings if any("held_bytes" in row for row in table) else HEADINGS, WIDTHS))
    for row in table:
        if row["ok"]:
            print(line(cells(row), WIDTHS))
        else:
            print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}")
    for row in table:
        if "met" in row:
            print(said(row))
    sys.stdout.flush()


def cells(row: Row) -> list[str]:
    if "held_bytes" in row:
        amounts = [f"{row['held_bytes'] / 2**20:.1f}", f"{row['peak_bytes'] / 2**20:.1f}"]
    else:
        amounts = [f"{row['median_ms']:.2f}", f"{row['p20_ms']:.2f} - {row['p80_ms']:.2f}"]
    ratios = [f"{row[name]:.2f}" if name in row else "" for name in ("ratio", "ratio_documented")]
    return [row["implementation"], *amounts, *ratios, f"{row['max_error']:.0e}"]


def said(row: Row) -> str:
    """One line: against whom, and is the target met."""
    verdicts = [(row["ratio"], row["fastest_peer"], row["met"])]
    if row.get("fastest_documented") not in (None, row["fastest_peer"]):
        verdicts.append((row["ratio_documented"], row["fastest_documented"], row["met_documented"]))
    told = [f"{ratio:.2f} of {peer}: {'' if met else 'not '}met" for ratio, peer, met in verdicts]
    return f"  {row['implementation']}: {'; '.join(told)}"


if __name__ == "__main__":
    sys.exit(main())
