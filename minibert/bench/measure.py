"""The rows of one workload: a user's kernel beside the baselines.

The kernel is there twice: how far its two timings are apart is the noise of this machine. What the
last call of each turn gave is checked again: a kernel that is right only while it is not timed has
no time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.bench.baselines import baseline, z_of
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, Timed, gated, time_in_turns
from minibert.bench.gate import Outputs, WrongError, failure
from minibert.bench.guards import time_limit
from minibert.bench.kernel_gate import sampled
from minibert.bench.memory import peak_bytes
from minibert.bench.printed import Watch
from minibert.bench.result_rows import Row
from minibert.bench.roofline import ceilings, least_times
from minibert.bench.user_file import UserFunction
from minibert.bench.workload import FLOP_FORMULA, Inputs, Workload

__all__ = ["measure"]

_AGAIN = "again"
#: Calls of a turn, at least.
_FEWEST = 3


def measure(
    user: UserFunction,
    workload: Workload,
    *,
    clock: Clock,
    baselines: Sequence[str],
    rounds: int,
    common: Row,
    watch: Watch,
) -> list[Row]:
    """A row for the kernel and each baseline, with a cold and with a warm cache.

    `watch` is called before each step. What cannot be timed is a row with the reason.
    """
    inputs = workload.draw(clock.device)
    names = (user.label, _AGAIN, *baselines)
    step = _Steps(watch, len(names) * (3 + 2 * rounds), f"{workload.tokens} tokens")
    contenders, failed = dict[str, Contender](), dict[str, Row]()
    for name in names:
        step(name)
        verdict, contender = _entered(name, user, workload, inputs)
        if contender is not None and verdict["ok"]:
            contenders[name] = contender
            continue
        failed[name] = verdict
        if name == user.label:
            break
    rows = []
    for cold in (True, False):
        timed = time_in_turns(
            {name: one for name, one in contenders.items() if name not in failed},
            clock,
            rounds=rounds,
            fewest=_FEWEST,
            cold=cold,
            refresh=inputs.refresh,
            before=step,
            after=lambda name, result: _check(contenders[name].outputs(result), workload, inputs),
        )
        failed |= timed.failures
        rows += _rows(user.label, workload, timed, failed, cold, common, clock.device)
    for row in rows:
        one = contenders.get(row["implementation"])
        row["peak_bytes"] = one and peak_bytes(one.run, clock.device, one.around)
    return rows


class _Steps:
    """Counts the steps of a workload."""

    def __init__(self, watch: Watch, total: int, workload: str) -> None:
        self._watch, self._total, self._workload = watch, total, workload
        self._done = 0

    def __call__(self, name: str) -> None:
        self._watch(self._done, self._total, f"{self._workload}, {name}")
        self._done += 1


def _entered(
    name: str, user: UserFunction, workload: Workload, inputs: Inputs
) -> tuple[Row, Contender | None]:
    """What the gate says of a contender, and the contender where it could be built."""
    try:
        contender = _contender(name, user, workload, inputs)
    # A baseline that cannot be built is a row that says why.
    except Exception as error:
        return failure(error), None
    with time_limit(user.seconds, f"{name} has not returned"):
        return gated(contender, lambda found: _check(found, workload, inputs)), contender


def _contender(name: str, user: UserFunction, workload: Workload, inputs: Inputs) -> Contender:
    """The user's function or a baseline; what any of them prints is captured."""
    if name in (user.label, _AGAIN):

        def run() -> Any:
            return user(*inputs.vectors, lengths=inputs.lengths, causal=workload.causal)

        return Contender(run, z_of, user.printed.captured)
    found = baseline(name, workload, inputs)
    return replace(found, around=_both(found.around, user.printed.captured))


def _both(
    outer: Callable[[], AbstractContextManager[Any]],
    inner: Callable[[], AbstractContextManager[Any]],
) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def around() -> Iterator[None]:
        with outer(), inner():
            yield

    return around


def _check(found: Outputs, workload: Workload, inputs: Inputs) -> Row:
    """The error of z. Raises WrongError when some rows are wrong, or change after the call."""
    z: Tensor = found["z"]
    early = z.clone()
    looked = sampled(*inputs.vectors, early, lengths=inputs.lengths, causal=workload.causal)
    if not looked.ok:
        raise WrongError(
            f"wrong: error {looked.error:.2e}, allowed {looked.tolerance:.2e}, in rows of this size"
        )
    if not torch.equal(early, z):
        raise WrongError("z changed after the call had returned: the work goes on behind it")
    return {"errors": {"z": looked.error}}


def _rows(
    label: str,
    workload: Workload,
    timed: Timed,
    failed: Mapping[str, Row],
    cold: bool,
    common: Row,
    device: torch.device,
) -> list[Row]:
    if _AGAIN in failed:
        # The same kernel: it is wrong whichever of its two turns showed it.
        failed = {label: failed[_AGAIN], **failed}
    timings = timed.timings
    mine = None if label in failed else timings.get(label)
    again = timings.get(_AGAIN)
    reached = ceilings(device, workload.dtype)
    least = least_times(workload, reached)
    bound = max(least, key=lambda name: least[name])
    rows: list[Row] = []
    for name in dict.fromkeys([*timings, *failed]):
        if name == _AGAIN:
            continue
        row: Row = {"implementation": name, "role": "kernel" if name == label else "baseline"}
        row |= workload.fields() | {"cache": "cold" if cold else "warm"}
        if name in failed:
            rows.append(row | failed[name] | common)
            continue
        timing = timings[name]
        row |= {"ok": True, **timing.fields()}
        row |= {"flop": workload.flop, "flop_formula": FLOP_FORMULA}
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
