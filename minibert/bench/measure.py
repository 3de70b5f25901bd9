"""The rows of one workload: a user's kernel beside the baselines, each in a worker.

The kernel is there twice: how far its two timings are apart is the noise of this machine. The
baselines are called and timed as the kernel is, in a worker that runs no code of the user's.

A roofline says how fast this machine can be at all, measured, and which part of that a time is.
Attention needs the matrix units (2·(d_head + d_value) operations a pair of query and key, and those
of the backward), an exponential a pair (two with the backward), some instructions a pair, and its
inputs and output in memory once; the largest of the four times is the least it can take. On a GPU
the four units work at the same time, so that the largest counts and not the sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from minibert.bench.contest import Timed, take_turns
from minibert.bench.gate import failure
from minibert.bench.judged_function import JudgedFunction
from minibert.bench.judged_run import JudgedRun, one_thread
from minibert.bench.result_rows import Row
from minibert.bench.worker_process import Watch, WorkerProcess
from minibert.bench.workload import inputs_of
from minibert.kernels.ceilings import (
    best_seconds,
    exponentials_per_second,
    instructions_per_second,
)
from minibert.kernels.check.workload import Workload

#: Instructions a pair: one multiply-add into the exponent, one maximum, one exponential, one
#: addition to the sum, half a conversion to the narrow type (two at a time).
INSTRUCTIONS = 4.5


@cache
def ceilings(device: torch.device, dtype: str) -> Mapping[str, float]:
    """What was measured here: tensor (operations), exponential, issue and memory (bytes) a second.

    issue is left out on a CPU. The best of several runs each: a ceiling is what was reached.
    """
    found = {
        "tensor": _matmul(device, getattr(torch, dtype)),
        "exponential": exponentials_per_second(device),
        "issue": instructions_per_second(device),
        "memory": _copy(device),
    }
    return {name: value for name, value in found.items() if value is not None}


def least_times(workload: Workload, reached: Mapping[str, float]) -> dict[str, float]:
    """The least milliseconds of each unit; the largest of them is the roofline."""
    work = {
        "tensor": workload.flop,
        # A backward computes the probabilities once more.
        "exponential": workload.pairs * (2 if workload.backward else 1),
        "issue": INSTRUCTIONS * workload.pairs * (2 if workload.backward else 1),
        "memory": workload.bytes,
    }
    return {name: 1e3 * work[name] / value for name, value in reached.items()}


def _matmul(device: torch.device, dtype: torch.dtype) -> float:
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / best_seconds(lambda: torch.matmul(a, b, out=out), device)


def _copy(device: torch.device) -> float:
    n = 2**30 if device.type == "cuda" else 2**27
    source = torch.zeros(n, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * n / best_seconds(lambda: target.copy_(source), device)


_AGAIN = "again"
#: Calls of a turn, at least.
_FEWEST = 3


def measure(
    user: JudgedFunction,
    others: WorkerProcess,
    workload: Workload,
    *,
    baselines: Sequence[str],
    rounds: int,
    common: Row,
    watch: Watch,
) -> list[Row]:
    """A row for the kernel and each baseline, with a cold and with a warm cache.

    `others` is the worker of the baselines; `watch` is called before each step. What cannot be
    timed is a row with the reason.
    """
    ceilings(user.device, workload.dtype)
    with one_thread():
        return _Contest(user, others, workload, baselines, rounds, common, watch).rows()


@dataclass
class _Contest:
    user: JudgedFunction
    others: WorkerProcess
    workload: Workload
    baselines: Sequence[str]
    rounds: int
    common: Row
    watch: Watch
    runs: dict[str, JudgedRun] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)
    done: int = 0

    def rows(self) -> list[Row]:
        """All rows."""
        inputs = inputs_of(self.workload, self.user.device)
        for name in (self.user.label, _AGAIN, *self.baselines):
            self._tell(name)
            mine = name in (self.user.label, _AGAIN)
            worker = self.user.worker if mine else self.others
            try:
                run = JudgedRun(name, worker, self.workload, inputs, baseline=not mine)
                run.gate()
                self.runs[name] = run
            # A baseline that cannot be built, or is wrong, is a row that says why.
            except Exception as error:
                self.failed[name] = failure(error)
                if name == self.user.label:
                    break
        return [row for cold in (True, False) for row in self._timed(cold)]

    def _timed(self, cold: bool) -> list[Row]:
        left = [name for name in self.runs if name not in self.failed]

        def warm(name: str) -> int:
            self._tell(name)
            return self.runs[name].warm(_FEWEST)

        def turn(name: str, calls: int) -> list[float]:
            self._tell(name)
            mine = name in (self.user.label, _AGAIN)
            # Nobody takes time from the others.
            with (self.others if mine else self.user.worker).stopped():
                return self.runs[name].turn(calls, cold)

        timed = take_turns(left, warm, turn, rounds=self.rounds)
        self.failed |= timed.failures
        rows = _rows(self.user, self.workload, timed, self.failed, cold, self.common)
        for row in rows:
            run = self.runs.get(row["implementation"])
            row["peak_bytes"] = run.peak_bytes() if run is not None and row["ok"] else None
        return rows

    def _tell(self, name: str) -> None:
        """Say which step comes, to whoever watches and for the message of a crash."""
        what = f"{self.workload.tokens} tokens, {name}"
        self.user.worker.place = self.others.place = what
        self.watch(self.done, (2 + len(self.baselines)) * (3 + 2 * self.rounds), what)
        self.done += 1


def _rows(
    user: JudgedFunction,
    workload: Workload,
    timed: Timed,
    failed: Mapping[str, Row],
    cold: bool,
    common: Row,
) -> list[Row]:
    label = user.label
    if _AGAIN in failed:
        # The same kernel: it is wrong whichever of its two turns showed it.
        failed = {label: failed[_AGAIN], **failed}
    timings = timed.timings
    mine = None if label in failed else timings.get(label)
    again = timings.get(_AGAIN)
    reached = ceilings(user.device, workload.dtype)
    least = least_times(workload, reached)
    bound = max(least, key=lambda name: least[name])
    rows: list[Row] = []
    for name in dict.fromkeys([*timings, *failed]):
        if name == _AGAIN:
            continue
        row: Row = {"implementation": name, "role": "kernel" if name == label else "baseline"}
        row |= workload.fields() | {"cache": "cold" if cold else "warm"}
        row["about"] = workload.about()
        if name in failed:
            rows.append(row | failed[name] | common)
            continue
        timing = timings[name]
        row |= {"ok": True, **timing.fields()}
        row |= {"flop": workload.flop, "flop_formula": workload.flop_formula}
        row |= {"tflops": workload.flop / row["median_ms"] / 1e9}
        row |= {"bound": bound, "percent": 100 * least[bound] / row["median_ms"]}
        row |= {"least_ms": least, "ceilings": dict(reached)}
        if row["percent"] > 120:
            row["note"] = "faster than the measured ceiling: distrust the clock"
        if mine is not None:
            row |= timing.ratios(mine)
            row["noise"] = None if again is None else abs(again.median / mine.median - 1)
        rows.append(row | common)
    return rows
