"""The table of examples/README.md, made of a result file of benchmarks/examples.py.

python -m benchmarks.examples_table FILE
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.examples import CONTENDERS, EXAMPLES, IMPORTS
from minibert.bench.result_rows import Row, busy, read_rows

NAMES = {"minibert": "minibert", "transformer_lens": "TransformerLens", "nnsight": "nnsight"}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table, in Markdown: lines of code, then seconds, of each contender.

    In brackets stand our lines that read options, which the peers' scripts do not have.
    """
    found = {(row["task"], row["contender"]): row for row in rows}
    tasks = sorted({row["task"] for row in rows} - {IMPORTS})
    names = [NAMES[who] for who in CONTENDERS]
    yield _line(["", *(f"{unit}: {name}" for unit in ("lines", "seconds") for name in names)])
    yield f"|---{'|---:' * (2 * len(CONTENDERS))}|"
    for task in (*tasks, IMPORTS):
        each = [found.get((task, who), {}) for who in CONTENDERS]
        lines = [str(row.get("lines", "")) for row in each]
        if task != IMPORTS:
            lines[0] += f" ({options_of(EXAMPLES / f'{task}.py')})"
        yield _line([task if task != IMPORTS else "imports alone", *lines, *map(_seconds, each)])
    counts = [str(sum(found[task, who]["lines"] for task in tasks)) for who in CONTENDERS]
    counts[0] += f" ({sum(options_of(EXAMPLES / f'{task}.py') for task in tasks)})"
    times = [[found[task, who].get("seconds") for task in tasks] for who in CONTENDERS]
    whole = [f"{sum(each):.1f}" if None not in each else "" for each in times]
    yield _line(["all twelve", *counts, *whole])
    load = max(row["load_at_start"] for row in rows)
    if busy({"load_at_start": load}):
        yield f"\nOthers used the machine (load {load:.1f} at the start): trust no second."


def options_of(path: Path) -> int:
    """Lines of a script's statements that read its options with argparse."""
    count = 0
    for statement in ast.parse(path.read_text("utf-8")).body:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        names |= {node.name for node in ast.walk(statement) if isinstance(node, ast.alias)}
        if names & {"argparse", "parser"}:
            count += (statement.end_lineno or 0) - statement.lineno + 1
    return count


def _seconds(row: Row) -> str:
    """Its median, or why there is none."""
    return f"{row['seconds']:.1f}" if row.get("ok") else str(row.get("reason", "not run"))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(table(read_rows(Path(sys.argv[1])))))
