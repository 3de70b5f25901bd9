"""Contenders that do the same work: all are warmed, then they take turns on the one clock.

It gives milliseconds of single calls, by events on a GPU and by the processor's clock elsewhere. A
cold cache was filled with something else just before the call. After the last call of a turn
nothing may still run, or the clock would miss part of the work. It is for trusted code only; a
user's kernel is timed by `measure`.
"""

import ctypes
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from minibert.bench.result_rows import Outputs, Row, Timing, failure, interleaved
from minibert.errors import MinibertError
from minibert.kernels.work_memory import release


def peak_bytes(
    run: Callable[[], object],
    device: torch.device,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> int:
    """The most bytes a call holds on top of what was there before, its results included.

    On a GPU by torch's account; on a CPU by torch's profiler, which does not see the memory that
    a library such as oneDNN takes for itself.
    """
    with around():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            run()
            torch.cuda.synchronize(device)
            return torch.cuda.max_memory_allocated(device) - before
        # What is kept between calls counts as what a call takes.
        release()
        return _profiled(run)


def _profiled(run: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    memory = [event for event in events if event.get("name") == "[memory]"]
    for event in sorted(memory, key=lambda event: float(event["ts"])):
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak


#: A turn is as many calls as fit in this time, so that a call of 1 ms does not always find the
#: caches full of its neighbour's numbers; and at most how many.
TURN_SECONDS, MOST_CALLS = 0.05, 20
#: Time for Python to run ahead of the GPU, so that launching is not what is timed: some 0.2 ms.
_HEAD_START = 400_000
#: What synchronising an idle GPU may take, in seconds.
_IDLE = 2e-4


def calls_of_a_turn(seconds: float, fewest: int) -> int:
    """The number of calls of so many seconds that make a turn."""
    return max(fewest, min(MOST_CALLS, int(TURN_SECONDS / max(seconds, 1e-9))))


class Clock:
    """The clock of a device; `turn` times some calls and gives the last result."""

    def __init__(
        self, device: torch.device | str = "cpu", *, cache_bytes: int | None = None
    ) -> None:
        """A clock that fills `cache_bytes` for a cold cache, by default `flush_bytes`."""
        self.device, self._cache_bytes = torch.device(device), cache_bytes
        self.name = "cuda events" if self.device.type == "cuda" else "perf_counter"

    @cached_property
    def _flush(self) -> Tensor:
        size = self._cache_bytes or flush_bytes(self.device)
        return torch.empty(size, dtype=torch.int8, device=self.device)

    def turn(
        self, run: Callable[[], object], *, calls: int, cold: bool = False
    ) -> tuple[list[float], object]:
        """Milliseconds of each call, and what the last gave; the others are freed off the clock.

        Raises MinibertError when work continues after the last call has ended on the clock.
        """
        timed = self._on_gpu if self.device.type == "cuda" else self._on_cpu
        return timed(run, calls, cold)

    def calls(self, run: Callable[[], object], fewest: int = 1) -> int:
        """How many calls make a turn, after two to warm up."""
        seconds = 1.0
        for _ in range(2):
            self.settle()
            start = perf_counter()
            run()
            self.settle()
            seconds = perf_counter() - start
        return calls_of_a_turn(seconds, fewest)

    def flush(self) -> None:
        """Fill the cache with something else, lines that a kernel made persistent included."""
        if self.device.type == "cuda":
            # Other makers' devices, and drivers before CUDA 11, have no such lines.
            with suppress(OSError, AttributeError):
                ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
        self._flush.zero_()

    def settle(self) -> None:
        """Wait until the device is done. Raises the error that a kernel left there."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _on_cpu(
        self, run: Callable[[], object], calls: int, cold: bool
    ) -> tuple[list[float], object]:
        milliseconds, result = [], None
        for _ in range(calls):
            result = None
            if cold:
                self.flush()
            start = perf_counter()
            result = run()
            milliseconds.append((perf_counter() - start) * 1e3)
        return milliseconds, result

    def _on_gpu(
        self, run: Callable[[], object], calls: int, cold: bool
    ) -> tuple[list[float], object]:
        events, result = [], None
        for _ in range(calls):
            result = None
            if cold:
                self.flush()
            torch.cuda._sleep(_HEAD_START)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = run()
            end.record()
            events.append((start, end))
        events[-1][1].synchronize()
        began = perf_counter()
        torch.cuda.synchronize()
        waited = perf_counter() - began
        milliseconds = [start.elapsed_time(end) for start, end in events]
        if waited > _IDLE + 0.2e-3 * statistics.median(milliseconds):
            raise MinibertError(
                f"the GPU is busy for {waited * 1e3:.2g} ms after the call has ended on its "
                "stream: work on another stream is not timed; do all of it on the current one"
            )
        return milliseconds, result


def flush_bytes(device: torch.device) -> int:
    """Twice the largest cache."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return 2 * max(getattr(properties, "L2_cache_size", 0), 64 * 2**20)
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    found = [
        int(text[:-1]) * 2**10 for one in sizes if (text := one.read_text().strip())[-1] == "K"
    ]
    return 2 * min(max([*found, 16 * 2**20]), 256 * 2**20)


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


def time_in_turns(
    contenders: Mapping[str, Contender],
    clock: Clock,
    *,
    rounds: int,
    calls: int | None = None,
    fewest: int = 1,
    cold: bool = False,
) -> Timed:
    """The times of all: each is warmed up, then each takes a turn in every round, in a new order.

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

    An error of either ends the contest for that name.
    """
    timed, counts = Timed(), dict[str, int]()
    turns: dict[str, list[list[float]]] = {name: [] for name in names}
    for name in (*turns, *interleaved(turns, rounds)):
        if name in timed.failures:
            continue
        try:
            if name in counts:
                turns[name].append(turn(name, counts[name]))
            else:
                counts[name] = warm(name)
        # What fails under the clock is a row that says so.
        except Exception as error:
            said = failure(error)
            reason = f"right when checked, but while it was timed: {said['reason']}"
            timed.failures[name] = said | {"reason": reason}
    timed.timings.update(
        {name: Timing(taken) for name, taken in turns.items() if name not in timed.failures}
    )
    return timed
