"""The table of docs/speed.md, made of a result file.

python -m benchmarks.pages.speed_table FILE
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.pages.plan import BERTVIZ, COMPARED, DEFAULT, LENGTHS, MINIBERT, WEIGHTS
from minibert.bench.result_rows import Row, read_rows

HEADINGS = (
    "12 layers of 12 heads",
    "file",
    "head view on screen",
    "model view on screen",
    "layer change (head view)",
    "memory of the page",
)
SHOWN = ((MINIBERT, DEFAULT), (MINIBERT, WEIGHTS), (BERTVIZ, WEIGHTS))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table, in Markdown: each program's page at each length."""
    yield _line(HEADINGS)
    yield "|---" * len(HEADINGS) + "|"
    for tokens in LENGTHS:
        for program, holds in SHOWN:
            found = [_row(rows, program, view, tokens, holds) for view in COMPARED]
            label = f"{program}, {holds}" if program == MINIBERT else program
            if any(found):
                yield _line((f"{tokens} tokens, {label}", *_cells(*found)))


def _row(rows: Sequence[Row], program: str, view: str, tokens: int, holds: str) -> Row:
    wanted = {"what": "page", "program": program, "view": view, "tokens": tokens, "holds": holds}
    wanted |= {"layers": 12, "heads": 12}
    return next((row for row in rows if wanted.items() <= row.items()), {})


def _cells(head: Row, model: Row) -> list[str]:
    sizes = [row["bytes"] for row in (head, model) if "bytes" in row]
    memory = [row["renderer_bytes"] for row in (head, model) if row.get("ok")]
    return [
        _megabytes(max(sizes)) if sizes else "–",
        _seconds(head, "painted_ms"),
        _seconds(model, "painted_ms"),
        _seconds(head, "layer_ms"),
        f"{max(memory) / 1e6:.0f} MB" if memory else "–",
    ]


def _seconds(row: Row, field: str) -> str:
    if field in row and row["ok"]:
        return f"{row[field] / 1e3:.2f} s"
    late = row.get("reason", "").startswith("not painted")
    return f"over {row['limit_s']:.0f} s" if late else "not tried"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2g} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(table(read_rows(Path(sys.argv[1])))))
