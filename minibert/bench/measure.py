"""The rows of one workload: every contender in turn, on a gate that stays shut for wrong numbers.

Place: what `minibert bench` runs for each shape, after gate.py. Contenders take turns in a new
order each round, so that a busy moment meets all of them. The kernel is there twice: how far its
two timings are apart is the noise of this machine. What the last call of each turn gave is checked
again: a kernel that is right only while it is not timed is no kernel.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.bench.baselines import Contender, baseline
from minibert.bench.clock import Clock, Spread
from minibert.bench.gate import sampled
from minibert.bench.guards import time_limit
from minibert.bench.printed import Watch
from minibert.bench.roofline import ceilings, least_times
from minibert.bench.rows import Row
from minibert.bench.user_file import UserFunction
from minibert.bench.workload import FLOP_FORMULA, Inputs, Workload
from minibert.errors import MinibertError
from minibert.kernels.check.parity import one_line
from minibert.kernels.work_memory import release

__all__ = ["measure"]

_AGAIN = "again"


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

    `watch` is called before each step. What cannot be timed is a row with the reason as "error".
    """
    inputs = workload.draw(clock.device)
    failed: dict[str, str] = {}
    contenders = {}
    names = (user.label, _AGAIN, *baselines)
    step = _Steps(watch, len(names) * (1 + 2 * rounds), f"{workload.tokens} tokens")
    for name in names:
        step(name)
        try:
            contender = _contender(name, user, workload, inputs)
            with contender.around(), user.printed.captured():
                with time_limit(user.seconds, f"{name} has not returned"):
                    result = contender.run()
                _gated(contender, result, workload, inputs)
            contenders[name] = contender
        # A contender that fails is a row that says why.
        except Exception as error:
            failed[name] = one_line(error)
            if name == user.label:
                break
    rows = []
    for cold in (True, False):
        with user.printed.captured():
            spreads = _spreads(contenders, failed, workload, inputs, clock, rounds, cold, step)
        rows += _rows(user.label, workload, spreads, failed, cold, common, clock.device)
    with user.printed.captured():
        peaks = {name: _peak_bytes(one, clock.device) for name, one in contenders.items()}
    for row in rows:
        row["peak_bytes"] = peaks.get(row["implementation"])
    return rows


class _Steps:
    """Counts the steps of a workload."""

    def __init__(self, watch: Watch, total: int, workload: str) -> None:
        self._watch, self._total, self._workload = watch, total, workload
        self._done = 0

    def __call__(self, name: str) -> None:
        self._watch(self._done, self._total, f"{self._workload}, {name}")
        self._done += 1


def _contender(name: str, user: UserFunction, workload: Workload, inputs: Inputs) -> Contender:
    if name not in (user.label, _AGAIN):
        return baseline(name, workload, inputs)

    def run() -> Any:
        return user(*inputs.vectors, lengths=inputs.lengths, causal=workload.causal)

    return Contender(name, "kernel", run)


def _gated(contender: Contender, result: Any, workload: Workload, inputs: Inputs) -> None:
    """Raises MinibertError when some rows of z are wrong, or change after the call."""
    z = contender.z(result)
    early: Tensor = z.clone()
    found = sampled(*inputs.vectors, early, lengths=inputs.lengths, causal=workload.causal)
    if not found.ok:
        raise MinibertError(
            f"wrong: error {found.error:.2e}, allowed {found.tolerance:.2e}, in rows of this size"
        )
    if not torch.equal(early, z):
        raise MinibertError("z changed after the call had returned: the work goes on behind it")


def _spreads(
    contenders: dict[str, Contender],
    failed: dict[str, str],
    workload: Workload,
    inputs: Inputs,
    clock: Clock,
    rounds: int,
    cold: bool,
    step: Callable[[str], None],
) -> dict[str, Spread]:
    """The times of all contenders that stay right; the others go to `failed`."""
    order, shuffler = list(contenders), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    calls = {}
    for _ in range(rounds):
        shuffler.shuffle(order)
        for name in [one for one in order if one not in failed]:
            contender = contenders[name]
            step(name)
            try:
                with contender.around():
                    if name not in calls:
                        calls[name] = clock.calls(contender.run)
                    taken, result = clock.turn(
                        contender.run, inputs.refresh, calls=calls[name], cold=cold
                    )
                _gated(contender, result, workload, inputs)
                times[name] += taken
            # What fails under the clock is a row that says so.
            except Exception as error:
                failed[name] = f"right when checked, but while it was timed: {one_line(error)}"
    return {name: Spread.of(taken) for name, taken in times.items() if name not in failed}


def _rows(
    label: str,
    workload: Workload,
    spreads: dict[str, Spread],
    failed: dict[str, str],
    cold: bool,
    common: Row,
    device: torch.device,
) -> list[Row]:
    if _AGAIN in failed:
        # The same kernel: it is wrong whichever of its two turns showed it.
        failed.setdefault(label, failed[_AGAIN])
    mine = None if label in failed else spreads.get(label)
    again = spreads.get(_AGAIN)
    reached = ceilings(device, workload.dtype)
    least = least_times(workload, reached)
    bound = max(least, key=lambda name: least[name])
    rows: list[Row] = []
    for name in dict.fromkeys([*spreads, *failed]):
        if name == _AGAIN:
            continue
        row: Row = {"implementation": name, "role": "kernel" if name == label else "baseline"}
        row |= workload.fields() | {"cache": "cold" if cold else "warm"}
        if name in failed:
            rows.append(row | {"error": failed[name]} | common)
            continue
        spread = spreads[name]
        row |= {"median_ms": spread.median, "p20_ms": spread.p20, "p80_ms": spread.p80}
        row |= {"calls": spread.calls, "flop": workload.flop, "flop_formula": FLOP_FORMULA}
        row |= {"tflops": workload.flop / spread.median / 1e9}
        row |= {"bound": bound, "percent": 100 * least[bound] / spread.median}
        row |= {"least_ms": least, "ceilings": dict(reached)}
        if row["percent"] > 120:
            row["note"] = "faster than the measured ceiling: distrust the clock"
        if mine is not None:
            row["ratio"] = spread.median / mine.median
            row["noise"] = None if again is None else abs(again.median / mine.median - 1)
        rows.append(row | common)
    return rows


def _peak_bytes(contender: Contender, device: torch.device) -> int | None:
    """The most bytes of tensors a call holds beyond its inputs, by torch's own account."""
    with contender.around():
        if device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            contender.run()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated(device) - before
        # What is kept between calls counts as what a call takes.
        release()
        return _profiled_peak(contender.run)


def _profiled_peak(run: Callable[[], Any]) -> int:
    import json

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
