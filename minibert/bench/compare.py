"""Two files of `minibert bench`: what became faster, what slower, and what is noise."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibert.bench.result_rows import Row, read_rows
from minibert.errors import MinibertError
from minibert.terminal import Terminal

_PLACE = ("tokens", "batch", "heads", "d_head", "dtype", "causal", "lengths", "about", "cache")
#: Less than this is noise, however quiet both machines say they were.
_LEAST_NOISE = 0.02
_TIMES = ("median_ms", "p20_ms", "p80_ms")


def kernel_rows(path: Path) -> list[Row]:
    """The rows of a file that `minibert bench --output` wrote.

    Raises MinibertError, with the number of the line, when it is no such file.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, 1):
        if not {"role", "implementation", "tokens", "ok"} <= set(row):
            raise MinibertError(
                f"{path}, line {number} is no row of minibert bench; expected what --output wrote."
            )
        if row["ok"] and not all(_is_time(row.get(name)) for name in _TIMES):
            raise MinibertError(
                f"{path}, line {number}: expected {', '.join(_TIMES)} in milliseconds above 0."
            )
    if not rows:
        raise MinibertError(f"{path} has no rows; expected what minibert bench --output wrote.")
    return rows


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


@dataclass(frozen=True)
class Change:
    """One implementation at one place in both files; ratio below 1 is faster in the second."""

    name: str
    place: str
    before: float
    after: float
    noise: float

    @property
    def ratio(self) -> float:
        """Time after, in times before."""
        return self.after / self.before

    @property
    def verdict(self) -> str:
        """faster, slower, or same: within the noise of both timings."""
        if max(self.ratio, 1 / self.ratio) <= 1 + self.noise:
            return "same"
        return "faster" if self.ratio < 1 else "slower"


def changes(before: list[Row], after: list[Row]) -> list[Change]:
    """What stands in both; the kernels are matched with each other whatever they are called.

    The noise is the largest of: how far two timings of the same kernel were apart, half of the
    spread from p20 to p80, and 2 %.
    """
    earlier = {_key(row): row for row in before if row["ok"]}
    found = []
    for row in after:
        other = earlier.get(_key(row))
        if not row["ok"] or other is None:
            continue
        noise = max(_LEAST_NOISE, _noise(row), _noise(other))
        name = "yours" if row["role"] == "kernel" else row["implementation"]
        place = ", ".join(said for one in _PLACE if (said := _said(row, one)))
        found.append(Change(name, place, other["median_ms"], row["median_ms"], noise))
    return found


def comparison_lines(paths: tuple[Path, Path], terminal: Terminal) -> tuple[list[str], bool]:
    """The table, and whether the kernel became slower somewhere.

    Raises MinibertError for files that `minibert bench` did not write or that share no shape.
    """
    before, after = (kernel_rows(path) for path in paths)
    found = changes(before, after)
    lines = [f"{paths[0].name} -> {paths[1].name}"]
    machines = [rows[0].get("device") for rows in (before, after)]
    if machines[0] != machines[1]:
        lines.append(f"other machines: {machines[0]} and {machines[1]}; their times say little.")
    if not found:
        raise MinibertError(
            f"{paths[0].name} and {paths[1].name}: nothing was timed in both, no shape is the same."
        )
    header = ("", "where", "before ms", "after ms", "after/before", "noise", "")
    rows = [
        (
            one.name,
            one.place,
            f"{one.before:.4g}",
            f"{one.after:.4g}",
            f"{one.ratio:.3f}",
            f"{100 * one.noise:.0f} %",
            one.verdict,
        )
        for one in found
    ]
    slower = any(one.verdict == "slower" and one.name == "yours" for one in found)
    return [*lines, *terminal.table(header, rows, "<<>>>><")], slower


def _key(row: Row) -> tuple[object, ...]:
    name = "yours" if row["role"] == "kernel" else row["implementation"]
    # Rows of before there was "about" said nothing by it.
    return (name, *(row.get(one, "") for one in _PLACE))


def _noise(row: Row) -> float:
    spread = (row["p80_ms"] - row["p20_ms"]) / 2 / row["median_ms"]
    return max(float(row.get("noise") or 0.0), float(spread))


def _said(row: Row, name: str) -> str:
    value = row.get(name, "")
    if name == "causal":
        return "causal" if value else "full"
    return f"{name} {value}" if name in ("tokens", "batch", "heads", "d_head") else str(value)
