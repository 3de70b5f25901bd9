"""What `make gpu` would launch, specialised, compiled and looked at without a GPU.

    python -m benchmarks.gpu.rehearsal [--only REGEX] [--minutes 9] [--no-compile]
                                       [--capability 9.0] [--budgets check|write]

Each contender of ours is built and called on the fake device of `fake_device.py`: a wrong argument,
a constant that is missing, a tile that no SM holds, a spill is found here; and what no CUDA graph
could record: copies between host and device, and whatever waits for the device (CUDA C++
programming guide, "Prohibited and unhandled operations" of stream capture). A line of JSON each;
the last line counts.

With `--budgets check` a few calls that stand for all must take no more registers than
`budgets.json` says for this version of Triton, or for the one before where it has none, and spill
nothing; `--budgets write` writes down what they take.

On a machine with a GPU several of these, `compile_ahead`, share the calls of a run and compile the
kernels into Triton's cache on the host's cores, before the GPU is asked for one. What decides the
name of a kernel in the cache is Triton, its ptxas, the sources, the types, constants and alignments
of the arguments, and the compute capability; of all these only the last is the GPU's.
"""

import argparse
import contextlib
import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.fake_device import CAPABILITY, FakeDevice, recorded_functions, run_backward
from benchmarks.gpu.measure import drawn, wanted
from benchmarks.gpu.plan import KINDS_ASKED, OURS, Task, first_minutes, plan
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row, reason
from minibert.errors import AttentionError
from minibert.kernels.check.gradients import refused
from minibert.kernels.check.parity import bound
from minibert.kernels.check.problem import Problem
from minibert.kernels.check.workload import inputs_of
from minibert.kernels.registry import implementations

#: What looks at numbers: .item(), .tolist(), bool(), and shapes that depend on numbers.
LOOKS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::repeat_interleave",
        "aten::_unique2",
        "aten::unique_dim",
    }
)


class CaptureError(RuntimeError):
    """A call does what no CUDA graph can record."""


class _Guard(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        given = _devices((args, kwargs))
        if "cuda" in given and name in LOOKS:
            raise CaptureError(f"{name} looks at numbers that are on the GPU, so the host waits")
        if name == "aten::index" and "cuda" in given and _by_mask(args):
            raise CaptureError(
                "indexing by a mask on the GPU: how many there are, the host must wait for"
            )
        result = func(*args, **(kwargs or {}))
        if name in ("aten::_to_copy", "aten::copy_", "aten::copy"):
            whole = given | _devices(result)
            if len(whole) > 1:
                raise CaptureError(f"{name} copies between {' and '.join(sorted(whole))}")
        return result


def _devices(tree: Any) -> set[str]:
    return {one.device.type for one in tree_leaves(tree) if isinstance(one, Tensor)}


def _by_mask(args: Any) -> bool:
    return any(one.dtype in (torch.bool, torch.uint8) for one in args[1] if one is not None)


def _waits(*_: Any, **__: Any) -> None:
    raise CaptureError("the host waits for the GPU")


@contextlib.contextmanager
def capture_guard() -> Iterator[None]:
    """In here an operation that a CUDA graph cannot record raises CaptureError."""
    with contextlib.ExitStack() as stack:
        for target in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
            stack.enter_context(patch.object(target, "synchronize", _waits, create=True))
        stack.enter_context(_Guard())
        yield


def check_recordable(run: Callable[[], Any]) -> None:
    """Raises CaptureError, with the line, unless a graph could record `run` once it has run.

    Its tensors are of the fake device, which has no numbers to look at in the first run either.
    """
    try:
        run()
        with capture_guard():
            run()
    except (CaptureError, DataDependentOutputException, DynamicOutputShapeException) as error:
        said = str(error) if isinstance(error, CaptureError) else f"looks at numbers ({error})"
        raise CaptureError(f"{_line_of(error)}: {said}") from error


def _line_of(error: BaseException) -> str:
    """The innermost line of the kernels that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "kernels" in Path(one.filename).parts] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


GPU = torch.device("cuda", 0)


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 when something that `make gpu` launches would fail."""
    chosen = _parser().parse_args(arguments)
    only = STATIC if chosen.budgets else chosen.only
    wanted = [task for task in plan() if re.search(only, task.name)]
    if chosen.minutes is not None:
        wanted = first_minutes(wanted, chosen.minutes)
    if chosen.share:
        # What another process is told, see `compile_ahead`.
        place, of = map(int, chosen.share.split("/"))
        everything = [pair for task in pickle.load(sys.stdin.buffer) for pair in calls(task)]
        return _look(everything[place::of], chosen)
    return _look([pair for task in wanted for pair in calls(task)], chosen)


def _look(everything: list["Asked"], chosen: argparse.Namespace) -> int:
    began, rows = time.monotonic(), []
    fake = FakeDevice(chosen.capability)
    for row in rehearse(everything, fake, compiles=chosen.compile):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if chosen.budgets == "write":
        _write_budgets(rows)
    above = above_budget(rows, _version()) if chosen.budgets == "check" else []
    for one in above:
        print(json.dumps({"ok": False, "reason": one}), flush=True)
    driver, failed = fake.driver, sum(not row["ok"] for row in rows) + len(above)
    whole = {
        "calls": len(rows),
        "failed": failed,
        "refused": sum("refused" in row for row in rows),
        "spilled": sum(bool(row.get("spilled")) for row in rows),
        "kernels": len(driver.loaded),
        "compiled": len(driver.seconds),
        "compile_seconds": round(sum(driver.seconds), 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(whole))
    return 1 if failed or not rows else 0


#: A forward, its statistics and a backward: 10 kernels.
STATIC = "^(forward|statistics|backward) B4 H32 N4096 D64 causal"
BUDGETS = Path(__file__).with_name("budgets.json")


def _version() -> tuple[int, ...]:
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2]))


