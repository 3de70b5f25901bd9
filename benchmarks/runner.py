"""The one runner: a benchmark is a list of workloads, a workload a set of contenders.

Everyone passes the gate, then all take turns on the clock of `minibert.bench`; a row for each
contender is printed and kept as it comes. What is wrong, missing or broken is a row with the reason
and no speed. A run that was stopped goes on behind the workloads that it had finished.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from benchmarks.session import Kept, kept_before, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, gated, timed_rows
from minibert.bench.gate import Outputs, Truth, failure
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

T = TypeVar("T")
Rows = dict[str, Row]
#: What the gate says of the outputs of a contender; `found` are the verdicts of those before it.
Check = Callable[[str, Outputs, Rows], Row]


@dataclass(frozen=True)
class Workload:
    """One piece of work: everyone who does it, what is right, and what its rows say.

    `contenders` are built already; one that cannot be is the row of its failure. `baseline` is who
    all are divided by, nobody when None. `about` are fields of every row, `finish` adds what
    follows from all rows together, targets above all. `measure` takes the place of the clock.
    """

    name: str
    contenders: Mapping[str, Contender | Row]
    check: Check
    baseline: str | None = None
    about: Callable[[str], Row] = lambda name: {}
    finish: Callable[[Rows], None] = lambda rows: None
    rounds: int | None = None
    calls: int | None = None
    memory: bool = True
    measure: Callable[[Mapping[str, Contender]], Rows] | None = None


#: True for the name of a row that is asked for, and of a workload that is not done yet.
Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Benchmark:
    """What `python -m benchmarks.NAME` runs.

    `workloads` builds them one by one, of the names that are wanted. `options` adds to the command
    line; `last` are rows at the end; `columns` are names of CELLS.
    """

    kind: str
    description: str
    workloads: Callable[[argparse.Namespace, Wanted], Iterable[Workload]]
    rounds: int = 9
    quick_rounds: int = 2
    columns: Sequence[str] = ("median ms", "p20 - p80", "ratio", "peak MiB", "error")
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    last: Callable[[], Iterator[Row]] = lambda: iter(())
    packages: Sequence[str] = ()
    peer: str = "transformers"

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """The exit status: 0 when all is right, minibert can do all of it and targets are met."""
        parser = argparse.ArgumentParser(description=self.description)
        self.options(parser)
        numbers = {"rounds": self.rounds, "quick_rounds": self.quick_rounds}
        chosen = parse(arguments, "", parser=parser, **numbers)
        with session(chosen.threads, self.packages, peer=self.peer) as known:
            rows = self.collect(chosen, known)
        return status(rows, targets=not chosen.quick)

    def collect(self, chosen: argparse.Namespace, known: Row) -> list[Row]:
        """All rows, shown as they come, those of a stopped run of the same commit first."""
        kept = Kept(self.kind, chosen)
        same = ("commit", "versions", "threads")
        kept.rows = [
            row
            for row in kept_before(kept.partial)
            if "workload" in row and all(row.get(name) == known[name] for name in same)
        ]
        done = {row["workload"] for row in kept.rows}

        def wanted(name: str) -> bool:
            return name not in done and (chosen.rows is None or bool(chosen.rows.search(name)))

        for workload in self.workloads(chosen, wanted):
            print(f"\n{workload.name}\n{self.heading()}")
            for row in measured(workload, chosen.rounds):
                kept.rows.append({"what": self.kind, **row, **known})
                print("\n".join(self.lines(kept.rows[-1])), flush=True)
            kept.save()
        kept.rows += [{**row, **known} for row in self.last()]
        return kept.finish()

    def heading(self) -> str:
        """The first line of a table."""
        return line(("implementation", *self.columns), self._widths)

    @property
    def _widths(self) -> list[int]:
        return [48, *(max(9, WIDTHS.get(name, 10)) for name in self.columns)]

    def lines(self, row: Row) -> Iterator[str]:
        """A row, and a line below it for each of its targets."""
        if not row["ok"]:
            yield f"{row['implementation']:<48}  {row['reason']}"
            return
        yield line(
            (row["implementation"], *(cell(row, name) for name in self.columns)), self._widths
        )
        for of, one in row.get("targets", {}).items():
            bound = f"at least {one['least']}" if "least" in one else f"at most {one['most']}"
            yield f"  {one['value']:.2f} {of}, {bound}: {'met' if one['met'] else 'NOT MET'}"


def measured(workload: Workload, rounds: int) -> list[Row]:
    """The rows of a workload: everyone is gated, then timed in turns."""
    verdicts: Rows = {}
    for name, one in workload.contenders.items():
        check = partial(_checked, workload.check, name, verdicts)
        verdicts[name] = gated(one, check) if isinstance(one, Contender) else one
    able = {n: one for n, one in workload.contenders.items() if isinstance(one, Contender)}
    if workload.measure is not None:
        right = {name: one for name, one in able.items() if verdicts[name]["ok"]}
        found = workload.measure(right)
        rows = {name: {**verdict, **found.get(name, {})} for name, verdict in verdicts.items()}
    else:
        rounds = min(rounds, workload.rounds or rounds)
        rows = timed_rows(
            able,
            verdicts,
            Clock(),
            rounds=rounds,
            baseline=workload.baseline,
            calls=workload.calls,
            memory=workload.memory,
        )
    workload.finish(rows)
    return [
        {"workload": workload.name, "implementation": name, **workload.about(name), **row}
        for name, row in rows.items()
    ]


def _checked(check: Check, name: str, verdicts: Rows, found: Outputs) -> Row:
    return check(name, found, verdicts)


def truth(right: Outputs, absolute: float) -> Check:
    """The check that compares everyone with the same numbers."""
    gate = Truth(right, absolute=absolute)
    return lambda name, found, verdicts: gate.check(found)


def attempt(build: Callable[[], T]) -> T | Row:
    """What `build` gives, or the row of its failure: the benchmark goes on."""
    try:
        return build()
    # Whatever a peer raises is a finding about it.
    except Exception as error:
        return failure(error)


def target(value: float, *, least: float | None = None, most: float | None = None) -> Row:
    """A number beside the least or most that it is to be, and whether that is met."""
    bound = {"least": least} if least is not None else {"most": most}
    met = (least is None or value >= least) and (most is None or value <= most)
    return {"value": round(value, 4), **bound, "met": met}


def times_of(rows: Rows, ours: str, least: Mapping[str, float]) -> None:
    """Add to ours how many times the speed of the others it has, each with the least."""
    for other, bound in least.items():
        if rows[ours]["ok"] and rows.get(other, {"ok": False})["ok"]:
            times = rows[other]["median_ms"] / rows[ours]["median_ms"]
            named = rows[ours].setdefault("targets", {})
            named[f"times the speed of {other}"] = target(times, least=bound)


def status(rows: Iterable[Row], *, targets: bool = True) -> int:
    """1 when a result is wrong, minibert failed, or (with `targets`) a target is missed; else 0."""
    for row in rows:
        ours = str(row.get("implementation", "minibert")).startswith("minibert")
        if row.get("wrong") or (not row["ok"] and ours):
            return 1
        if targets and not all(one["met"] for one in row.get("targets", {}).values()):
            return 1
    return 0


def at_once(
    contenders: Mapping[str, Callable[[], T]],
    outputs: Callable[[T], Outputs],
    around: Callable[[], AbstractContextManager[object]] | None = None,
) -> dict[str, Contender | Row]:
    """Contenders by functions without arguments whose results are read alike."""
    more = {} if around is None else {"around": around}
    return {name: Contender(run, outputs, **more) for name, run in contenders.items()}


def cell(row: Row, name: str) -> str:
    """A cell of the table; empty where the row does not have its fields."""
    try:
        return CELLS[name](row)
    except KeyError:
        return ""


CELLS: dict[str, Callable[[Row], str]] = {
    "median ms": lambda row: f"{row['median_ms']:.2f}",
    "p20 - p80": lambda row: f"{row['p20_ms']:.2f} - {row['p80_ms']:.2f}",
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "its p20 - p80": lambda row: f"{row['ratio_p20']:.2f} - {row['ratio_p80']:.2f}",
    "documented": lambda row: f"{row['ratio_documented']:.2f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:.1f}",
    "held MiB": lambda row: f"{row['held_bytes'] / 2**20:.1f}",
    "peak MiB": lambda row: f"{row['peak_bytes'] / 2**20:.1f}",
    "error": lambda row: f"{row['errors'].get('logits', row['max_error']):.0e}",
}
WIDTHS = {"p20 - p80": 19, "its p20 - p80": 15}
