"""The rows of one workload: users' kernels beside the baselines, each kernel in a worker.

The first kernel is timed twice: the difference between its two timings is the noise of this
machine. The baselines are called and timed like it, in a worker that runs none of the user's code.

The timed calls of one contender in a worker, by the judge's own clock, each of them checked.

On a CPU the clock starts when query, key and value are sent, all of them new, and stops when z has
been received. So nothing can be computed before the clock starts or left until after it stops.

On a GPU sending them would take longer than the call. There the seed of the inputs is sent, and the
worker measures the call by CUDA events. The judge compares the worker's times with calls on its own
clock. Each has its own seed and a sum over z that can be known only by computing all of z.
"""

import math
import secrets
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from minibert.bench.contest import Clock, calls_of_a_turn, take_turns
from minibert.bench.judge import JudgedFunction
from minibert.bench.result_rows import GateError, Row, Timing, WrongError, failure
from minibert.bench.roofline import ceilings, least_times
from minibert.bench.worker import alike
from minibert.bench.worker_process import Watch, WorkerError, WorkerProcess
from minibert.kernels.check.gradients import GRADIENTS, Looked, sampled, sampled_gradients
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Workload, inputs_of, projected

#: A turn on a GPU may take so much longer, by the judge's clock, than its events say: a quarter,
#: and this many milliseconds a call to launch it.
_LAUNCH_MS = 0.3
#: A sum of many errors may be so many times what is usual.
_FAR = 6.0


