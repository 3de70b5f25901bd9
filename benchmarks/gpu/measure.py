"""How tasks are done: each contender built, gated, then timed in turns; a row each.

On CUDA a call is recorded as a graph and replayed, so that the time is the kernels' and not
Python's. Cold: the cache is filled with other data before each call. Warm: it is not, and calls
that are short are timed several at a time. Beside the groups: ceilings and a million keys.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import gate
from benchmarks.gpu.contenders import Built, build, inputs
from benchmarks.gpu.matrix import row
from benchmarks.gpu.plan import Task
from benchmarks.gpu.resources import watched
from minibert.bench.contest import MOST_CALLS, Clock, Contender, peak_bytes, time_in_turns
from minibert.bench.result_rows import Outputs, Row, Timing, WrongError, failure, reason
from minibert.kernels.check.problem import Problem

Run = Callable[[], Any]

# Rounds, and the calls of a turn at least; the processor's are for the dry run.
ROUNDS, FEWEST = {"cuda": 8, "cpu": 2}, {"cuda": 3, "cpu": 1}
WARM_MS = 0.3


def recorded(run: Run, clock: Clock) -> Run:
    """The call as a CUDA graph, or as it is elsewhere. Raises RuntimeError when it cannot be."""
    if clock.device.type != "cuda":
        return run
    import torch

    side = torch.cuda.Stream(clock.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    replay()
    torch.cuda.synchronize()
    return replay


def times(runs: Mapping[str, Run], clock: Clock) -> dict[str, Row]:
    """The fields of each contender's row, measured in turns; what fails is a row with the reason.

    `noise` compares two timings of the same kernel, the even rounds with the odd ones: a
    difference between contenders that is smaller means nothing.
    """
    kind = clock.device.type
    options: Any = {"rounds": ROUNDS[kind], "fewest": FEWEST[kind]}
    cold = time_in_turns(_contenders(runs), clock, cold=True, **options)
    together = {name: _together(timing) for name, timing in cold.timings.items()}
    several = {name: _repeated(runs[name], together[name]) for name in together}
    warm = time_in_turns(_contenders(several), clock, **options)
    rows: dict[str, Row] = {**cold.failures, **warm.failures}
    for name, timing in warm.timings.items():
        # The first warm call of a turn finds what the one before left in the cache.
        later = Timing([turn[1:] or turn for turn in timing.turns]).divided(together[name])
        rows[name] = summary(cold.timings[name], later)
    return rows


def _contenders(runs: Mapping[str, Run]) -> dict[str, Contender]:
    return {name: Contender(run, _none) for name, run in runs.items()}


def _none(result: Any) -> Outputs:
    """Nothing: they passed the gate before."""
    return {}


def _together(timing: Timing) -> int:
    return max(1, min(MOST_CALLS, int(WARM_MS / max(timing.median, 1e-6))))


def _repeated(run: Run, times: int) -> Run:
    def several() -> Any:
        for _ in range(times - 1):
            run()
        return run()

    return several


def sampled(run: Run, clock: Clock, calls: int, *, cold: bool = False) -> Timing:
    """Some calls of a run that is measured alone."""
    return Timing([clock.turn(run, calls=calls, cold=cold)[0]])


def summary(cold: Timing, warm: Timing) -> Row:
    """Medians, spread and noise, in milliseconds."""
    return {
        **cold.fields(),
        "warm_ms": warm.fields()["median_ms"],
        "noise": round(cold.noise, 4),
    }


Begin = Callable[[str], None]


@dataclass(frozen=True)
class Ready:
    """A contender that is built and right, and what its row says so far."""

    run: Callable[[], Any]
    row: Row


def group(task: Task, device: torch.device, begin: Begin) -> Iterator[Row]:
    """The rows of a task's contenders. What fails is a row with the reason and no speed.

    `begin` is told the contender's name before anything of it runs, so that one that ends the
    process can be left out the next time.
    """
    if task.shape is None:
        raise ValueError(f"{task.part} has no shape")
    given, clock, ready = inputs(task.shape, device), Clock(device), {}
    for name in task.contenders:
        if name in task.skip:
            continue
        begin(name)
        try:
            ready[name] = prepared(build(name, given), given, clock)
        # Whatever a contender raises is a finding about it.
        except Exception as error:
            yield {**failure(error), "implementation": name}
            survive(device)
    begin("the clock")
    found = times({name: one.run for name, one in ready.items()}, clock) if ready else {}
    for name, one in ready.items():
        row = {"implementation": name, "ok": True, **one.row, **found[name]}
        yield row | (rate(task, name, row) if row["ok"] else {})


def prepared(built: Built, given: Problem, clock: Clock) -> Ready:
    """Run once, gated, its memory counted, recorded as a graph where that can be done."""
    start = time.perf_counter()
    built.run()
    clock.settle()
    row: Row = {"first_call_s": round(time.perf_counter() - start, 3)}
    # The first call tunes, so that it starts kernels that the others do not.
    with watched() as kernels:
        found = built.run()
    clock.settle()
    row["kernels"] = kernels()
    row |= gate.check(built, found, given)
    z_bytes = size_of_z(found)
    del found
    row |= memory(built.run, given, z_bytes)
    run, row["timed"] = built.run, "calls"
    if built.recordable:
        try:
            run, row["timed"] = recorded(built.run, clock), "graph"
        except Exception as error:
            row["not_recorded"] = reason(error)
            survive(given.query.device)
    return Ready(run, {**row, "clock": clock.name})


def size_of_z(found: dict[str, Tensor]) -> int:
    """The bytes of z; 0 of a backward, which gives none."""
    return found["z"].nbytes if "z" in found else 0


def memory(run: Callable[[], dict[str, Tensor]], given: Problem, z_bytes: int) -> Row:
    """The most bytes a call holds, and those beside z for each row and head; nothing off CUDA."""
    device = given.query.device
    if device.type != "cuda":
        return {}
    peak = peak_bytes(run, device)
    rows = given.query[..., 0].numel()
    return {"peak_bytes": peak, "extra_bytes_per_row": round((peak - z_bytes) / rows, 2)}


def rate(task: Task, name: str, row: Row) -> Row:
    """TFLOP/s of the matrix products; of a backward five where a forward has two."""
    if task.shape is None:
        return {}
    flop = task.shape.flop * (2.5 if "backward" in name else 1)
    return {"tflops": round(flop / row["median_ms"] / 1e9, 3)}


def survive(device: torch.device) -> None:
    """Give memory back after a failure; raises when the device can no longer be used."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()


