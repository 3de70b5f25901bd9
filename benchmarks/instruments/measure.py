"""Gate, then clock, for the entries of a task at one shape: rows with what was found.

minibert's ratio is to the fastest peer whose result is right, and so is that of everyone else.
"""

import gc
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.cases import Case, Shape
from benchmarks.harness import Prepared, Row
from benchmarks.instruments import reference, tasks
from benchmarks.instruments.entry import BY_HAND, MINIBERT, PEER, Entry
from benchmarks.instruments.memory import held_bytes
from benchmarks.instruments.tasks import Given, Task
from benchmarks.models import attempt

LONG_ROUNDS = 2
Turns = Mapping[str, list[list[float]]]


def measure(
    case: Case, task: Task, shape: Shape, entries: Sequence[Entry], rounds: int
) -> Iterator[Row]:
    """The rows of one task at one shape."""
    given = tasks.given(case, task, shape)
    right = attempt(reference.answer, case, task.name, given)
    built = {one.contender.name: attempt(one.contender.prepare, case) for one in entries}
    verdicts = {name: verdict(prepared, given, right) for name, prepared in built.items()}
    runs = {name: built[name] for name, found in verdicts.items() if "errors" in found}
    if task.name == tasks.MEMORY:
        measured = {name: memory_of(prepared, given) for name, prepared in runs.items()}
    else:
        turns = clock_long(runs, given, rounds) if task.long else harness.clock(runs, given, rounds)
        measured = {name: {"turns": turns[name]} for name in turns}
    for one in entries:
        name = one.contender.name
        row = {**head_of(task, shape, one), **verdicts[name], "ok": name in runs}
        yield {**row, **compared(one, task, entries, measured)} if row["ok"] else row


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


def verdict(prepared: Prepared | str, given: Given, right: Any) -> Row:
    """The gate's fields; without "errors" it has failed."""
    if isinstance(right, str):
        return {"reason": f"the reference failed: {right}"}
    if isinstance(prepared, str):
        return {"reason": prepared}
    found = attempt(gated, prepared, given, right)
    # What failed may hold much, in a traceback that refers to itself.
    gc.collect()
    return found if isinstance(found, dict) else {"reason": found}


def gated(prepared: Prepared, given: Given, right: reference.Answer) -> Row:
    with prepared.around():
        found = prepared.read(prepared.run(given))
        found = {name: value.detach() for name, value in found.items()}
        return harness.gate(found, right.found, limits=right.limits)


def clock_long(runs: Mapping[str, Prepared], given: Given, rounds: int) -> Turns:
    """One call a turn; the call for the gate was the warm one."""
    turns: dict[str, list[list[float]]] = {name: [] for name in runs}
    for number in range(min(rounds, LONG_ROUNDS)):
        # A new order each round, without a draw: two rounds are few.
        order = list(runs)
        order = order[number % len(order) :] + order[: number % len(order)] if order else order
        for name in order:
            turns[name].append(harness.timed(runs[name], given, 1))
    return turns


def memory_of(prepared: Prepared, given: Given) -> Row:
    with prepared.around():
        held = held_bytes(prepared.run(given))
    return {"held_bytes": held, "peak_bytes": harness.peak_bytes(prepared, given)}


def amount(found: Row) -> float:
    """What is compared: the median of the calls, or the bytes."""
    if "turns" in found:
        return statistics.median(call for turn in found["turns"] for call in turn)
    return float(found["held_bytes"])


def fastest(
    entries: Sequence[Entry], measured: Mapping[str, Row], kinds: Sequence[str]
) -> str | None:
    """The name of the best of these kinds whose result is right; None where there is none."""
    names = [one.contender.name for one in entries if one.kind in kinds]
    return min(
        (name for name in names if name in measured),
        key=lambda name: amount(measured[name]),
        default=None,
    )


def compared(one: Entry, task: Task, entries: Sequence[Entry], measured: Mapping[str, Row]) -> Row:
    """What was measured, beside the best peer; for minibert also whether the target is met.

    `ratio` is to the best of all, what people write by hand included; `ratio_documented` to the
    best as documented.
    """
    mine = measured[one.contender.name]
    best = fastest(entries, measured, (PEER, BY_HAND))
    opponent = mine if best is None else measured[best]
    if "turns" in mine:
        row = harness.speed(mine["turns"], opponent["turns"])
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
