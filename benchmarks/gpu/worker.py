"""The process that measures, and the end of the pipe to it that outlives it."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.plan import Task
from benchmarks.gpu.rows import machine
from minibert.bench.result_rows import Row, reason

#: Seconds in which a worker has to begin.
START_LIMIT = 90.0


Target = Callable[[Any, str], None]


class LostError(Exception):
    """A worker has ended, or was ended; the message says how."""


class Worker:
    """A process with the device, which runs `target`. Raises LostError where there is none."""

    def __init__(self, device: str, stop: float, target: Target | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._stop = stop
        self._process = context.Process(target=target or serve, args=(theirs, device), daemon=True)
        self._process.start()
        theirs.close()
        #: What it says of the machine.
        self.facts: Row = self._next(START_LIMIT)
        if "device" not in self.facts:
            raise LostError(self.facts["reason"])

    def messages(self, task: Task) -> Iterator[str | Row]:
        """Its rows, and the name of each contender that it begins. Raises LostError."""
        self._pipe.send(task)
        while (message := self._next(task.limit)) is not None:
            yield message

    def _next(self, limit: float) -> Any:
        until = min(time.monotonic() + limit, self._stop)
        try:
            if self._pipe.poll(max(0.0, until - time.monotonic())):
                return self._pipe.recv()
            self.close()
            raise LostError(f"not done in {limit:g} s, or the time was over")
        except (EOFError, OSError):
            self._process.join(5)
            status = self._process.exitcode
            self.close()
            raise LostError(f"the process ended with status {status}") from None

    def close(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join(5)


def serve(pipe: Any, device: str) -> None:
    """Answer tasks until the other end hangs up."""
    os.setsid()
    if device == "cpu":
        # The dry run: Triton's interpreter, switched on before anything imports Triton.
        os.environ["TRITON_INTERPRET"] = "1"
    # A pool of compilers takes longer to start than these few kernels need.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        import torch

        place = torch.device(device)
        if place.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"no GPU: torch {torch.__version__} sees none")
        from benchmarks.gpu import measure

        pipe.send(machine(place))
    except Exception as error:
        pipe.send({"reason": reason(error)})
        return
    with contextlib.suppress(EOFError):
        while True:
            for message in measure.messages(pipe.recv(), place):
                pipe.send(message)
            measure.survive(place)
            pipe.send(None)