GROUPS = ("forward", "statistics", "short", "backward", "eager", "flex")


def rows(task: Task, device: torch.device, begin: Begin) -> Iterator[Row]:
    """The rows of a task, each with its contender."""
    if task.part.split()[0] in GROUPS:
        yield from group(task, device, begin)
    elif task.cell is not None:
        cell = task.cell
        yield from _each(task, device, begin, lambda _, name, place: row(name, *cell, place))
    else:
        parts = {"ceilings": ceiling, "million": million}
        yield from _each(task, device, begin, parts[task.part])


def _each(
    task: Task,
    device: torch.device,
    begin: Begin,
    one_row: Callable[[Task, str, torch.device], Row],
) -> Iterator[Row]:
    for name in task.contenders:
        if name in task.skip:
            continue
        begin(name)
        try:
            yield {"implementation": name, "ok": True, **one_row(task, name, device)}
        # A failure is a row, and the next contender is still of interest.
        except Exception as error:
            yield {"implementation": name, **failure(error)}
            survive(device)


def ceiling(task: Task, name: str, device: torch.device) -> Row:
    """What the device can do at most, measured: a bfloat16 matrix product, a copy."""
    clock, on_gpu = Clock(device), device.type == "cuda"
    if name == "matrix product":
        n = 8192 if on_gpu else 64
        left, right = (torch.randn(n, n, device=device).bfloat16() for _ in range(2))
        found = warmed(lambda: left @ right, clock)
        return {**found, "tflops": round(2 * n**3 / found["median_ms"] / 1e9, 1)}
    source = torch.randn((2**30 if on_gpu else 2**16) // 4, device=device)
    target = torch.empty_like(source)
    found = warmed(lambda: target.copy_(source), clock)
    return {**found, "bytes_per_s": round(2e3 * source.nbytes / found["median_ms"])}


def warmed(run: Callable[[], Any], clock: Clock) -> Row:
    """The times of ten calls after three."""
    sampled(run, clock, 3)
    return sampled(run, clock, 10).fields()


def million(task: Task, name: str, device: torch.device) -> Row:
    """One head of a million keys, timed a few times; no N x N fits anywhere."""
    if task.shape is None:
        raise ValueError("a million keys of what shape?")
    given, clock = inputs(task.shape, device), Clock(device)
    built = build(name, given)
    start = time.perf_counter()
    with watched() as kernels:
        found = built.run()
    clock.settle()
    row: Row = {"first_call_s": round(time.perf_counter() - start, 3), "kernels": kernels()}
    # Sums over a million rows, again in float64, would take longer than all the rest.
    kept = {key: one for key, one in found.items() if key not in gate.SUMMED}
    row |= gate.check(built, kept, given, left_out=gate.SUMMED)
    if "received" in built.want:
        row["received_sum"] = float(found["received"].double().sum() / task.shape.positions)
        if not abs(row["received_sum"] - 1) < gate.SUMS:
            raise WrongError(f"the keys receive {row['received_sum']} a row, expected 1")
    z_bytes = size_of_z(found)
    del found, kept
    row |= memory(built.run, given, z_bytes)
    found_times = sampled(built.run, clock, 3, cold=True).fields()
    rate = task.shape.flop / found_times["median_ms"] / 1e9
    return {**row, **found_times, "tflops": round(rate, 3), "timed": "calls"}
