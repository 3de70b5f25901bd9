"""What the rows come to: times, ratios, ceilings, the matrix, and every row that failed.

A ratio divides medians of one run and task, which were measured in turns. FlexAttention, which
takes long to compile, has tasks of its own, each with our plain forward in it.
"""

from collections.abc import Iterable, Iterator

from minibert.bench.result_rows import Row

Group = dict[str, Row]
#: Whom the contenders of a part are divided by, where that is not `plain`.
BASES = {"backward": "backward", "eager": "T1"}


def groups(rows: Iterable[Row]) -> dict[str, Group]:
    """For each task its rows by contender, all of the last run that measured them."""
    found: dict[str, dict[str | None, Group]] = {}
    for row in rows:
        if "task" in row:
            runs = found.setdefault(row["task"], {})
            runs.setdefault(row.get("run"), {})[row["implementation"]] = row
    last = {}
    for task, runs in found.items():
        timed = [group for group in runs.values() if any(row["ok"] for row in group.values())]
        last[task] = (timed or list(runs.values()))[-1]
    return last


def ratios(group: Group) -> dict[str, float]:
    """The median of each contender in medians of the base of its part, where both have one.

    `noise` of the rows compares two timings of one kernel: a ratio nearer to 1 means nothing.
    """
    part = next(iter(group.values()))["part"]
    base = group.get(BASES.get(part, "plain"), {}).get("median_ms")
    timed = {name: row["median_ms"] for name, row in group.items() if "median_ms" in row}
    return {name: one / base for name, one in timed.items()} if base else {}


def shown(rows: list[Row]) -> str:
    """The table as text."""
    last = groups(rows)
    every = [row for group in last.values() for row in group.values()]
    wrong = [row["key"] for row in every if row.get("wrong")]
    lines = [f"WRONG, so trust no number below: {'; '.join(wrong[:6])}"] if wrong else []
    for group in last.values():
        found = ratios(group)
        lines += [_told(row, found.get(name)) for name, row in group.items() if row["ok"]]
    if calls := [row["key"] for row in every if "not_recorded" in row]:
        lines.append(f"not recorded as a graph, so with Python's time: {'; '.join(calls[:6])}")
    failed = [row for row in every if not row["ok"]]
    lines += [f"{len(failed)} rows failed" if failed else "no row failed"]
    lines += [f"  {row['key']}: {row.get('reason') or row.get('worst')}"[:240] for row in failed]
    return "\n".join(lines)


def _told(row: Row, ratio: float | None) -> str:
    """A row that is right, as a line."""
    return f"{row['key']:64} {'  '.join(_cells(row, ratio))}"


def _cells(row: Row, ratio: float | None) -> Iterator[str]:
    if "checks" in row:
        yield f"{row['checks'] - row['failures']} of {row['checks']} right"
    if "median_ms" in row:
        yield f"{row['median_ms']:9.4f} ms"
    if ratio is not None:
        yield f"ratio {ratio:.3f}, noise {row.get('noise', 0.0):.3f}"
    if "tflops" in row:
        yield f"{row['tflops']:.1f} TFLOP/s"
    if "bytes_per_s" in row:
        yield f"{row['bytes_per_s']:.3g} B/s"
    if "extra_bytes_per_row" in row:
        yield f"{row['extra_bytes_per_row']} bytes a row"
    if "peak_bytes" in row:
        yield f"{row['peak_bytes'] / 2**20:.0f} MiB at most"
