"""What is asked beside the groups: ceilings, a million keys, a profile; and who does which task."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu import gate, parity
from benchmarks.gpu.clock import sampled
from benchmarks.gpu.contenders import build, inputs
from benchmarks.gpu.matrix import row
from benchmarks.gpu.measure import Begin, group, memory, size_of_z, survive
from benchmarks.gpu.plan import Task
from benchmarks.gpu.resources import watched
from minibert.bench.clock import Clock
from minibert.bench.gate import WrongError, failure
from minibert.bench.result_rows import Row

GROUPS = ("forward", "statistics", "short", "backward", "eager", "flex", "configs")
MOST_KERNELS = 12


def rows(task: Task, device: torch.device, begin: Begin) -> Iterator[Row]:
    """The rows of a task, each with its contender."""
    if task.part.split()[0] in GROUPS:
        yield from group(task, device, begin)
    elif task.cell is not None:
        cell = task.cell
        yield from _each(task, device, begin, lambda _, name, place: row(name, *cell, place))
    elif task.part.startswith("parity"):
        begin(task.contenders[0])
        yield from parity.rows(task, device)
    else:
        parts = {"ceilings": ceiling, "million": million, "profile": profile, "tuned": tuned}
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


def tuned(task: Task, name: str, device: torch.device) -> Row:
    """The configs that the kernels' own tuning has found best on this device so far."""
    from minibert.kernels.fused.tuning import cache_file, remembered

    if device.type != "cuda":
        return {"configs": {}}
    return {"configs": {shape: list(cut) for shape, cut in remembered(cache_file(device)).items()}}


def profile(task: Task, name: str, device: torch.device) -> Row:
    """The kernels of one call by torch's profiler, the longest first: name, calls, ms of one."""
    from torch.profiler import ProfilerActivity

    if task.shape is None:
        raise ValueError("a profile of what shape?")
    built = build(name, inputs(task.shape, device))
    for _ in range(3):
        built.run()
    Clock(device).settle()
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(5):
            built.run()
        Clock(device).settle()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA") == on_gpu:
            spent[event.name].append(event.time_range.elapsed_us() / 1e3)
    longest = sorted(spent.items(), key=lambda one: -sum(one[1]))[:MOST_KERNELS]
    return {
        "calls": 5,
        "kernels": [
            {"name": kernel[:120], "times": len(each), "ms": round(sum(each) / len(each), 5)}
            for kernel, each in longest
        ],
    }
