"""How tasks are done: each contender built, looked at, then timed in turns; a row each.

Who is named computes: ours are the implementation "triton", called after the checks of `attend`,
the others are the baselines of `minibert bench`, with their gradients where the task goes backward.
What a contender gives is looked at by the judge of `minibert bench`, at the very size that is
timed. Times are of single calls with a cold cache.
"""

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.plan import CLOCK, KINDS_ASKED, OURS, Task
from minibert.bench.baselines import baseline
from minibert.bench.contest import Clock, Contender, peak_bytes, time_in_turns
from minibert.bench.result_rows import Row, WrongError, failure
from minibert.bench.roofline import ceilings
from minibert.kernels.call import Want, parse_want
from minibert.kernels.check.gradients import refused, sampled, sampled_gradients
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import Case, Workload, inputs_of
from minibert.kernels.registry import implementations

#: Rounds, and the calls of a turn at least; the processor's are for the dry run.
ROUNDS, FEWEST = {"cuda": 8, "cpu": 2}, {"cuda": 3, "cpu": 1}
#: Keys in a cell of the matrix: more than one tile of every kernel, and no multiple of one.
POSITIONS = 300
#: A head of more tokens has no float64 gradients here: they would take gigabytes.
LARGEST_GRADIENT = 4096


def messages(task: Task, device: torch.device) -> Iterator[str | Row]:
    """The rows of a task, each with its contender. What fails is a row with the reason.

    Before anything of a contender runs comes its name, so that one that ends the process is known.
    """
    if task.cell is None and task.work is not None:
        yield from _contest(task, task.work, device)
        return
    for name in task.contenders:
        yield name
        try:
            row = cell(name, *task.cell, device) if task.cell else _device(device)
            yield {"implementation": name, "ok": True} | row
        # A failure is a row, and the next contender is still of interest.
        except Exception as error:
            yield {"implementation": name, **failure(error)}
            survive(device)


