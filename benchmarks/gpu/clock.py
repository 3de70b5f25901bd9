"""How long a call takes on an accelerator, with a cold and with a warm cache.

On CUDA a call is recorded as a graph and replayed, so that the time is the kernels' and not
Python's. Cold: the cache is filled with other data before each call. Warm: it is not, and calls
that are short are timed several at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any

from minibert.bench.clock import MOST_CALLS, Clock
from minibert.bench.contest import Contender, time_in_turns
from minibert.bench.gate import Outputs
from minibert.bench.result_rows import Row
from minibert.bench.timing import Timing

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
