"""The timed calls of one contender in a worker, by the judge's own clock, with checks between.

A call is: new numbers (off the clock), then the last of them with the request, the call, and z put
where the judge can read it (on the clock). So nothing can be computed before, and nothing left for
later. Of each turn the judge draws one call, tells nobody, and checks what it gave.

On a GPU waiting for the processes would outweigh a short kernel, so there the worker measures each
call by CUDA events, and the judge compares what it says with its own clock.

Which rows of which heads are looked at is drawn when the outputs are there, and cannot be foreseen.
The truth is eager in float64, which parity proves equal to the reference; the tolerance is
parity's, from eager in the dtype of the inputs on the same rows.
"""

import math
import random
import secrets
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from minibert.bench.clock import calls_of_a_turn
from minibert.bench.gate import GateError, WrongError
from minibert.bench.result_rows import Row
from minibert.bench.shared_bytes import room_for
from minibert.bench.worker_process import WorkerError, WorkerProcess
from minibert.bench.workload import Inputs
from minibert.kernels.check.gradients import GRADIENTS, right_gradients, tolerances
from minibert.kernels.check.problem import Problem, by_eager, part
from minibert.kernels.check.tolerances import distance, error_of, tolerance_of
from minibert.kernels.check.workload import Workload

_ROWS, _HEADS = 48, 2


#: The error of an output in the rows looked at, and what is allowed there.
Looked = tuple[float, float]
_NOTHING: Looked = (math.inf, 0.0)


def sampled(problem: Problem, z: Tensor) -> Looked:
    """How far z is off in some rows of some heads; the worst of them."""
    if tuple(z.shape) != problem.z_shape:
        return _NOTHING
    looked = []
    for _ in range(_HEADS):
        sentence, (batch, first, Q) = _sentence(problem)
        head = secrets.randbelow(problem.query.shape[1])
        drawn = torch.Generator().manual_seed(secrets.randbits(63))
        rows = torch.randperm(Q, generator=drawn)[:_ROWS]
        rows[0] = Q - 1
        rows = rows.sort().values.to(z.device)
        one = part(problem, sentence, slice(head, head + 1), rows)
        mine = {"z": z[batch : batch + 1, head : head + 1][:, :, first + rows]}
        truth, yardstick = by_eager(one, torch.float64), by_eager(one, one.query.dtype)
        error, allowed = error_of("z", one, mine, truth), tolerance_of("z", one, yardstick, truth)
        if not error <= allowed:
            return error, allowed
        looked.append((error, allowed))
    return max(looked)


def sampled_gradients(problem: Problem, found: Mapping[str, Tensor]) -> dict[str, Looked]:
    """How far the gradients are off in one key head of one sentence and its query heads."""
    leaves = {f"{name}_gradient": getattr(problem, name) for name in ("query", "key", "value")}
    if any(found[name].shape != one.shape for name, one in leaves.items()):
        return dict.fromkeys(leaves, _NOTHING)
    sentence, (batch, first, Q) = _sentence(problem)
    key_heads = problem.key.shape[1]
    group = problem.query.shape[1] // key_heads
    head = secrets.randbelow(key_heads)
    heads = slice(head * group, (head + 1) * group)
    one = part(problem, sentence, heads, torch.arange(Q, device=problem.query.device))
    right, allowed = right_gradients(one), tolerances(one)
    first_key = sum((problem.packed_keys or problem.packed or ())[:sentence])
    of_key = (slice(head, head + 1), slice(first_key, first_key + one.key.shape[2]))
    places = dict.fromkeys(leaves, of_key) | {"query_gradient": (heads, slice(first, first + Q))}
    return {
        name: (distance(found[name][batch : batch + 1, which, rows], right[name]), allowed[name])
        for name, (which, rows) in places.items()
    }


def _sentence(problem: Problem) -> tuple[int, tuple[int, int, int]]:
    """One that is drawn: its number; its place in the batch, its first query and its queries."""
    if problem.packed is None:
        B, _, Q, _ = problem.query.shape
        sentence = secrets.randbelow(B)
        return sentence, (sentence, 0, Q)
    sentence = secrets.randbelow(len(problem.packed))
    return sentence, (0, sum(problem.packed[:sentence]), problem.packed[sentence])


#: A turn on a GPU may take so much longer, by the judge's clock, than its events say: a quarter,
#: and this many milliseconds a call to launch it.
_LAUNCH_MS = 0.3
_RANDOM = random.SystemRandom()


