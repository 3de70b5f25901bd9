"""One command for a GPU machine: rightness, speed beside the best there is, memory.

    python3 -m benchmarks.gpu [--minutes 9] [--output FOLDER] [--only REGEX] [--fresh]
    python3 -m benchmarks.gpu --device cpu --quick     every line of it, on tiny inputs
    python3 -m benchmarks.gpu --table FILE             the table of rows that are already there
    python3 -m benchmarks.gpu.rehearsal --minutes 9    what it launches, compiled without a GPU

Needs torch, triton, numpy and this checkout, nothing installed. Each result is a line of JSON in
`<output>/<accelerator>-<date>.jsonl` as soon as it is known, the most important first; what fails
is a row with the reason. Run again it goes on where it stopped, and tries what failed once more.
The exit status is 1 when a result is wrong, when nothing of ours was measured, and when there is
no GPU; not when a baseline cannot run or time is over.

A worker measures; this process keeps the rows. A worker that ends, or that does not get on for as
long as its task may take, costs the contender it had begun, and is replaced by another.
"""

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.gpu.plan import CLOCK, KINDS_ASKED, OURS, Task, first_minutes, order, plan
from benchmarks.gpu.rehearsal import compile_ahead, processes
from benchmarks.gpu.rows import Journal, path_of, read, shown
from benchmarks.gpu.worker import LostError, Worker
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row

RESULTS = "benchmarks/results"
#: The part of the run's time that compiling ahead may take.
AHEAD = 0.25


class Run:
    """The tasks of a run, and where their rows go."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        """Start a worker. Raises LostError where the device cannot be used."""
        self.chosen, self.began = chosen, time.monotonic()
        self.stop = self.began + 60 * chosen.minutes
        self.worker = Worker(chosen.device, self.stop)
        folder = chosen.output or REPOSITORY / ("build/gpu" if chosen.quick else RESULTS)
        # Not datetime.UTC: many a GPU image has Python 3.10.
        run = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
        path = path_of(folder, self.worker.facts["device"], run[:10])
        self.journal = Journal(path, {**self.worker.facts, "run": run})

    def all(self) -> None:
        """Do what there is time for."""
        tasks = [one for one in plan(quick=self.chosen.quick) if wanted(one, self.chosen.only)]
        tried, done = self.journal.tried(), self.journal.done()
        left = tasks if self.chosen.fresh else order(tasks, tried, done)
        print(f"{len(left)} of {len(tasks)} tasks to do in {self.chosen.minutes:.3g} minutes")
        if (capability := self.worker.facts.get("capability")) and self.chosen.compilers:
            first = first_minutes(left, self.chosen.minutes)
            seconds = AHEAD * 60 * self.chosen.minutes
            print(compile_ahead(first, capability, self.chosen.compilers, seconds))
        late = []
        for task in left:
            if task.seconds > self.stop - time.monotonic():
                late.append(task.name)
                continue
            for row in self.rows(task):
                self.write(task, row)
        if late:
            print(f"no time for {len(late)} tasks; run again: {', '.join(late[:8])} ...")

    def rows(self, task: Task) -> Iterator[Row]:
        """A row for each contender of a task, whatever becomes of the worker."""
        left = list(task.contenders)
        while left:
            begun = ""
            try:
                for message in self.worker.messages(replace(task, contenders=tuple(left))):
                    if isinstance(message, str):
                        begun = message
                    else:
                        left.remove(message["implementation"])
                        yield message
                return
            except LostError as error:
                # A clock that dies spoils all that it timed; before a contender that is the next.
                lost = left[:] if begun == CLOCK else [begun] if begun in left else left[:1]
                for name in lost:
                    left.remove(name)
                    yield {"implementation": name, "ok": False, "reason": str(error)}
                if time.monotonic() > self.stop:
                    return
                self.worker = Worker(self.chosen.device, self.stop)

    def write(self, task: Task, row: Row) -> None:
        """A row with its key, its part and its workload, into the file and onto the screen."""
        work = task.work.fields() if task.work else {}
        key = f"{task.name} | {row['implementation']}"
        whole = {"key": key, "part": task.part, "task": task.name, **work, **row}
        seconds = time.monotonic() - self.began
        print(f"{seconds:6.1f}s  {key:64} {said(self.journal.write(whole))}", flush=True)


def wanted(task: Task, only: str) -> bool:
    """Whether the name of a task matches."""
    return re.search(only, task.name) is not None


def said(row: Row) -> str:
    """A row as it comes, in a few words."""
    if not row["ok"]:
        return f"FAILED {row.get('reason') or row.get('worst')}"[:150]
    if "median_ms" in row:
        return f"{row['median_ms']:9.4f} ms  {row['tflops']:7.1f} TFLOP/s"
    return f"{row['checks']} checks right" if "checks" in row else "done"


def status(rows: list[Row]) -> int:
    """0 when something of ours was measured, or nothing was left to do, and nothing is wrong."""
    ours = [row for row in rows if row["implementation"] in (*OURS, *KINDS_ASKED)]
    wrong = any(row.get("wrong") for row in rows)
    return 1 if wrong or (ours and not any(row["ok"] for row in ours)) else 0


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    found = argparse.ArgumentParser(description="Check and time the kernels on an accelerator.")
    found.add_argument("--device", default="cuda")
    found.add_argument("--output", type=Path, metavar="FOLDER", help=f"{RESULTS} unless told")
    found.add_argument("--minutes", type=float, default=9.0, help="no task is begun after")
    found.add_argument("--only", default="", metavar="REGEX", help="tasks with such a name")
    found.add_argument("--fresh", action="store_true", help="measure again what is there")
    told = "processes that compile the kernels first, each a core; 0: none"
    found.add_argument("--compilers", type=int, default=processes(), metavar="N", help=told)
    found.add_argument("--quick", action="store_true", help="tiny inputs, rows in build/gpu")
    found.add_argument("--table", type=Path, metavar="FILE", help="only print the table of FILE")
    return found


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when all that was measured is right."""
    chosen = parser().parse_args(arguments)
    if chosen.table is not None:
        print(shown(read(chosen.table)))
        return 0
    try:
        run = Run(chosen)
        run.all()
    except LostError as error:
        print(f"the device cannot be used: {error}. Another Python: make gpu GPU_PYTHON=...")
        return 1
    finally:
        for process in multiprocessing.active_children():
            process.kill()
    same = run.journal.of_these_sources()
    print(f"\n{shown(same)}\n\nrows in {run.journal.path}", flush=True)
    return status([row for row in same if row["run"] == run.journal.stamp["run"]])


if __name__ == "__main__":
    sys.exit(main())
