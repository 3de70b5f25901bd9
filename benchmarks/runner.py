"""The one runner: a benchmark is a list of workloads, a workload a set of contenders.

Everyone passes the gate, then all take turns on the clock of `minibert.bench`; a row for each
contender is printed and kept as it comes. What is wrong, missing or broken is a row with the reason
and no speed.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from benchmarks.session import Kept, options, session
from minibert.bench.contest import Clock, Contender, Timed, peak_bytes, time_in_turns
from minibert.bench.result_rows import Outputs, Row, WrongError, failure, within

T = TypeVar("T")
Rows = dict[str, Row]


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells of a table that is printed row by row: the first to the left, the rest to the right."""
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


class Check(Protocol):
    """What the gate says of the outputs of a contender; `verdicts` are of those before it."""

    def __call__(self, name: str, found: Outputs, verdicts: Rows) -> Row: ...


@dataclass(frozen=True)
class Truth:
    """What is right, by name, and how far a value may be off.

    A difference may be at most `absolute`, at most `relative` of the largest true value, and at
    most what `limits` says of its kind; what is None does not limit. With `complete` every name
    of the truth must be given; otherwise at least one.
    """

    values: Outputs
    absolute: float | None = None
    relative: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    complete: bool = False

    def check(self, found: Outputs) -> Row:
        """Fields of a row: the largest difference, and that of each kind.

        Raises WrongError for a difference above what is allowed, for NaN, and for missing,
        unknown or differently shaped results.
        """
        if not found:
            raise WrongError("nothing was captured")
        if self.complete and (missing := self.values.keys() - found.keys()):
            raise WrongError(f"gave no {', '.join(sorted(missing))}")
        errors: dict[str, float] = {}
        for name, value in found.items():
            expected = self.values.get(name)
            if expected is None or tuple(value.shape) != tuple(expected.shape):
                shape = "nothing" if expected is None else tuple(expected.shape)
                raise WrongError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
            expected, kind = expected.double(), name.split()[0]
            error = float((value.double() - expected).abs().max())
            within(name, error, self._allowed(kind, expected))
            errors[kind] = max(errors.get(kind, 0.0), error)
        return {"max_error": max(errors.values()), "errors": errors, "compared": len(found)}

    def _allowed(self, kind: str, expected: Any) -> float:
        largest = float(expected.abs().max())
        known = (
            self.absolute,
            None if self.relative is None else self.relative * largest,
            self.limits.get(kind),
        )
        limits = [one for one in known if one is not None]
        if not limits:
            raise ValueError(f"no tolerance was declared for {kind}")
        return min(limits)


def gated(contender: Contender, check: Callable[[Outputs], Row]) -> Row:
    """What the gate says of one: fields of a row with ok, or with the reason."""
    try:
        with contender.around():
            return {"ok": True, **check(contender.outputs(contender.run()))}
    # Whatever a contender raises is a finding about it.
    except Exception as error:
        return failure(error)


def timed_rows(
    contenders: Mapping[str, Contender],
    verdicts: Mapping[str, Row],
    clock: Clock,
    *,
    rounds: int,
    baseline: str | None = None,
    calls: int | None = None,
    memory: bool = True,
) -> dict[str, Row]:
    """Times, ratio and peak bytes beside each verdict; none for anyone where the baseline fails."""
    right = {name: one for name, one in contenders.items() if verdicts[name]["ok"]}
    timed = Timed()
    if baseline is None or baseline in right:
        timed = time_in_turns(right, clock, rounds=rounds, calls=calls)
    base, rows = timed.timings.get(baseline or ""), {}
    for name, verdict in verdicts.items():
        rows[name] = {**verdict, **timed.failures.get(name, {})}
        if baseline is not None and base is None:
            if rows[name]["ok"]:
                rows[name] |= {"ok": False, "reason": f"the baseline failed: {baseline}"}
        elif name in timed.timings:
            rows[name] |= timed.timings[name].fields()
            rows[name] |= {} if base is None else timed.timings[name].ratios(base)
            rows[name] |= _memory(right[name], clock) if memory else {}
    return rows