class JudgedRun:
    """A contender of this name, in a worker that has the user's file or the baselines."""

    def __init__(
        self,
        name: str,
        worker: WorkerProcess,
        workload: Workload,
        problem: Problem,
        *,
        baseline: bool,
    ) -> None:
        """Make it ready. Raises GateError where it cannot do this workload here."""
        self.name, self._worker, self._problem = name, worker, problem
        self._outputs = ("z", *(GRADIENTS if workload.backward else ()))
        z = math.prod(problem.z_shape) + sum(one.numel() for one in problem.vectors.values())
        self._most, self._clock = 8 * z, Clock(problem.query.device)
        self._ask("prepare", baseline=baseline, workload=workload.fields())

    def gate(self) -> Row:
        """The fields of a row after one call that is checked. Raises what `turn` raises."""
        _, found = self._call(cold=False)
        looked = self._check(found)
        self._check_later(found)
        return {"errors": {name: error for name, (error, _) in looked.items()}}

    def warm(self, fewest: int) -> int:
        """How many calls make a turn, after two to warm up."""
        for _ in range(2):
            milliseconds, _ = self._call(cold=False)
        return calls_of_a_turn(milliseconds / 1e3, fewest)

    def turn(self, calls: int, cold: bool) -> list[float]:
        """Milliseconds of each call.

        Raises WrongError when what a call gave is wrong, GateError when it fails, and
        WorkerEndedError when the worker ends.
        """
        milliseconds, drawn = [], secrets.randbelow(calls)
        for call in range(calls):
            taken, found = self._call(cold)
            milliseconds.append(taken)
            self._check(found)
            if call == drawn:
                self._check_later(found)
        if self._problem.query.is_cuda:
            self._compare(statistics.median(milliseconds))
        return milliseconds

    def peak_bytes(self) -> int:
        """The most bytes that a call holds, as torch in the worker counts them."""
        held = self._ask("peak")[0].get("bytes")
        if type(held) is not int:
            raise self._worker.distrust(f"{self.name} answered without the bytes that it holds.")
        return held

    def _ask(self, task: str, **fields: Any) -> tuple[Row, dict[str, Tensor]]:
        try:
            return self._worker.ask(task, contender=self.name, **fields)
        except WorkerError as error:
            raise GateError(str(error)) from error

    def _call(self, cold: bool) -> tuple[float, dict[str, Tensor]]:
        """Milliseconds of a call with new inputs, and what it gave."""
        self._ask("ready", cold=cold)
        fields: Row = {"cold": cold, "seed": secrets.randbits(63), "most": self._most}
        self._problem.refresh(fields["seed"])
        on_gpu = self._problem.query.is_cuda
        if not on_gpu:
            # The seed says the numbers before they arrive.
            fields |= {"seed": 0, "tensors": self._problem.vectors}
            if cold:
                self._clock.flush()
        start = perf_counter()
        answer, found = self._ask("timed", **fields)
        taken = (perf_counter() - start) * 1e3
        return self._claimed(answer, taken) if on_gpu else taken, found

    def _check(self, found: Mapping[str, Tensor]) -> dict[str, Looked]:
        """The error of the outputs, in rows that nobody could foresee."""
        problem = self._problem
        for name in self._outputs:
            if name not in found or found[name].is_meta:
                raise self._worker.distrust(f"{self.name} answered without the numbers of {name}.")
            if found[name].dtype != problem.query.dtype:
                dtypes = f"{found[name].dtype}; expected {problem.query.dtype}"
                raise WrongError(f"gave {name} in {dtypes}")
        looked = sampled(problem, {"z": found["z"]})
        if len(self._outputs) > 1:
            looked |= sampled_gradients(problem, found)
        for name, (error, allowed) in looked.items():
            if not error <= allowed:
                raise WrongError(
                    f"wrong: error of {name} {error:.2e}, allowed {allowed:.2e}, in rows of this "
                    "size"
                )
        return looked

    def _check_later(self, found: Mapping[str, Tensor]) -> None:
        """Raise WrongError where outputs or inputs have changed since the call returned."""
        _, after = self._ask_later("outputs")
        if changed := _changed({name: found[name] for name in self._outputs}, after):
            raise WrongError(f"{changed[0]} changed after the call returned: work continues")
        _, given = self._ask_later("inputs")
        if changed := _changed(self._problem.vectors, given):
            raise WrongError(f"changes its inputs: {', '.join(changed)}")

    def _ask_later(self, of: str) -> tuple[Row, dict[str, Tensor]]:
        return self._worker.ask("later", of=of, most=self._most)

    def _claimed(self, answer: Row, taken: float) -> float:
        """The time that the worker says a call took."""
        claimed = answer.get("ms")
        if not isinstance(claimed, float) or not 0 < claimed <= taken:
            raise WrongError(f"a call of {claimed!r:.20} ms by its events took {taken:.3g} ms")
        return claimed

    def _compare(self, claimed: float) -> None:
        """Raises WrongError when calls take longer than the worker says, or are left out."""
        calls = max(10, min(1000, int(100 / max(claimed, 1e-3))))
        seeds, weights = [secrets.randbits(63) for _ in range(calls)], secrets.randbits(63)
        most = 8 * calls
        start = perf_counter()
        _, found = self._ask("repeat", seeds=seeds, weights=weights, most=most)
        taken = (perf_counter() - start) * 1e3 / calls
        sums, problem = found.get("sums"), self._problem
        if sums is None or not alike(sums, torch.empty(calls, dtype=torch.float64)):
            raise self._worker.distrust(f"{self.name} answered without the sums of its calls.")
        start = perf_counter()
        for seed in seeds:
            self._problem.refresh(seed)
            projected(problem.query, weights)
        self._clock.settle()
        drawing = (perf_counter() - start) * 1e3 / calls
        if taken - drawing > 1.25 * claimed + _LAUNCH_MS:
            raise WrongError(
                f"a call of {claimed:.3g} ms by its events takes {taken - drawing:.3g} ms by the "
                "judge's clock: the events cannot be trusted"
            )
        drawn = secrets.randbelow(calls)
        self._check_sum(seeds[drawn], float(sums[drawn]), weights)

    def _check_sum(self, seed: int, told: float, weights: int) -> None:
        """Raise WrongError unless the sum is that of right numbers for this seed."""
        self._problem.refresh(seed)
        _, found = self._ask("timed", cold=False, seed=seed, most=self._most)
        _, allowed = self._check(found)["z, mean"]
        z = found["z"]
        # Rounding may differ from call to call, in each number by itself.
        if not abs(told - float(projected(z, weights))) <= _FAR * allowed * z.numel() ** 0.5:
            raise WrongError("gives other numbers when calls follow each other without a pause")


