"""What `minibert check`, `minibert bench` and the benchmarks print; nothing here computes."""

import math
from collections.abc import Sequence

from minibert.kernels.check.report import Finding, ParityReport
from minibert.terminal import Terminal

_SHOWN = 5


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells of a table that is printed row by row: the first to the left, the rest to the right."""
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def check_lines(report: ParityReport, terminal: Terminal, *, context: str) -> list[str]:
    """The verdict, the causes, and for each output and dtype how near it is to its limit."""
    n, bad = len(report.findings), report.failures
    verdict = "right" if report.ok else "WRONG"
    painted = terminal.paint(verdict, "positive" if report.ok else "negative")
    count = f"{n} checks" if report.ok else f"{len(bad)} of {n} checks failed"
    lines = [f"{report.name}  {painted}  {count}  {context}"]
    lines += [f"  likely cause: {cause}" for cause in report.causes[:3]]
    lines += ["", *_outputs(report, terminal)]
    if bad:
        header = ("failed", "case", "error", "allowed")
        rows = [(_what(one), one.case, *_numbers(one)) for one in bad[:_SHOWN]]
        lines += ["", *terminal.table(header, rows, "<<>>")]
        if len(bad) > _SHOWN:
            lines.append(f"  and {len(bad) - _SHOWN} more")
    missing = dict.fromkeys(one.split(" in ")[0] for one in report.skipped)
    if missing:
        lines += [
            "",
            f"  not covered, as the function takes no such argument: {', '.join(missing)}",
        ]
    kinds = {one.case.split(",")[0] for one in report.findings}
    if "causal" in kinds and "causal cache" not in kinds:
        lines.append("  not covered: fewer queries than keys, as with a cache (--cache)")
    return lines


def _outputs(report: ParityReport, terminal: Terminal) -> list[str]:
    nearest: dict[tuple[str, str], Finding] = {}
    for one in report.findings:
        if one.tolerance > 0:
            other = nearest.setdefault((_type(one), one.output), one)
            if _share(one) > _share(other):
                nearest[_type(one), one.output] = one
    header = ("output", "", "error", "allowed", "part", "where")
    rows = [
        (one.output, _type(one), *_numbers(one), _part(_share(one)), one.case)
        for one in nearest.values()
    ]
    return terminal.table(header, rows, "<<>>><") if rows else []


def time_lines(rows: Sequence[dict[str, object]], terminal: Terminal) -> list[str]:
    """A block for each shape and state of the cache: implementations below one another."""
    lines: list[str] = []
    for place in dict.fromkeys(map(_place, rows)):
        here = [row for row in rows if _place(row) == place]
        lines += ["", place]
        header = ("", "median ms", "p20 to p80", "TFLOP/s", "of the ceiling", "beside yours", "")
        table = [_time_row(row) for row in here]
        lines += terminal.table(header, table, "<>>>>><")
    return lines


def _place(row: dict[str, object]) -> str:
    order = "causal" if row["causal"] else "full"
    lengths = "" if row["lengths"] == "full" else f", {row['lengths']} lengths"
    lengths += f", {row['about']}" if row.get("about") else ""
    return (
        f"{row['batch']} x {row['heads']} heads, {row['tokens']} tokens, d_head {row['d_head']}, "
        f"{row['dtype']}, {order}{lengths}, {row['cache']} cache"
    )


def _time_row(row: dict[str, object]) -> tuple[str, ...]:
    name = str(row["implementation"]) + (" (yours)" if row["role"] == "kernel" else "")
    if not row["ok"]:
        return (name, "-", "", "", "", "", str(row["reason"]))
    percent = f"{row['percent']:.0f} % ({row['bound']})" if row.get("percent") else ""
    return (
        name,
        f"{row['median_ms']:.4g}",
        f"{row['p20_ms']:.4g} to {row['p80_ms']:.4g}",
        f"{row['tflops']:.4g}",
        percent,
        _beside(row),
        str(row.get("note", "")),
    )


def _beside(row: dict[str, object]) -> str:
    if row.get("ratio") is None:
        return ""
    if row["role"] == "kernel":
        return f"± {100 * float(str(row['noise'])):.1f} % noise"
    ratio = float(str(row["ratio"]))
    return f"{ratio:.2f} x slower" if ratio >= 1 else f"{1 / ratio:.2f} x faster"


def _what(one: Finding) -> str:
    return f"{one.output} {_type(one)}"


def _type(one: Finding) -> str:
    return str(one.dtype).removeprefix("torch.")


def _numbers(one: Finding) -> tuple[str, str]:
    return f"{one.error:.1e}", f"{one.tolerance:.1e}"


def _share(one: Finding) -> float:
    return one.error / one.tolerance if one.error == one.error else math.inf


def _part(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 1e4 else "over"
