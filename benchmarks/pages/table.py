"""What the benchmark prints: a line a row, a line a ratio, a line a figure."""

from collections.abc import Callable, Sequence

from minibert.bench.result_rows import Row
from minibert.bench.tables import line

HEADINGS = (
    "page",
    "file MB",
    "Python s",
    "Python MB",
    "painted ms",
    "renderer MB",
    "elements",
    "hover ms",
    "layer ms",
    "head ms",
)
WIDTHS = (46, 8, 8, 9, 10, 11, 9, 8, 8, 7)
NAMES = {"bytes_ratio": "file", "painted_ratio": "painted", "renderer_ratio": "memory"}


def nothing_line(row: Row) -> str:
    memory = row["renderer_bytes"] / 1e6
    return f"An empty page: painted after {row['painted_ms']:.0f} ms, renderer {memory:.0f} MB.\n"


def heading() -> str:
    return line(HEADINGS, WIDTHS)


def page_line(row: Row) -> str:
    """A row, or its reason."""
    size = f"{row['layers']}x{row['heads']} T{row['tokens']}"
    name = f"{size:<10} {row['view']:<10} {row['program']:<8} {row['holds']}"
    known = cells(row)
    if row["ok"]:
        return line([name, *known], WIDTHS)
    return f"{line([name, *known[:3]], WIDTHS[:4])}  {row['reason']}"


def cells(row: Row) -> list[str]:
    def cell(field: str, written: Callable[[float], str]) -> str:
        if field.removesuffix("_ms") in row.get("problems", {}):
            return "failed"
        return written(row[field]) if field in row else ""

    def megabytes(value: float) -> str:
        return f"{value / 1e6:.2f}" if value < 1e7 else f"{value / 1e6:.0f}"

    def whole(value: float) -> str:
        return f"{value:.0f}"

    return [
        cell("bytes", megabytes),
        cell("python_s", lambda value: f"{value:.2f}"),
        cell("python_peak_bytes", megabytes),
        cell("painted_ms", whole),
        cell("renderer_bytes", megabytes),
        cell("elements", whole),
        cell("hover_ms", whole),
        cell("layer_ms", whole),
        cell("opened_ms", whole),
    ]


def ratio_line(row: Row) -> str:
    """How many times minibert's BertViz takes."""
    size = f"{row['layers']}x{row['heads']} T{row['tokens']}"
    parts = []
    for name, short in NAMES.items():
        if name in row:
            bound = ">= " if name == "painted_ratio" and row.get("at_least") else ""
            parts.append(f"{short} {bound}{row[name]:.1f} x")
    reason = f"  ({row['reason']})" if "reason" in row else ""
    return f"{size:<10} {row['view']:<6} {', '.join(parts)}{reason}"


def reach_line(row: Row) -> str:
    """A figure, what was measured, and met or not."""
    verdict = {True: "met", False: "NOT MET", None: "not measured"}[row["met"]]
    bound = f"<= {row['most']:g}" if "most" in row else f">= {row['least']:g} x"
    value = f"{row['value']:g} ({row['at']})" if "value" in row else row.get("reason", "")
    return f"{row['figure']:<40} {bound:<11} {verdict:<13} {value}"


def summary(compared: Sequence[Row], reached: Sequence[Row]) -> str:
    """Both lists, the ratios of BertViz to minibert and the figures to reach."""
    lines = ["", "BertViz / minibert", *map(ratio_line, compared)]
    return "\n".join([*lines, "", "To reach", *map(reach_line, reached)])