def _taken(rows: list[Row]) -> dict[str, int]:
    """The registers of each kernel."""
    return {
        f"{row['key']} | {one['name']}": one["registers"]
        for row in rows
        for one in row.get("kernels", ())
    }


def _write_budgets(rows: list[Row]) -> None:
    known = json.loads(BUDGETS.read_text(encoding="utf-8")) if BUDGETS.exists() else {}
    known[".".join(map(str, _version()))] = _taken(rows)
    text = json.dumps(known, indent=1, sort_keys=True)
    BUDGETS.write_text(f"{text}\n", encoding="utf-8")


def above_budget(rows: list[Row], version: tuple[int, ...]) -> list[str]:
    """What takes more than is written down for this version of Triton, or was not compiled."""
    known = {
        tuple(map(int, name.split("."))): one
        for name, one in json.loads(BUDGETS.read_text(encoding="utf-8")).items()
    }
    budget = known[max(one for one in known if one <= version)]
    taken = _taken(rows)
    found = [
        f"{row['key']} spills in {', '.join(row['spilled'])}" for row in rows if row.get("spilled")
    ]
    found += [f"{name} was not compiled" for name in budget.keys() - taken.keys()]
    return found + [
        f"{name} takes {taken[name]} registers, at most {most} with this Triton"
        for name, most in budget.items()
        if taken.get(name, 0) > most
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Rehearse `make gpu` on a machine without a GPU.")
    parser.add_argument("--only", default="", metavar="REGEX", help="tasks with such a name")
    parser.add_argument("--minutes", type=float, help="only what begins in so many minutes")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument(
        "--capability",
        type=lambda text: tuple(map(int, text.split("."))),
        default=CAPABILITY,
        help="of the GPU: 8.0 Ampere, 9.0 Hopper, 10.0 Blackwell",
    )
    parser.add_argument("--budgets", choices=("check", "write"))
    parser.add_argument("--share", help=argparse.SUPPRESS)
    return parser


def processes() -> int:
    """How many may compile beside each other on this machine: the cores that are ours, but two."""
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, ours - 2)