def _changed(numbers: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> list[str]:
    """The names of those that do not hold the same numbers later."""
    return [
        name
        for name, one in numbers.items()
        if name not in later or not alike(later[name], one) or not torch.equal(later[name], one)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let the judge compute with one thread, so that no other thread of it waits busily."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_AGAIN = "again"
#: Calls of a turn, at least.
_FEWEST = 3


def measure(
    users: Sequence[JudgedFunction],
    others: WorkerProcess,
    workload: Workload,
    *,
    baselines: Sequence[str],
    rounds: int,
    common: Row,
    watch: Watch,
) -> list[Row]:
    """A row for each kernel and each baseline, with a cold and with a warm cache.

    The ratios are to the first of `users`. `others` is the worker of the baselines; `watch` is
    called before each step. A contender that cannot be timed gets a row with the reason.
    """
    ceilings(users[0].device, workload.dtype)
    with one_thread():
        return _Contest(users, others, workload, baselines, rounds, common, watch).rows()


@dataclass
class _Contest:
    users: Sequence[JudgedFunction]
    others: WorkerProcess
    workload: Workload
    baselines: Sequence[str]
    rounds: int
    common: Row
    watch: Watch
    runs: dict[str, JudgedRun] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        self.first = self.users[0].label
        self.kernels = {user.label: user.worker for user in self.users}
        self.kernels[_AGAIN] = self.users[0].worker

    def rows(self) -> list[Row]:
        """All rows."""
        inputs = inputs_of(self.workload, self.users[0].device)
        for name in (*self.kernels, *self.baselines):
            self._tell(name)
            baseline = name not in self.kernels
            worker = self.kernels.get(name, self.others)
            try:
                run = JudgedRun(name, worker, self.workload, inputs, baseline=baseline)
                run.gate()
                self.runs[name] = run
            # A baseline that cannot be built, or is wrong, is a row that says why.
            except Exception as error:
                self.failed[name] = failure(error)
                if name == self.first and len(self.users) == 1:
                    break
        return [row for cold in (True, False) for row in self._timed(cold)]

    def _timed(self, cold: bool) -> list[Row]:
        left = [name for name in self.runs if name not in self.failed]

        def warm(name: str) -> int:
            self._tell(name)
            return self.runs[name].warm(_FEWEST)

        def turn(name: str, calls: int) -> list[float]:
            self._tell(name)
            mine = self.kernels.get(name, self.others)
            # Nobody takes time from the others.
            with ExitStack() as still:
                for worker in {*self.kernels.values(), self.others} - {mine}:
                    still.enter_context(worker.stopped())
                return self.runs[name].turn(calls, cold)

        timed = take_turns(left, warm, turn, rounds=self.rounds)
        self.failed |= timed.failures
        if _AGAIN in self.failed:
            # The same kernel: it is wrong whichever of its two turns showed it.
            self.failed.setdefault(self.first, self.failed[_AGAIN])
        names = dict.fromkeys([*timed.timings, *self.failed])
        return [self._row(name, cold, timed.timings) for name in names if name != _AGAIN]

    def _row(self, name: str, cold: bool, timings: Mapping[str, Timing]) -> Row:
        """The row of a contender that was timed, or has failed."""
        work, label, device = self.workload, self.first, self.users[0].device
        role = "kernel" if name == label else "rival" if name in self.kernels else "baseline"
        row: Row = {"implementation": name, "role": role}
        row |= work.fields() | {"cache": "cold" if cold else "warm", "about": work.about()}
        if name in self.failed:
            return row | self.failed[name] | self.common | {"peak_bytes": None}
        fields, reached = timings[name].fields(), ceilings(device, work.dtype)
        least = least_times(work, reached)
        bound, median = max(least, key=least.__getitem__), fields["median_ms"]
        row |= {"ok": True, **fields, "flop": work.flop, "flop_formula": work.flop_formula}
        row |= {"tflops": work.flop / median / 1e9, "bound": bound, "ceilings": dict(reached)}
        row |= {"percent": 100 * least[bound] / median, "least_ms": least}
        if row["percent"] > 120:
            row["note"] = "faster than the measured ceiling: distrust the clock"
        if label not in self.failed:
            mine, again = timings[label], timings.get(_AGAIN)
            row |= timings[name].ratios(mine)
            row["noise"] = None if again is None else abs(again.median / mine.median - 1)
        return row | self.common | {"peak_bytes": self.runs[name].peak_bytes()}

    def _tell(self, name: str) -> None:
        """Announce the next step to the watcher, and remember it for the message of a crash."""
        what = f"{self.workload.tokens} tokens, {name}"
        contenders = [*self.kernels, *self.baselines]
        for worker in (*self.kernels.values(), self.others):
            worker.place = what
        self.watch(self.done, len(contenders) * (3 + 2 * self.rounds), what)
        self.done += 1
