"""How long a call takes: CUDA events with a cold and a warm L2 cache, or a processor's clock.

On CUDA a call is recorded as a graph and replayed, so that the time is the kernels' and not
Python's. Cold: the cache is filled with other data between calls. Warm: it is not, and calls that
are short are timed several at a time.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Run = Callable[[], Any]
Row = dict[str, Any]

# More than the L2 cache of any GPU so far.
FLUSH_BYTES = 256 * 2**20
# The time of a turn, and at most how many calls it is made of.
TURN_MS, MOST = 60.0, 40
WARM_MS = 0.3


class CudaClock:
    """CUDA events around calls on one device."""

    name, rounds, fewest = "cuda events", 4, 3

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device = torch, device
        self.other = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def recorded(self, run: Run) -> Run:
        """The call as a CUDA graph. Raises RuntimeError when it cannot be recorded."""
        torch = self.torch
        side = torch.cuda.Stream(self.device)
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

    def samples(self, run: Run, calls: int, *, cold: bool, together: int = 1) -> list[float]:
        """Milliseconds of a call, `calls` times; `together` calls are timed as one."""
        torch, events = self.torch, []
        for _ in range(calls):
            if cold:
                self.other.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(together):
                run()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / together for start, end in events]


class ProcessorClock:
    """perf_counter around calls: for the dry run, where no cache is emptied."""

    name, rounds, fewest = "perf_counter", 2, 1

    def recorded(self, run: Run) -> Run:
        """The call as it is."""
        return run

    def samples(self, run: Run, calls: int, *, cold: bool, together: int = 1) -> list[float]:
        """Milliseconds of a call, `calls` times."""
        found = []
        for _ in range(calls):
            start = time.perf_counter()
            for _ in range(together):
                run()
            found.append((time.perf_counter() - start) * 1e3 / together)
        return found


def times(runs: Mapping[str, Run], clock: Any) -> dict[str, Row]:
    """The fields of each contender's row, measured in turns, in a new order each round.

    `noise` compares two timings of the same kernel, the even rounds with the odd ones: a
    difference between contenders that is smaller means nothing.
    """
    few = clock.fewest
    once = {name: statistics.median(clock.samples(r, few, cold=True)) for name, r in runs.items()}
    cold: dict[str, list[list[float]]] = {name: [] for name in runs}
    warm: dict[str, list[float]] = {name: [] for name in runs}
    order, shuffler = list(runs), random.Random(0)
    for _ in range(clock.rounds):
        shuffler.shuffle(order)
        for name in order:
            calls = max(few, calls_of(once[name]))
            together = max(1, min(MOST, int(WARM_MS / max(once[name], 1e-6))))
            cold[name].append(clock.samples(runs[name], calls, cold=True))
            # The first warm call is a cold one.
            warm[name] += clock.samples(runs[name], calls + 1, cold=False, together=together)[1:]
    return {name: summary(cold[name], warm[name]) for name in runs}


def calls_of(milliseconds: float) -> int:
    """The calls that fit in one turn."""
    return min(MOST, int(TURN_MS / max(milliseconds, 1e-6)))


def summary(cold: list[list[float]], warm: list[float]) -> Row:
    """Medians and spread, in milliseconds."""
    every = sorted(call for turn in cold for call in turn)
    first, second = (
        statistics.median([call for turn in cold[start::2] for call in turn] or every)
        for start in (0, 1)
    )
    median = statistics.median(every)
    return {
        "median_ms": round(median, 5),
        "p20_ms": round(_part(every, 0.2), 5),
        "p80_ms": round(_part(every, 0.8), 5),
        "warm_ms": round(statistics.median(warm), 5),
        "first_ms": round(first, 5),
        "second_ms": round(second, 5),
        "noise": round(abs(first - second) / max(median, 1e-9), 4),
        "calls": len(every),
        "turns": len(cold),
    }


def _part(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))]
