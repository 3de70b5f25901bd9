"""The kernels of a run, compiled on the host's other cores before the GPU is asked for one.

    python -m benchmarks.gpu.ahead PLACE OF CAPABILITY CLAIMS    tasks on standard input

The worker launches one kernel after the other, and compiling them one by one takes most of nine
minutes. Each of these processes goes through the same calls on the fake device of `fake_device.py`
and compiles, into Triton's cache, what no other has claimed; the worker then finds it there. What
decides the name of a kernel in the cache is Triton, its ptxas, the sources, the types, constants
and alignments of the arguments, and the compute capability; of all these only the last is the
GPU's. A kernel that could not be compiled here is compiled by the worker, as without all this.
"""

import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu.plan import Task
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row

#: The part of the run's time that may go by before the GPU's first task.
LIMIT = 0.25
#: For the worker, and for the supervisor and the system.
_LEFT_FREE = 2
Calls = list[tuple[str, Callable[[], Any]]]


def processes() -> int:
    """How many compile beside each other on this machine: the cores that are ours, but two."""
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, ours - _LEFT_FREE)


def compile_ahead(
    tasks: Sequence[Task], capability: tuple[int, int], count: int, seconds: float
) -> Row:
    """What `count` processes compiled of these tasks in so many seconds, summed; then they end.

    `failed` counts those that did not come to their end by themselves.
    """
    began, stop = time.monotonic(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as claims:
        told = pickle.dumps(list(tasks))
        started = [_started(place, count, capability, claims) for place in range(count)]
        for process in started:
            # One that ended at once says so below.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(told)
        found: list[Row] = []
        for place, process in enumerate(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, stop - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            found.append(_last(Path(claims) / f"said-{place}"))
    names = ("compiled", "hits", "compile_s")
    whole = {name: round(sum(one.get(name, 0) for one in found), 1) for name in names}
    failed = sum(not one.get("ended") for one in found)
    return {**whole, "failed": failed, "seconds": round(time.monotonic() - began, 1)}


def _started(place: int, count: int, capability: tuple[int, int], claims: str) -> Any:
    """A process, which writes what it says beside the claims."""
    numbers = (str(place), str(count), ".".join(map(str, capability)), claims)
    with (Path(claims) / f"said-{place}").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.ahead", *numbers],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )


def _environment() -> dict[str, str]:
    """One core each, no GPU, which the worker has, and no interpreter, which compiles nothing."""
    kept = {name: one for name, one in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _last(said: Path) -> Row:
    """What it said last, whenever it was ended."""
    lines = said.read_text(encoding="utf-8").splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """One of the processes; prints what it has compiled after each kernel, as one may be ended."""
    place, count, capability, claims = arguments or sys.argv[1:]
    with contextlib.suppress(OSError):
        os.nice(10)
    from benchmarks.gpu.fake_device import FakeDevice
    from benchmarks.gpu.rehearsal import calls

    major, minor = map(int, capability.split("."))
    fake = FakeDevice((major, minor))
    found: Row = {"compiled": 0, "hits": 0, "compile_s": 0.0}

    def listener(**told: Any) -> None:
        found["hits" if told["cache_hit"] else "compiled"] += 1
        if not told["cache_hit"]:
            found["compile_s"] = round(found["compile_s"] + told["times"].total / 1e6, 2)
        print(json.dumps(found), flush=True)

    tasks = pickle.load(sys.stdin.buffer)
    fake.driver.compiled = listener  # type: ignore[method-assign]
    fake.driver.load_binary = _not_loaded  # type: ignore[method-assign]
    fake.driver.launcher_cls = _launcher  # type: ignore[method-assign]
    with fake.entered(), claimed(Path(claims)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        everything = [one for task in tasks for n in task.contenders for one in calls(task, n)]
        for _, call in in_turn(everything, int(place), int(count)):
            # What fails here fails there, where its row says why.
            with contextlib.suppress(Exception):
                call()
    print(json.dumps({**found, "ended": True}))
    return 0


def in_turn(everything: Calls, place: int, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each `count`-th call from that place, then those of the next place, until all are done."""
    for step in range(count):
        yield from everything[(place + step) % count :: count]


@contextlib.contextmanager
def claimed(claims: Path) -> Iterator[None]:
    """In here a kernel is compiled when no other process has claimed it in that folder."""
    from triton.runtime.jit import JITFunction

    from benchmarks.gpu.fake_device import not_compiled

    compiled = JITFunction._do_compile

    def compiled_once(function: Any, key: Any, *rest: Any, **options: Any) -> Any:
        name = hashlib.sha256(f"{function.cache_key} {key}".encode()).hexdigest()
        try:
            os.close(os.open(claims / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return not_compiled(function)
        return compiled(function, key, *rest, **options)

    with patch.object(JITFunction, "_do_compile", compiled_once):
        yield


def _not_loaded(*_: Any) -> tuple[Any, Any, int, int, int]:
    return None, None, 0, 0, 1024


def _launcher(source: Any, metadata: Any) -> Any:
    """Starts nothing. What the real one compiles is compiled: some versions of Triton make C."""
    with contextlib.suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(source, metadata)
    return lambda *_: None


if __name__ == "__main__":
    sys.exit(main())
