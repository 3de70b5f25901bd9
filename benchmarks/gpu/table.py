"""What the rows come to: the ratios that were asked for, each beside its target.

A ratio divides medians of one run and task, which were measured in turns. FlexAttention, which
takes long to compile, has tasks of its own, each with our plain forward in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minibert.bench.result_rows import Row

Group = dict[str, Row]

OTHERS = ("cudnn", "flash")
SPEED, SPEED_OFTEN, OFTEN = 0.97, 1.0, 8
LONG = 2048
BYTES = 40.0
#: Part, what is divided by what, and the most that it may be; on long texts the last number.
RATIOS: tuple[tuple[str, str, str, tuple[float, float] | None], ...] = (
    ("statistics", "T1", "plain", (1.15, 1.10)),
    ("statistics", "T2", "plain", (1.35, 1.35)),
    ("statistics", "T3", "plain", (2.0, 2.0)),
    ("short", "all", "plain", (1.35, 1.35)),
    ("backward", "backward relevance", "backward", (1.30, 1.30)),
    *(("backward", f"{other} backward", "backward", None) for other in OTHERS),
)


@dataclass(frozen=True)
class Finding:
    """A number beside its target; `target` "" where it is for information."""

    about: str
    value: float
    target: str = ""
    met: bool | None = None
    detail: str = ""

    def __str__(self) -> str:
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        value = f"{self.value:.3g}" if abs(self.value) >= 100 else f"{self.value:.3f}"
        return f"{self.about:52} {value:>9}  {self.target:>8}  {verdict:6}  {self.detail}".rstrip()


def groups(rows: Iterable[Row]) -> dict[str, Group]:
    """For each task its rows by contender, all of the last run that measured them."""
    found: dict[str, dict[Any, Group]] = {}
    for row in rows:
        if "task" in row:
            runs = found.setdefault(row["task"], {})
            runs.setdefault(row.get("run"), {})[row["implementation"]] = row
    last = {}
    for task, runs in found.items():
        timed = [group for group in runs.values() if any(row["ok"] for row in group.values())]
        last[task] = (timed or list(runs.values()))[-1]
    return last


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Every number that is asked for."""
    tasks = groups(rows)
    found = [*_forward(tasks), *_ratios(tasks), *_eager(tasks)]
    for task, group in _of("statistics", tasks):
        for tier in (one for one in group if "extra_bytes_per_row" in group[one]):
            number, about = group[tier]["extra_bytes_per_row"], f"{task}: {tier}, bytes a row"
            found.append(_at_most(about, number, BYTES) if tier == "T1" else Finding(about, number))
    for task, group in _of("million", tasks):
        for name in (one for one in group if group[one]["ok"]):
            held = group[name].get("peak_bytes")
            detail = "" if held is None else f"{held / 2**20:.0f} MiB at most"
            found.append(Finding(f"{task}: {name}, ms", group[name]["median_ms"], detail=detail))
    return found


def _forward(tasks: dict[str, Group]) -> Iterator[Finding]:
    speeds = []
    for task, group in _of("forward", tasks):
        flex = tasks.get(task.replace("forward", "flex"), {})
        places = {**dict.fromkeys(OTHERS, group), "flex": flex}
        known = _known({name: _ratio(one, name, "plain") for name, one in places.items()})
        if not known:
            continue
        best = min(known, key=lambda name: known[name])
        speeds.append(known[best])
        detail = "  ".join(f"{name} {ratio:.3f}" for name, ratio in known.items())
        rate = group["plain"].get("tflops")
        detail += f"  {rate:.0f} TFLOP/s" if rate else ""
        yield _at_least(f"{task}: speed, best other {best}", known[best], SPEED, detail)
    if speeds:
        often, count = sum(speed >= SPEED_OFTEN for speed in speeds), len(speeds)
        about = "forward: shapes as fast as the best or faster"
        met = often >= OFTEN if count == 12 else None
        yield Finding(about, often, f">= {OFTEN}", met, f"of {count}")


def _ratios(tasks: dict[str, Group]) -> Iterator[Finding]:
    for part, above, below, most in RATIOS:
        for task, group in _of(part, tasks):
            ratio, warm = _ratio(group, above, below), _ratio(group, above, below, field="warm_ms")
            about = f"{task}: {above} / {below}"
            if ratio is None:
                continue
            if most is None:
                yield Finding(about, ratio)
                continue
            timed = [group[one].get("noise", 0.0) for one in group if group[one]["ok"]]
            detail = f"warm {warm:.3f}  noise {max(timed):.3f}" if warm else ""
            yield _at_most(about, ratio, most[_positions(group) >= LONG], detail)


def _eager(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("eager", tasks):
        if known := _known({name: _ratio(group, name, "T1") for name in ("by hand", "eager")}):
            best = min(known, key=lambda name: known[name])
            detail = "  ".join(f"{name} {ratio:.1f}" for name, ratio in known.items())
            target = 35.0 if group["T1"].get("causal") else 20.0
            yield _at_least(f"{task}: {best} / T1", known[best], target, detail)


def _of(part: str, tasks: dict[str, Group]) -> list[tuple[str, Group]]:
    """The tasks of a part, causal ones last, short ones first."""
    chosen = [
        (task, group)
        for task, group in tasks.items()
        if any(row["part"] == part for row in group.values())
    ]
    return sorted(chosen, key=lambda one: (_first(one[1]).get("causal", False), _positions(one[1])))


def _ratio(group: Group, name: str, base: str, *, field: str = "median_ms") -> float | None:
    above, below = (group.get(one, {}) for one in (name, base))
    if not (above.get("ok") and below.get("ok") and below.get(field)):
        return None
    return float(above[field] / below[field])


def _known(ratios: Mapping[str, float | None]) -> dict[str, float]:
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _first(group: Group) -> Row:
    return next(iter(group.values()))


def _positions(group: Group) -> int:
    return int(_first(group).get("positions") or 0)


def _at_least(about: str, value: float, target: float, detail: str = "") -> Finding:
    return Finding(about, value, f">= {target:g}", value >= target, detail)


def _at_most(about: str, value: float, target: float, detail: str = "") -> Finding:
    return Finding(about, value, f"<= {target:g}", value <= target, detail)


def shown(rows: list[Row]) -> str:
    """The table as text: ratios, then the ceilings, the matrix, and every row that failed."""
    tasks = groups(rows)
    last = [row for group in tasks.values() for row in group.values()]
    wrong = [row["key"] for row in last if row.get("wrong")]
    lines = [f"WRONG, so trust no number below: {'; '.join(wrong[:6])}"] if wrong else []
    lines += [f"{'':52} {'value':>9}  {'target':>8}", *map(str, findings(rows))]
    for row in last:
        if row["part"] == "ceilings" and row["ok"]:
            tflops = f"{row['tflops']} TFLOP/s" if "tflops" in row else ""
            rate = tflops or f"{row['bytes_per_s']:.3g} B/s"
            lines.append(f"measured ceiling, {row['implementation']}: {rate}")
        elif row["part"].startswith("matrix") and "checks" in row:
            right = f"{row['checks'] - row['failures']} of {row['checks']} right"
            lines.append(f"{row['task']}, {row['implementation']}: {right}")
    if calls := [row["key"] for row in last if "not_recorded" in row]:
        lines.append(f"not recorded as a graph, so with Python's time: {'; '.join(calls[:6])}")
    failed = [row for row in last if not row["ok"]]
    lines += [f"{len(failed)} rows failed" if failed else "no row failed"]
    lines += [f"  {row['key']}: {row.get('reason') or row.get('worst')}"[:240] for row in failed]
    return "\n".join(lines)