def survive(device: torch.device) -> None:
    """Give memory back after a failure; raises when the device can no longer be used."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()


def _device(device: torch.device) -> Row:
    """What the device can do at most, measured."""
    return {"ceilings": dict(ceilings(device, "bfloat16"))}


def wanted(tier: str, n_keys: int) -> Want:
    """The statistics of one of OURS."""
    first = ("row_max", "max_prob", "entropy", "offset_mass", ("key_mass", (0, n_keys - 1)))
    sums = ("received", ("map", min(64, n_keys)))
    names: tuple[Any, ...] = {
        "plain": (),
        "T1": first,
        "T2": (*first, "argmax"),
        "T3": (*first, *sums),
        "all": (*first, "argmax", *sums),
    }[tier]
    return parse_want(names, n_keys=n_keys)


def build(name: str, work: Workload, problem: Problem) -> Contender:
    """The contender of this name. Raises MinibertError when it cannot run here."""
    if name in OURS:
        return baseline("triton", work, replace(problem, want=wanted(name, problem.n_keys)))
    if name == "eager":
        problem = replace(problem, want=wanted("T1", problem.n_keys))
    return baseline(name, work, problem)


def _contest(task: Task, work: Workload, device: torch.device) -> Iterator[str | Row]:
    problem, clock = inputs_of(work, device), Clock(device)
    ready: dict[str, tuple[Contender, Row]] = {}
    for name in task.contenders:
        yield name
        try:
            one = build(name, work, problem)
            ready[name] = one, _looked_at(one, work, problem, clock)
        # Whatever a contender raises is a finding about it.
        except Exception as error:
            yield {"implementation": name, **failure(error)}
            survive(device)
    yield CLOCK
    kind, runs = device.type, {name: one for name, (one, _) in ready.items()}
    timed = time_in_turns(runs, clock, rounds=ROUNDS[kind], fewest=FEWEST[kind], cold=True)
    base = timed.timings.get(task.contenders[0])
    for name, (_, row) in ready.items():
        row = {"implementation": name, "ok": True, **row, **timed.failures.get(name, {})}
        if (mine := timed.timings.get(name)) is not None:
            row |= mine.fields() | {"noise": round(mine.noise, 4), "flop": work.flop}
            row["tflops"] = round(work.flop / mine.median / 1e9, 3)
            row |= {} if base is None else mine.ratios(base)
        yield row


def _looked_at(one: Contender, work: Workload, problem: Problem, clock: Clock) -> Row:
    """The fields of a row before the clock. Raises WrongError when what it gives is not right."""
    with one.around():
        start = time.perf_counter()
        one.run()
        clock.settle()
        row: Row = {"first_call_s": round(time.perf_counter() - start, 3), "clock": clock.name}
        with watched() as kernels:
            result: Any = one.run()
        clock.settle()
    found = result if isinstance(result, dict) else dict(one.outputs(result))
    looked = sampled(problem, found)
    if work.backward and work.tokens <= LARGEST_GRADIENT:
        looked |= sampled_gradients(problem, found)
    for name, (error, allowed) in looked.items():
        if not error <= allowed:
            raise WrongError(f"error of {name} {error:.2e}, allowed {allowed:.2e}, at this size")
    if "received" in found:
        # Each row of a head sums to 1, and so do all its keys to the number of rows.
        total = float(found["received"].double().sum(-1).sub(work.n_queries).abs().max())
        if not total <= 1e-3 * work.n_queries:
            raise WrongError(f"the keys of a head receive {total:.3g} more or less than its rows")
    if clock.device.type == "cuda":
        row["peak_bytes"] = peak_bytes(one.run, clock.device, one.around)
    return row | {"errors": {name: error for name, (error, _) in looked.items()}} | kernels()


def drawn(kind: str, d_head: int, dtype: str, device: torch.device, *, backward: bool) -> Problem:
    """The inputs of a cell, as `cell` asks about them."""
    case = Case.of(kind, replace(KINDS_ASKED[kind], backward=backward), POSITIONS)
    wants = () if backward else implementations()["triton"].wants
    kept: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": device, "d_head": d_head}
    return case.draw(wants=wants, seed=0, **kept)


def cell(kind: str, d_head: int, dtype: str, device: torch.device) -> Row:
    """Fields of a row: how many outputs were compared, the worst one, what was not covered."""
    work = KINDS_ASKED[kind]
    with watched() as kernels:
        report = check(
            "triton",
            dtypes=[getattr(torch, dtype)],
            device=device,
            sizes=[POSITIONS if device.type == "cuda" else 17],
            input_scales=[1.0],
            d_head=d_head,
            kinds={kind: work},
            backward=refused(work) is None,
        )
    worst = max(report.findings, key=lambda one: one.error / max(one.tolerance, 1e-300))
    row: Row = {"ok": report.ok, "wrong": not report.ok, "checks": len(report.findings)}
    row |= {"failures": len(report.failures), "worst": str(worst)[:400]}
    # An exception counts as an infinite error, which JSON cannot say.
    row["worst_error"] = worst.error if math.isfinite(worst.error) else None
    row |= {"causes": list(report.causes)[:3], "not_covered": list(report.skipped)}
    return row | kernels()


@contextlib.contextmanager
def watched() -> Iterator[Any]:
    """Gives a function: the field `kernels`, what each that was started in here takes."""
    if find_spec("triton") is None:
        yield dict
        return
    from triton.runtime.jit import JITFunction

    started: dict[int, Any] = {}
    run = JITFunction.run

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        kernel = run(self, *arguments, **options)
        started[id(kernel)] = kernel
        return kernel

    def fields(kernel: Any) -> Row:
        told = kernel.metadata
        # The driver counts words of local memory.
        taken = {"registers": kernel.n_regs, "spilled_bytes": 4 * kernel.n_spills}
        return {"name": told.name, **taken, "shared_bytes": told.shared, "warps": told.num_warps}

    with patch.object(JITFunction, "run", noted):
        yield lambda: {"kernels": [fields(x) for x in started.values() if hasattr(x, "n_regs")]}