def _memory(contender: Contender, clock: Clock) -> Row:
    try:
        return {"peak_bytes": peak_bytes(contender.run, clock.device, contender.around)}
    # A contender that cannot be run under the profiler has its times all the same.
    except Exception as error:
        return {"peak_unknown": failure(error)["reason"]}


@dataclass(frozen=True)
class Workload:
    """One piece of work: everyone who does it, what is right, and what its rows say.

    `contenders` are built already; one that cannot be is the row of its failure. `baseline` is who
    all are divided by, nobody when None. `about` are fields of every row, `finish` adds what
    follows from all rows together. With `rounds` 0 everyone is gated and nobody timed.
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


#: True for the name of a row that is asked for.
Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Benchmark:
    """What `python -m benchmarks.NAME` runs.

    `workloads` builds them one by one, of the names that are wanted. `columns` are names of CELLS.
    """

    kind: str
    description: str
    workloads: Callable[[argparse.Namespace, Wanted], Iterable[Workload]]
    rounds: int = 9
    quick_rounds: int = 2
    columns: Sequence[str] = ("median ms", "p20 - p80", "ratio", "peak MiB", "error")
    peer: str = "transformers"

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """The exit status: 0 when all is right and minibert can do all of it."""
        parser = options(self.description, rounds=self.rounds, quick_rounds=self.quick_rounds)
        chosen = parser.parse_args(arguments)
        with session(chosen.threads, peer=self.peer) as known:
            return status(self.collect(chosen, known))

    def collect(self, chosen: argparse.Namespace, known: Row) -> list[Row]:
        """All rows, shown and kept as they come."""
        kept = Kept(self.kind, chosen)
        wanted = chosen.rows.search if chosen.rows else bool
        for workload in self.workloads(chosen, wanted):
            print(f"\n{workload.name}\n{self.heading()}")
            for row in measured(workload, kept.rounds):
                kept.add({"what": self.kind, **row, **known}, self.line(row))
        return kept.finish()

    def heading(self) -> str:
        """The first line of a table."""
        return line(("implementation", *self.columns), self._widths)

    @property
    def _widths(self) -> list[int]:
        return [48, *(max(9, WIDTHS.get(name, 10)) for name in self.columns)]

    def line(self, row: Row) -> str:
        """A row as a line of the table, or why it has no numbers."""
        if not row["ok"]:
            return f"{row['implementation']:<48}  {row['reason']}"
        cells = (cell(row, name) for name in self.columns)
        return line((row["implementation"], *cells), self._widths)


def measured(workload: Workload, rounds: int) -> list[Row]:
    """The rows of a workload: everyone is gated, then timed in turns."""
    verdicts: Rows = {}
    for name, one in workload.contenders.items():
        check = partial(workload.check, name, verdicts=verdicts)
        verdicts[name] = gated(one, check) if isinstance(one, Contender) else one
    able = {n: one for n, one in workload.contenders.items() if isinstance(one, Contender)}
    rounds = rounds if workload.rounds is None else min(rounds, workload.rounds)
    rows = verdicts
    if rounds:
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


def attempt(build: Callable[[], T]) -> T | Row:
    """What `build` gives, or the row of its failure: the benchmark goes on."""
    try:
        return build()
    # Whatever a peer raises is a finding about it.
    except Exception as error:
        return failure(error)


def status(rows: Iterable[Row]) -> int:
    """1 when a result is wrong or minibert failed, else 0."""
    return int(
        any(
            row.get("wrong") or (not row["ok"] and row["implementation"].startswith("minibert"))
            for row in rows
        )
    )


def at_once(
    contenders: Mapping[str, Callable[[], T]], outputs: Callable[[T], Outputs]
) -> dict[str, Contender | Row]:
    """Contenders by functions without arguments whose results are read alike."""
    return {name: Contender(run, outputs) for name, run in contenders.items()}


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
    "tokens/s": lambda row: f"{row['tokens_per_second']:.1f}",
    "bytes a token": lambda row: f"{row['bytes_of_memory_a_token']}",
    "peak MiB": lambda row: f"{row['peak_bytes'] / 2**20:.1f}",
    "error": lambda row: f"{row['errors'].get('logits', row['max_error']):.0e}",
}
WIDTHS = {"p20 - p80": 19, "its p20 - p80": 15}
