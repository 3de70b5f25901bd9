"""Gate, then clock, for the entries of a task at one shape: rows with what was found.

minibert's ratio is to the fastest peer whose result is right, and so is that of everyone else.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.cases import TOLERANCE, Case, Prepared, Shape, attempt
from benchmarks.instruments import reference, tasks
from benchmarks.instruments.entry import BY_HAND, MINIBERT, PEER, Entry
from benchmarks.instruments.memory import held_bytes
from benchmarks.instruments.tasks import Given, Task
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, gated, time_in_turns
from minibert.bench.gate import Outputs, Truth
from minibert.bench.memory import peak_bytes
from minibert.bench.result_rows import Row
from minibert.bench.timing import Timing

LONG_ROUNDS = 2
# What was measured of a contender: its times, or the bytes of its result.
Measured = Timing | Row


def measure(
    case: Case, task: Task, shape: Shape, entries: Sequence[Entry], rounds: int
) -> Iterator[Row]:
    """The rows of one task at one shape."""
    given = tasks.given(case, task, shape)
    right = attempt(reference.answer, case, task.name, given)
    built = {one.contender.name: attempt(one.contender.prepare, case) for one in entries}
    verdicts = {name: verdict(prepared, given, right) for name, prepared in built.items()}
    runs = {name: built[name].on(given) for name, found in verdicts.items() if found["ok"]}
    measured, failures = compete(task, runs, rounds)
    for one in entries:
        name = one.contender.name
        row = {**head_of(task, shape, one), **verdicts[name], **failures.get(name, {})}
        yield {**row, **compared(one, task, entries, measured)} if row["ok"] else row


def compete(
    task: Task, runs: Mapping[str, Contender], rounds: int
) -> tuple[dict[str, Measured], dict[str, Row]]:
    """Bytes or times of everyone, and why some have none."""
    if task.name == tasks.MEMORY:
        return {name: memory_of(one) for name, one in runs.items()}, {}
    # Of a long task one call is a turn, and the call for the gate was the warm one.
    options = {"rounds": min(rounds, LONG_ROUNDS), "calls": 1} if task.long else {"rounds": rounds}
    timed = time_in_turns(runs, Clock(), **options)
    return dict(timed.timings), timed.failures


def head_of(task: Task, shape: Shape, one: Entry) -> Row:
    return {
        "what": "instrument",
        "task": task.name,
        "model": shape.model,
        "batch": shape.batch,
        "position": shape.position,
        "implementation": one.contender.name,
        "package": one.contender.package,
        "kind": one.kind,
        "captures": one.contender.captures,
        "target": task.target,
    }


def verdict(prepared: Prepared | Row, given: Given, right: Any) -> Row:
    """What the gate says."""
    if not isinstance(right, reference.Answer):
        return {"ok": False, "reason": f"the reference failed: {right['reason']}"}
    if not isinstance(prepared, Prepared):
        return prepared
    truth = Truth(right.found, absolute=TOLERANCE, limits=right.limits)

    def check(found: Outputs) -> Row:
        return truth.check({name: value.detach() for name, value in found.items()})

    verdict = gated(prepared.on(given), check)
    # What failed may hold much, in a traceback that refers to itself.
    gc.collect()
    return verdict


def memory_of(one: Contender) -> Row:
    with one.around():
        held = held_bytes(one.run())
    return {"held_bytes": held, "peak_bytes": peak_bytes(one.run, Clock().device, one.around)}


def amount(found: Measured) -> float:
    """What is compared: the median of the calls, or the bytes."""
    return found.median if isinstance(found, Timing) else float(found["held_bytes"])


def fastest(
    entries: Sequence[Entry], measured: Mapping[str, Measured], kinds: Sequence[str]
) -> str | None:
    """The name of the best of these kinds whose result is right; None where there is none."""
    names = [one.contender.name for one in entries if one.kind in kinds]
    return min(
        (name for name in names if name in measured),
        key=lambda name: amount(measured[name]),
        default=None,
    )


def compared(
    one: Entry, task: Task, entries: Sequence[Entry], measured: Mapping[str, Measured]
) -> Row:
    """What was measured, beside the best peer; for minibert also whether the target is met.

    `ratio` is to the best of all, what people write by hand included; `ratio_documented` to the
    best as documented.
    """
    mine = measured[one.contender.name]
    best = fastest(entries, measured, (PEER, BY_HAND))
    opponent = mine if best is None else measured[best]
    if isinstance(mine, Timing) and isinstance(opponent, Timing):
        row: Row = mine.fields() | mine.ratios(opponent)
    else:
        row = {**mine, "ratio": round(amount(mine) / amount(opponent), 4)}
    if best is None:
        return {name: value for name, value in row.items() if not name.startswith("ratio")}
    row["fastest_peer"] = best
    if documented := fastest(entries, measured, (PEER,)):
        row["fastest_documented"] = documented
        row["ratio_documented"] = round(amount(mine) / amount(measured[documented]), 4)
    if one.kind == MINIBERT:
        row["met"] = row["ratio"] <= task.target
        if documented:
            row["met_documented"] = row["ratio_documented"] <= task.target
    return row
