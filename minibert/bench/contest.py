"""Contenders that do the same work: each passes the gate, all are warmed, then they take turns.

A row per contender comes of it. What fails, at the gate or on the clock, is a row with the reason
and no time.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from minibert.bench.clock import Clock, peak_bytes
from minibert.bench.gate import Outputs, failure
from minibert.bench.result_rows import Row, Timing, interleaved

Check = Callable[[Outputs], Row]


@dataclass(frozen=True)
class Contender:
    """`run` is all the clock sees; `outputs` names what it gave, which is all the gate sees."""

    run: Callable[[], object]
    outputs: Callable[[Any], Outputs]
    # Settings its calls need, entered before the clock starts and left after it stops.
    around: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class Timed:
    """The times of the contenders that came through, and why the others did not."""

    timings: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, Row] = field(default_factory=dict)


def gated(contender: Contender, check: Check) -> Row:
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


def time_in_turns(
    contenders: Mapping[str, Contender],
    clock: Clock,
    *,
    rounds: int,
    calls: int | None = None,
    fewest: int = 1,
    cold: bool = False,
) -> Timed:
    """The times of all: everyone is warmed, then everyone has a turn a round, in a new order.

    `calls` is how many make a turn; without it as many as fit, after two to warm up, and at least
    `fewest`.
    """

    def warm(name: str) -> int:
        with contenders[name].around():
            return clock.calls(contenders[name].run, fewest) if calls is None else calls

    def turn(name: str, count: int) -> list[float]:
        with contenders[name].around():
            return clock.turn(contenders[name].run, calls=count, cold=cold)[0]

    return take_turns(contenders, warm, turn, rounds=rounds)


def take_turns(
    names: Iterable[str],
    warm: Callable[[str], int],
    turn: Callable[[str, int], list[float]],
    *,
    rounds: int,
) -> Timed:
    """The times of all, by functions: `warm` gives the calls of a turn, `turn` their times.

    What either raises ends the contest for that name.
    """
    timed, counts = Timed(), dict[str, int]()
    turns: dict[str, list[list[float]]] = {name: [] for name in names}

    def step(name: str, work: Callable[[str], None]) -> None:
        if name in timed.failures:
            return
        try:
            work(name)
        # What fails under the clock is a row that says so.
        except Exception as error:
            said = failure(error)
            reason = f"right when checked, but while it was timed: {said['reason']}"
            timed.failures[name] = said | {"reason": reason}

    def warmed(name: str) -> None:
        counts[name] = warm(name)

    def turned(name: str) -> None:
        turns[name].append(turn(name, counts[name]))

    for name in turns:
        step(name, warmed)
    for name in interleaved(turns, rounds):
        step(name, turned)
    timed.timings.update(
        {name: Timing(taken) for name, taken in turns.items() if name not in timed.failures}
    )
    return timed
