"""minibert beside BertViz, and beside the figures to reach: met, not met, or not measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.pages.plan import (
    BERTVIZ,
    COMPARED,
    DEFAULT,
    LONG,
    MINIBERT,
    THUMBNAILS,
    WEIGHTS,
)
from minibert.bench.result_rows import Row

SMALL, LARGE = (12, 12), (24, 16)
RATIO, RATIO_FROM = 20, 64


def ratios(rows: Sequence[Row], limit: float) -> list[Row]:
    """How many times the bytes and time of minibert's default page BertViz takes, by view and size.

    Where BertViz was still not painted at the limit, the ratio is at least that.
    """
    found = []
    for mine in rows:
        if mine["program"] != MINIBERT or mine["view"] not in COMPARED or not mine["ok"]:
            continue
        if mine["holds"] != DEFAULT:
            continue
        its = next((row for row in rows if row["program"] == BERTVIZ and same(row, mine)), None)
        if its is not None:
            found.append({**named(mine), **ratio(mine, its, limit)})
    return found


def same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("view", "layers", "heads", "tokens"))


def named(row: Row) -> Row:
    return {"what": "ratio", **{name: row[name] for name in ("view", "layers", "heads", "tokens")}}


def ratio(mine: Row, its: Row, limit: float) -> Row:
    """The ratios that can be formed, and BertViz' reason where it has one."""
    found: Row = {}
    if "bytes" in its:
        found["bytes_ratio"] = round(its["bytes"] / mine["bytes"], 1)
    if its["ok"]:
        found["painted_ratio"] = round(its["painted_ms"] / mine["painted_ms"], 1)
        found["renderer_ratio"] = round(its["renderer_bytes"] / mine["renderer_bytes"], 1)
    else:
        found["reason"] = its["reason"]
        if its["reason"].startswith("not painted"):
            found["painted_ratio"] = round(limit * 1e3 / mine["painted_ms"], 1)
            found["at_least"] = True
    return found


@dataclass(frozen=True)
class Figure:
    """A number to reach: the worst of the rows that it is about counts."""

    name: str
    field: str
    most: float
    about: Callable[[Row], bool]


def size(row: Row) -> tuple[int, int]:
    return (row["layers"], row["heads"])


def file_of(tokens: int, holds: str = DEFAULT) -> Callable[[Row], bool]:
    """A page of 12 x 12 heads that holds this."""

    def about(row: Row) -> bool:
        plain = row["view"] in COMPARED and size(row) == SMALL
        return plain and row["tokens"] == tokens and row["holds"] == holds

    return about


def largest(row: Row) -> bool:
    return size(row) == LARGE and row["tokens"] == LONG


FIGURES = (
    Figure("file, 12x12 T16, weights only", "bytes", 120e3, file_of(16, WEIGHTS)),
    Figure("file, 12x12 T128, weights only", "bytes", 3e6, file_of(128, WEIGHTS)),
    Figure("file, 12x12 T512", "bytes", 26e6, file_of(512)),
    Figure("file, 12x12 T512, thumbnails", "bytes", 1e6, file_of(512, THUMBNAILS)),
    Figure("painted, below 24x16 T512", "painted_ms", 200, lambda row: not largest(row)),
    Figure("painted, 24x16 T512", "painted_ms", 300, largest),
    Figure("a head opened", "opened_ms", 65, lambda row: True),
    Figure("hover", "hover_ms", 50, lambda row: True),
    Figure("layer change", "layer_ms", 100, lambda row: True),
    Figure("renderer", "renderer_bytes", 250e6, lambda row: True),
    Figure("Python, T512", "python_s", 0.5, lambda row: row["tokens"] == LONG),
)


def reached(rows: Sequence[Row], compared: Sequence[Row]) -> list[Row]:
    """A row for each figure: the worst that was measured, where, and whether that will do.

    A view that could not be measured meets no figure that is about it.
    """
    mine = [row for row in rows if row["program"] == MINIBERT]
    found = [verdict(figure, [row for row in mine if figure.about(row)]) for figure in FIGURES]
    return [*found, *(at_least(name, compared) for name in ("bytes_ratio", "painted_ratio"))]


def verdict(figure: Figure, rows: Sequence[Row]) -> Row:
    head: Row = {"what": "reach", "figure": figure.name, "most": figure.most}
    short = figure.field.removesuffix("_ms")
    broken = [row for row in rows if not row["ok"] or short in row.get("problems", {})]
    if broken:
        return {**head, "met": False, "at": place(broken[0]), "reason": why(broken[0], short)}
    measured = [row for row in rows if figure.field in row]
    if not measured:
        return {**head, "met": None}
    worst = max(measured, key=lambda row: row[figure.field])
    value = worst[figure.field]
    return {**head, "value": value, "at": place(worst), "met": value <= figure.most}


def why(row: Row, short: str) -> Any:
    return row["reason"] if not row["ok"] else row["problems"][short]


def at_least(name: str, compared: Sequence[Row]) -> Row:
    """Whether BertViz takes twenty times as much wherever both were measured, from 64 tokens on."""
    head: Row = {"what": "reach", "figure": f"{name} from T{RATIO_FROM} on", "least": RATIO}
    measured = [row for row in compared if name in row and row["tokens"] >= RATIO_FROM]
    if not measured:
        return {**head, "met": None}
    # What is only a lower bound, and below the figure, says nothing.
    unknown = [row for row in measured if bounded(row, name) and row[name] < RATIO]
    known = [row for row in measured if row not in unknown]
    worst = min(known or unknown, key=lambda row: row[name])
    met = worst[name] >= RATIO if known else None
    if met and unknown:
        worst, met = unknown[0], None
    return {**head, "value": worst[name], "at": place(worst), "met": met}


def bounded(row: Row, name: str) -> bool:
    return name == "painted_ratio" and bool(row.get("at_least"))


def place(row: Row) -> str:
    return f"{row['view']} {row['layers']}x{row['heads']} T{row['tokens']}"
