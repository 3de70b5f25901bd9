"""What the rows come to: the ratios that were asked for, each beside its target.

A ratio divides medians of one run and task, which were measured in turns. FlexAttention, which
takes long to compile, has tasks of its own, each with our plain forward in it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from minibert.bench.result_rows import Row

Group = dict[str, Row]

OTHERS = ("cudnn", "flash")
SPEED, SPEED_OFTEN, OFTEN = 0.97, 1.0, 8
LONG = 2048
BYTES = 40.0


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
    return {task: _last_with_result(runs) for task, runs in found.items()}


def _last_with_result(runs: dict[Any, Group]) -> Group:
    timed = [group for group in runs.values() if any(row["ok"] for row in group.values())]
    return (timed or list(runs.values()))[-1]


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Every number the issue asks for, in its order."""
    tasks = groups(rows)
    found = [*_forward(tasks), *_statistics(tasks), *_short(tasks), *_backward(tasks)]
    return [*found, *_eager(tasks), *_bytes(tasks), *_million(tasks)]


def _forward(tasks: dict[str, Group]) -> Iterator[Finding]:
    speeds = []
    for task, group in _of("forward", tasks):
        ratios = {name: _ratio(group, name, "plain") for name in OTHERS}
        ratios["flex"] = _ratio(tasks.get(task.replace("forward", "flex"), {}), "flex", "plain")
        known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if not known:
            continue
        best = min(known, key=lambda name: known[name])
        speeds.append(known[best])
        detail = "  ".join(f"{name} {ratio:.3f}" for name, ratio in known.items())
        yield _at_least(
            f"{task}: speed, best other {best}", known[best], SPEED, detail + _rate(group)
        )
    if speeds:
        often = sum(speed >= SPEED_OFTEN for speed in speeds)
        met = often >= OFTEN if len(speeds) == 12 else None
        yield Finding(
            "forward: shapes as fast as the best or faster",
            often,
            f">= {OFTEN}",
            met,
            f"of {len(speeds)}",
        )


def _statistics(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("statistics", tasks):
        first = 1.10 if _positions(group) >= LONG else 1.15
        for tier, target in (("T1", first), ("T2", 1.35), ("T3", 2.0)):
            ratio = _ratio(group, tier, "plain")
            if ratio is not None:
                yield _at_most(f"{task}: {tier} / plain", ratio, target, _noise(group, tier))


def _short(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("short", tasks):
        ratio = _ratio(group, "all", "plain")
        if ratio is not None:
            warm = _ratio(group, "all", "plain", field="warm_ms")
            detail = f"warm {warm:.3f}{_noise(group, 'all')}"
            yield _at_most(f"{task}: all / plain", ratio, 1.35, detail)


def _backward(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("backward", tasks):
        ratio = _ratio(group, "backward relevance", "backward")
        if ratio is not None:
            noise = _noise(group, "backward relevance")
            yield _at_most(f"{task}: with relevance / without", ratio, 1.30, noise)
        for other in OTHERS:
            ratio = _ratio(group, f"{other} backward", "backward")
            if ratio is not None:
                yield Finding(f"{task}: {other} / ours", ratio)


def _eager(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("eager", tasks):
        known = {
            name: ratio
            for name in ("by hand", "eager")
            if (ratio := _ratio(group, name, "T1")) is not None
        }
        if known:
            best = min(known, key=lambda name: known[name])
            target = 35.0 if group["T1"].get("causal") else 20.0
            detail = "  ".join(f"{name} {ratio:.1f}" for name, ratio in known.items())
            yield _at_least(f"{task}: {best} / T1", known[best], target, detail)


def _bytes(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("statistics", tasks):
        for tier in ("T1", "T2", "T3"):
            number = group.get(tier, {}).get("extra_bytes_per_row")
            if number is not None and tier == "T1":
                yield _at_most(f"{task}: T1, bytes a row and head", number, BYTES, "")
            elif number is not None:
                yield Finding(f"{task}: {tier}, bytes a row and head", number)


def _million(tasks: dict[str, Group]) -> Iterator[Finding]:
    for task, group in _of("million", tasks):
        for name, row in group.items():
            if row["ok"]:
                held = row.get("peak_bytes")
                detail = "" if held is None else f"{held / 2**20:.0f} MiB at most"
                yield Finding(f"{task}: {name}, ms", row["median_ms"], detail=detail)


def _of(part: str, tasks: dict[str, Group]) -> Iterator[tuple[str, Group]]:
    chosen = [
        (task, group)
        for task, group in tasks.items()
        if any(row["part"] == part for row in group.values())
    ]
    yield from sorted(chosen, key=lambda one: (_causal(one[1]), _positions(one[1])))


def _ratio(group: Group, name: str, base: str, *, field: str = "median_ms") -> float | None:
    above, below = (group.get(one, {}) for one in (name, base))
    if not (above.get("ok") and below.get("ok") and below.get(field)):
        return None
    return float(above[field] / below[field])


def _positions(group: Group) -> int:
    return int(next(iter(group.values())).get("positions") or 0)


def _causal(group: Group) -> bool:
    return bool(next(iter(group.values())).get("causal"))


def _noise(group: Group, name: str) -> str:
    largest = max(group[one].get("noise", 0.0) for one in (name, *group) if group[one]["ok"])
    return f"  noise {largest:.3f}"


def _rate(group: Group) -> str:
    rate = group["plain"].get("tflops")
    return f"  {rate:.0f} TFLOP/s" if rate else ""


def _at_least(about: str, value: float, target: float, detail: str) -> Finding:
    return Finding(about, value, f">= {target:g}", value >= target, detail.strip())


def _at_most(about: str, value: float, target: float, detail: str) -> Finding:
    return Finding(about, value, f"<= {target:g}", value <= target, detail.strip())


def shown(rows: list[Row]) -> str:
    """The table as text: ratios, then the ceilings, the matrix, and every row that failed."""
    tasks = groups(rows)
    last = [row for group in tasks.values() for row in group.values()]
    wrong = [row["key"] for row in last if row.get("wrong")]
    lines = [f"WRONG, so trust no number below: {'; '.join(wrong[:6])}"] if wrong else []
    lines += [f"{'':52} {'value':>9}  {'target':>8}", *map(str, findings(rows))]
    for row in last:
        if row["part"] == "ceilings" and row["ok"]:
            rate = (
                f"{row['tflops']} TFLOP/s" if "tflops" in row else f"{row['bytes_per_s']:.3g} B/s"
            )
            lines.append(f"measured ceiling, {row['implementation']}: {rate}")
        elif row["part"].startswith("matrix") and "checks" in row:
            right = row["checks"] - row["failures"]
            lines.append(
                f"{row['task']}, {row['implementation']}: {right} of {row['checks']} right"
            )
    calls = [row["key"] for row in last if "not_recorded" in row]
    if calls:
        lines.append(f"not recorded as a graph, so with Python's time: {'; '.join(calls[:6])}")
    failed = [row for row in last if not row["ok"]]
    lines += [f"{len(failed)} rows failed" if failed else "no row failed"]
    lines += [f"  {row['key']}: {row.get('reason') or row.get('worst')}"[:240] for row in failed]
    return "\n".join(lines)