class JudgedRun:
    """A contender of this name, in a worker that has the user's file or the baselines."""

    def __init__(
        self,
        name: str,
        worker: WorkerProcess,
        workload: Workload,
        inputs: Inputs,
        *,
        baseline: bool,
    ) -> None:
        """Make it ready. Raises GateError where it cannot do this workload here."""
        self.name, self._worker, self._workload = name, worker, workload
        self._inputs, self._seed = inputs, 0
        self._last = 0.0
        vectors = inputs.vectors
        z = math.prod(inputs.problem.z_shape) + sum(one.numel() for one in vectors.values())
        files = worker.files(inputs=room_for(vectors.values()), outputs=8 * z + 2048)
        self._ask(
            "prepare",
            baseline=baseline,
            workload=workload.fields(),
            files={name: (str(one.path), one.size) for name, one in files.items()},
        )

    def gate(self) -> Row:
        """The fields of a row after one call that is checked. Raises what `turn` raises."""
        self._refresh(cold=False)
        return self._check(self._call())

    def warm(self, fewest: int) -> int:
        """How many calls make a turn, after two to warm up."""
        seconds = 1.0
        for _ in range(2):
            self._refresh(cold=False)
            start = perf_counter()
            self._call()
            seconds = perf_counter() - start
        return calls_of_a_turn(seconds, fewest)

    def turn(self, calls: int, cold: bool) -> list[float]:
        """Milliseconds of each call.

        Raises WrongError when what the drawn call gave is wrong, GateError when a call fails, and
        WorkerEndedError when the worker ends.
        """
        milliseconds, drawn = [], secrets.randbelow(calls)
        for call in range(calls):
            self._refresh(cold)
            start = perf_counter()
            answer = self._call()
            taken = (perf_counter() - start) * 1e3
            milliseconds.append(self._claimed(answer, taken) if self._on_gpu else taken)
            if call == drawn:
                self._check(answer)
        if self._on_gpu and not cold:
            self._compare(statistics.median(milliseconds))
        return milliseconds

    def peak_bytes(self) -> int:
        """The most bytes that a call holds, as torch in the worker counts them."""
        return int(self._ask("peak")["bytes"])

    @property
    def _on_gpu(self) -> bool:
        return self._inputs.problem.query.is_cuda

    def _ask(self, task: str, **fields: Any) -> Row:
        try:
            return self._worker.ask(task, contender=self.name, **fields)
        except WorkerError as error:
            raise GateError(str(error)) from error

    def _refresh(self, cold: bool) -> None:
        self._seed, self._last = secrets.randbits(63), _RANDOM.gauss()
        self._ask("refresh", seed=self._seed, cold=cold)

    def _call(self) -> Row:
        return self._ask("timed", last=self._last)

    def _check(self, answer: Row) -> Row:
        """The error of z, as it was when the answer came, in rows that nobody could foresee."""
        outputs = ("z", *(GRADIENTS if self._workload.backward else ()))
        found = self._worker.taken("outputs", answer, outputs)
        mine = self._inputs
        mine.refresh(self._seed)
        mine.complete(self._last)
        dtype = mine.problem.query.dtype
        for name, one in found.items():
            if one.dtype != dtype:
                raise WrongError(f"gave {name} in {one.dtype}; expected {dtype}")
        looked = {"z": sampled(mine.problem, found["z"])}
        if self._workload.backward:
            looked |= sampled_gradients(mine.problem, found)
        for name, (error, allowed) in looked.items():
            if not error <= allowed:
                raise WrongError(
                    f"wrong: error of {name} {error:.2e}, allowed {allowed:.2e}, in rows of this "
                    "size"
                )
        later = self._worker.ask("later")
        after = self._worker.taken("outputs", later, outputs)
        if changed := [name for name, one in found.items() if not torch.equal(after[name], one)]:
            raise WrongError(
                f"{changed[0]} changed after the call had returned: the work goes on behind it"
            )
        given, vectors = self._worker.taken("inputs", later, mine.vectors), mine.vectors
        if changed := [name for name, one in vectors.items() if not torch.equal(given[name], one)]:
            raise WrongError(f"changes its inputs: {', '.join(changed)}")
        return {"errors": {name: error for name, (error, _) in looked.items()}}

    def _claimed(self, answer: Row, taken: float) -> float:
        """What the worker says a call took."""
        claimed = answer.get("ms")
        if not isinstance(claimed, float) or not 0 < claimed <= taken:
            raise WrongError(f"a call of {claimed!r:.20} ms by its events took {taken:.3g} ms")
        return claimed

    def _compare(self, claimed: float) -> None:
        """Raises WrongError when calls take longer than the worker says."""
        calls = max(10, min(1000, int(100 / max(claimed, 1e-3))))
        start = perf_counter()
        self._ask("repeat", calls=calls)
        taken = (perf_counter() - start) * 1e3 / calls
        if taken > 1.25 * claimed + _LAUNCH_MS:
            raise WrongError(
                f"a call of {claimed:.3g} ms by its events takes {taken:.3g} ms by the judge's "
                "clock: the events cannot be trusted"
            )


@contextmanager
def one_thread() -> Iterator[None]:
    """The judge computes with one thread, so that none of its others is busy waiting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
