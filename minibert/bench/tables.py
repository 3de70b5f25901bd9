"""What `minibert check`, `minibert bench` and the benchmarks print.

Verdicts and causes, times, and the list of implementations, workloads and signatures.
"""

import math
from collections.abc import Sequence

from minibert.bench.signatures import SIGNATURES
from minibert.kernels.call import OPTIONS, SHAPES
from minibert.kernels.check.parity import Finding, ParityReport, short
from minibert.kernels.check.workload import WORKLOADS, Workload
from minibert.kernels.registry import Implementation, foldable, implementations
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
        rows = [
            (f"{one.output} {short(one.dtype)}", one.case, *_numbers(one)) for one in bad[:_SHOWN]
        ]
        lines += ["", *terminal.table(header, rows, "<<>>")]
        if len(bad) > _SHOWN:
            lines.append(f"  and {len(bad) - _SHOWN} more")
    missing = dict.fromkeys(one.split(" in ")[0] for one in report.skipped)
    if missing:
        lines += [
            "",
            f"  not covered, as the function takes no such argument: {', '.join(missing)}",
        ]
    lines += [f"  {line}" for line in report.not_taken]
    kinds = {one.case.split(",")[0] for one in report.findings}
    if "causal" in kinds and "causal cache" not in kinds:
        lines.append("  not covered: fewer queries than keys, as with a cache (--cache)")
    return lines


def _outputs(report: ParityReport, terminal: Terminal) -> list[str]:
    nearest: dict[tuple[str, str], Finding] = {}
    for one in report.findings:
        if one.tolerance > 0:
            other = nearest.setdefault((short(one.dtype), one.output), one)
            if _share(one) > _share(other):
                nearest[short(one.dtype), one.output] = one
    header = ("output", "", "error", "allowed", "part", "where")
    rows = [
        (one.output, short(one.dtype), *_numbers(one), _part(_share(one)), one.case)
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


def _numbers(one: Finding) -> tuple[str, str]:
    return f"{one.error:.1e}", f"{one.tolerance:.1e}"


def _share(one: Finding) -> float:
    return one.error / one.tolerance if one.error == one.error else math.inf


def _part(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 1e4 else "over"


#: The columns: an option, or options that go together.
COLUMNS = {
    "lengths": ("lengths",),
    "causal": ("causal",),
    "mask": ("mask",),
    "bias": ("bias",),
    "scale": ("scale",),
    "groups": ("groups",),
    "d_v": ("value_size",),
    "window": ("window",),
    "prefix": ("prefix",),
    "cap": ("soft_cap",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sinks",),
    "packed": ("packed", "packed_keys"),
    "pages": ("pages", "lengths"),
    "gradient": (),
}


def implementation_rows() -> list[tuple[str, ...]]:
    """A row for each implementation: yes, folded, or - for each column, and why it cannot run.

    folded: it is handed on in a form that it takes, as a mask, a bias, repeated or gathered keys.
    """
    assert {name for names in COLUMNS.values() for name in names} == {*OPTIONS, *SHAPES} - {"want"}
    return [
        (name, *_taken(one), one.unavailable or " and ".join(one.devices) or "anywhere")
        for name, one in implementations().items()
    ]


def _taken(one: Implementation) -> list[str]:
    taken, folds = one.options, one.options | foldable(one.options, frozenset())
    cells = {
        column: "yes" if set(names) <= taken else "folded" if set(names) <= folds else "-"
        for column, names in COLUMNS.items()
    }
    return list((cells | {"gradient": "yes" if "z" in one.differentiable else "-"}).values())


def workload_rows() -> list[tuple[str, ...]]:
    """A row for each named workload: its size, and what it asks beside."""
    return [(name, *_described(one)) for name, one in WORKLOADS.items()]


def _described(one: Workload) -> tuple[str, str, str]:
    order = ["causal"] if one.causal else []
    lengths = ["varied lengths"] if one.lengths == "varied" else []
    size = f"{one.batch} x {one.heads} heads x {one.tokens}, d_head {one.d_head}"
    rest = [*order, *lengths, *([one.about()] if one.about() else [])]
    return size, ", ".join(rest), f"{one.flop / 1e9:.4g} GFLOP, {one.bytes / 2**20:.4g} MiB"


def list_lines(terminal: Terminal) -> list[str]:
    """The three tables."""
    lines = ["Implementations, and what of a call they take"]
    header = ("", *COLUMNS, "runs on")
    lines += terminal.table(header, implementation_rows(), "<" * len(header))
    lines += ["", "Workloads (--workload)"]
    lines += terminal.table(("", "size", "asks", "forward"), workload_rows(), "<<<<")
    lines += ["", "Signatures (--signature)"]
    lines += [f"  {name:<18}  {one.says}" for name, one in SIGNATURES.items()]
    return lines
