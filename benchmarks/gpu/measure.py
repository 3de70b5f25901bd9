"""A group of contenders on one shape: built, gated, then timed in turns; a row each."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import gate
from benchmarks.gpu.clock import CudaClock, ProcessorClock, times
from benchmarks.gpu.contenders import Built, Inputs, build, inputs
from benchmarks.gpu.plan import Task

Row = dict[str, Any]
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
    given, clock, ready = inputs(task.shape, device), clock_of(device), {}
    for name in task.contenders:
        if name in task.skip:
            continue
        begin(name)
        try:
            ready[name] = prepared(build(name, given), given, clock)
        # Whatever a contender raises is a finding about it.
        except Exception as error:
            yield {**failure(error), "contender": name}
            survive(device)
    begin("the clock")
    found = times({name: one.run for name, one in ready.items()}, clock) if ready else {}
    for name, one in ready.items():
        yield {"contender": name, "ok": True, **one.row, **found[name], **rate(task, name, found)}


def prepared(built: Built, given: Inputs, clock: Any) -> Ready:
    """Run once, gated, its memory counted, recorded as a graph where that can be done."""
    start = time.perf_counter()
    found = built.run()
    synchronize(given.query.device)
    row: Row = {"first_call_s": round(time.perf_counter() - start, 3)}
    row |= gate.check(built, found, given)
    del found
    row |= memory(built.run, given)
    run, row["timed"] = built.run, "calls"
    if built.recordable:
        try:
            run, row["timed"] = clock.recorded(built.run), "graph"
        except Exception as error:
            row["not_recorded"] = said(error)
            survive(given.query.device)
    return Ready(run, {**row, "clock": clock.name})


def memory(run: Callable[[], dict[str, Tensor]], given: Inputs) -> Row:
    """The most bytes a call holds, and those beside z for each row and head; nothing off CUDA."""
    device = given.query.device
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    found = run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    beside = peak - (found["z"].nbytes if "z" in found else 0)
    rows = given.shape.batch * given.shape.heads * given.shape.positions
    return {"peak_bytes": peak, "extra_bytes_per_row": round(beside / rows, 2)}


def rate(task: Task, name: str, found: dict[str, Row]) -> Row:
    """TFLOP/s of the matrix products; of a backward five where a forward has two."""
    if task.shape is None:
        return {}
    flop = task.shape.flop * (2.5 if "backward" in name else 1)
    return {"tflops": round(flop / found[name]["median_ms"] / 1e9, 3)}


def clock_of(device: torch.device) -> Any:
    """The clock for a device."""
    return CudaClock(device) if device.type == "cuda" else ProcessorClock()


def synchronize(device: torch.device) -> None:
    """Wait until the device is done; raises what a kernel left behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def survive(device: torch.device) -> None:
    """Give memory back after a failure; raises when the device can no longer be used."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()


def failure(error: BaseException) -> Row:
    """The fields of a row that has no result."""
    wrong = isinstance(error, gate.WrongError)
    return {"ok": False, "wrong": wrong, "reason": said(error)}


def said(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())[:400]
    return text if isinstance(error, gate.WrongError) else f"{type(error).__name__}: {text}"
