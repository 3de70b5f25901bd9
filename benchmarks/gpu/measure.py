"""A group of contenders on one shape: built, gated, then timed in turns; a row each."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import gate
from benchmarks.gpu.clock import recorded, times
from benchmarks.gpu.contenders import Built, Inputs, build, inputs
from benchmarks.gpu.plan import Task
from benchmarks.gpu.resources import watched
from minibert.bench.clock import Clock
from minibert.bench.gate import failure, reason
from minibert.bench.memory import peak_bytes
from minibert.bench.result_rows import Row

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


def prepared(built: Built, given: Inputs, clock: Clock) -> Ready:
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


def memory(run: Callable[[], dict[str, Tensor]], given: Inputs, z_bytes: int) -> Row:
    """The most bytes a call holds, and those beside z for each row and head; nothing off CUDA."""
    device = given.query.device
    if device.type != "cuda":
        return {}
    peak = peak_bytes(run, device)
    rows = given.shape.batch * given.shape.heads * given.shape.positions
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