def compile_ahead(
    tasks: Sequence[Task], capability: Sequence[int], count: int, seconds: float
) -> str:
    """Compile the kernels of these tasks by `count` processes; what came of it in so many seconds.

    What could not be compiled here is compiled by the worker, as without all this.
    """
    began, stop = time.monotonic(), time.monotonic() + seconds
    command = [sys.executable, "-m", "benchmarks.gpu.rehearsal"]
    command += ["--capability", ".".join(map(str, capability))]
    # One core each, no GPU, which the worker has, and no interpreter, which compiles nothing.
    kept = {name: one for name, one in os.environ.items() if name != "TRITON_INTERPRET"}
    started = [
        subprocess.Popen(
            [*command, "--share", f"{place}/{count}"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        for place in range(count)
    ]
    late = 0
    for process in started:
        # One that ended at once has no pipe any more.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(list(tasks)))  # type: ignore[union-attr]
            process.stdin.close()  # type: ignore[union-attr]
    for process in started:
        try:
            process.wait(max(0.01, stop - time.monotonic()))
        except subprocess.TimeoutExpired:
            late += 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    spent = time.monotonic() - began
    return f"compiled ahead for {spent:.0f} s by {count} processes; {late} did not end in time"


#: The key of a row, what is called, and the call.
Asked = tuple[str, str, Callable[[], Any]]


def rehearse(
    everything: Iterable[Asked], fake: FakeDevice, *, compiles: bool = True
) -> Iterator[Row]:
    """A row for each call of ours: ok, or the reason why it would fail on a GPU."""
    with fake.entered(compiles=compiles):
        for key, what, call in everything:
            yield {"key": key, "call": what, **_tried(call, fake)}


def _tried(call: Callable[[], Any], fake: FakeDevice) -> Row:
    """What comes of a call: the kernels it loaded, or why it fails."""
    before = len(fake.driver.loaded)
    try:
        # A candidate that does not run is left out with a warning.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Of Python and of other packages: nothing that a kernel does.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            call()
    except AttentionError as error:
        return {"ok": True, "refused": reason(error)}
    # Whatever it raises would be raised on the GPU.
    except Exception as error:
        return {"ok": False, "reason": reason(error)}
    loaded = fake.driver.loaded[before:]
    spilled = [one.name for one in loaded if one.spilled_bytes]
    return {"ok": True, "kernels": [vars(one) for one in loaded], "spilled": spilled}


def calls(task: Task) -> Iterator[Asked]:
    """The calls of the contenders whose kernels are ours: forward, and backward where there is."""
    for name, key in zip(task.contenders, task.row_keys(), strict=True):
        if task.cell is not None:
            make: Any = functools.partial(drawn, name, *task.cell, GPU)
            yield key, "forward", functools.partial(_forward, make)
            if refused(KINDS_ASKED[name]) is None:
                yield key, "backward", functools.partial(_backward, make)
        elif task.work is not None and name in OURS:
            make = functools.partial(_of_task, task, name)
            what, run = ("backward", _backward) if task.work.backward else ("forward", _forward)
            yield key, what, functools.partial(run, make)


def _of_task(task: Task, name: str, *, backward: bool) -> Problem:
    assert task.work is not None
    problem = inputs_of(replace(task.work, backward=backward), GPU)
    return replace(problem, want=wanted(name, problem.n_keys))


def _forward(make: Callable[..., Problem]) -> None:
    check_recordable(bound(implementations()["triton"], make(backward=False)))


def _backward(make: Callable[..., Problem]) -> None:
    problem = make(backward=True)
    for one in (problem.query, problem.key, problem.value):
        one.requires_grad_()
    with recorded_functions() as kept:
        bound(implementations()["triton"], problem)()
    if not kept:
        raise RuntimeError("no autograd function was applied, so there is no backward")
    for function in kept:
        check_recordable(functools.partial(run_backward, function))


if __name__ == "__main__":
    sys.exit(main())
