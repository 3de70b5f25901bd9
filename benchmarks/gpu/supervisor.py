"""Hands tasks to a worker, writes down what comes, and outlives it.

A worker that ends, or that says nothing for as long as its task may take, is replaced; the
contender it had begun gets a row with the reason and is left out when the task is tried again. One
that ends before it has begun anything is replaced, and nobody is blamed. No task is begun for which
there is no time left.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gpu.plan import Task, fits
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row

Record = Callable[[Row], Any]
START_LIMIT = 90.0
# How often one task may take the worker with it.
MOST_DEATHS = 2


class WorkerError(Exception):
    """The worker cannot be used at all."""


class Worker:
    """The process, and a queue of what it says; None in the queue: it has ended."""

    def __init__(self, device: str, command: Sequence[str] | None = None) -> None:
        command = command or [sys.executable, "-m", "benchmarks.gpu.worker", device]
        self.process: Any = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: queue.Queue[Row | None] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            try:
                self.said.put(json.loads(line))
            except ValueError:
                continue
        self.said.put(None)

    def hear(self, seconds: float) -> Row | None:
        """The next thing it says; None when it has ended. Raises queue.Empty past the time."""
        return self.said.get(timeout=max(0.01, seconds))

    def give(self, task: Task) -> None:
        """Hand a task over; a worker that has ended is noticed when it is heard."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            print(json.dumps(task.message()), file=self.process.stdin, flush=True)

    def end(self) -> None:
        """Stop it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # What it was told last may still lie in the pipe.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.listener.join(1)
        self.process.stdout.close()


class Supervisor:
    """Runs tasks until they are done or the time is over."""

    def __init__(
        self,
        start: Callable[[], Worker],
        record: Record,
        *,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.start, self.record, self.now = start, record, now
        self.stop = now() + seconds
        self.worker: Worker | None = None

    def left(self) -> float:
        """Seconds until the time is over."""
        return self.stop - self.now()

    def ready(self) -> Row:
        """Facts about the machine, from a worker that is running. Raises WorkerError."""
        self.worker = self.start()
        try:
            said = self.worker.hear(START_LIMIT)
        except queue.Empty:
            said = {"unusable": f"it said nothing for {START_LIMIT:g} s"}
        if said is None or "ready" not in said:
            self.close()
            raise WorkerError((said or {}).get("unusable", "it ended before it was ready"))
        return dict(said["ready"])

    def run(self, tasks: Sequence[Task]) -> list[Task]:
        """Those for which there was no time."""
        late = []
        for task in tasks:
            if not fits(task, self.left()):
                late.append(task)
                continue
            self.do(task)
        return late

    def do(self, task: Task) -> None:
        """One task, tried again without the contender that ended the worker."""
        lost: set[str] = set()
        for attempt in range(MOST_DEATHS + 1):
            names = [name for name in task.contenders if name not in lost]
            if not names or self.left() <= 0:
                return
            without = Task(**{**vars(task), "skip": (*task.skip, *sorted(lost))})
            told, begun, reason = self._attempt(without)
            if reason is None:
                return
            if not told and begun is None and attempt < MOST_DEATHS:
                # It died of the task before, or at its start: none of these is to blame.
                continue
            # What was already written stays; a clock that died spoils all that were to be timed.
            guilty = {begun} if begun in names else set(names) - told
            for name in sorted(guilty - told):
                self.record(row_of(task, {"implementation": name, "ok": False, "reason": reason}))
            lost |= guilty | told

    def _attempt(self, task: Task) -> tuple[set[str], str | None, str | None]:
        """Contenders with a row, the one that had begun, and why the worker is gone, or None."""
        told: set[str] = set()
        begun = None
        try:
            if self.worker is None:
                self.ready()
        except WorkerError as error:
            return told, begun, f"no worker: {error}"
        assert self.worker is not None
        self.worker.give(task)
        stop = min(self.now() + task.limit, self.stop)
        while True:
            try:
                said = self.worker.hear(stop - self.now())
            except queue.Empty:
                self.close()
                return told, begun, f"not done in {task.limit:g} s, or the time was over"
            if said is None:
                status = self.worker.process.wait()
                self.close()
                return told, begun, f"the process ended with status {status}"
            if "row" in said:
                told.add(said["row"]["implementation"])
                self.record(row_of(task, said["row"]))
            elif "begin" in said:
                begun = said["begin"]
            elif "end" in said:
                return told, begun, None

    def close(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.end()
            self.worker = None


def row_of(task: Task, row: Row) -> Row:
    """A row with its key, its part and its shape."""
    shape = vars(task.shape) if task.shape else {}
    key = f"{task.name} | {row['implementation']}"
    return {"key": key, "part": task.part, "task": task.name, **shape, **row}
