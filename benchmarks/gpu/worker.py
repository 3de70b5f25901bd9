"""The process that measures: it writes each row itself, and tells in another file what it begins.

A line of that file of progress is JSON: {"path": the file of rows}, {"begin": task and contender,
"limit": seconds}. It may end at any moment, by an error that leaves the device unusable or by the
hand of `benchmarks.gpu`, which starts another and tells it what this one had begun: that contender
gets a row with the reason. Started again it leaves out what has a row of the same run.
"""

import argparse
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.ahead import LIMIT, compile_ahead, processes
from benchmarks.gpu.journal import Journal, machine, path_of
from benchmarks.gpu.plan import Task, first_minutes, order, plan
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row, failure, reason

RESULTS = "benchmarks/results"
#: Exit statuses: the device cannot be used, or it can no longer be used.
UNUSABLE, LOST = 3, 4
CLOCK = "the clock"


def parser() -> argparse.ArgumentParser:
    """The options of the command; those of the worker alone are not shown."""
    found = argparse.ArgumentParser(description="Check and time the kernels on an accelerator.")
    found.add_argument("--device", default="cuda")
    found.add_argument("--output", type=Path, metavar="FOLDER", help=f"{RESULTS} unless told")
    found.add_argument("--minutes", type=float, default=9.0, help="no task is begun after")
    found.add_argument("--only", default="", metavar="REGEX", help="tasks with such a name")
    found.add_argument("--fresh", action="store_true", help="measure again what is there")
    found.add_argument(
        "--compilers",
        type=int,
        default=processes(),
        metavar="N",
        help="processes that compile the kernels first, each a core; 0: none",
    )
    found.add_argument("--quick", action="store_true", help="tiny inputs, rows in build/gpu")
    found.add_argument("--table", type=Path, metavar="FILE", help="only print the table of FILE")
    for name in ("run", "progress", "lost"):
        found.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    return found


class Worker:
    """The tasks of a run on a device that can be used."""

    def __init__(self, chosen: argparse.Namespace, device: Any) -> None:
        from benchmarks.gpu.resources import compilations

        self.chosen, self.device, self.began = chosen, device, time.monotonic()
        facts = machine(device)
        folder = chosen.output or REPOSITORY / ("build/gpu" if chosen.quick else RESULTS)
        path = path_of(folder, facts["device"], chosen.run[:10])
        self.journal = Journal(path, {**facts, "run": chosen.run})
        self.capability = facts.get("capability")
        self.compiled = compilations()
        self.tell(path=str(path))

    def tell(self, **message: object) -> None:
        """A line of the file of progress."""
        with Path(self.chosen.progress).open("a", encoding="utf-8") as lines:
            print(json.dumps(message), file=lines, flush=True)

    def write(self, task: Task, row: Row) -> None:
        """A row with its key, its part and its shape, into the file and onto the screen."""
        shape = vars(task.shape) if task.shape else {}
        key = f"{task.name} | {row['implementation']}"
        whole = {"key": key, "part": task.part, "task": task.name, **shape, **row}
        seconds = time.monotonic() - self.began
        print(f"{seconds:6.1f}s  {key:64} {said(self.journal.write(whole))}", flush=True)

    def of_this_run(self) -> set[str]:
        """Keys of the rows that this run has written, whichever worker did."""
        return {row["key"] for row in self.journal.rows if row.get("run") == self.chosen.run}

    def tasks(self) -> list[Task]:
        """What is left to do, without the contenders that have a row of this run."""
        journal = self.journal
        wanted = [
            task for task in plan(quick=self.chosen.quick) if re.search(self.chosen.only, task.name)
        ]
        if self.chosen.lost:
            self.write_lost(wanted, json.loads(self.chosen.lost))
        fresh, here = self.chosen.fresh, self.of_this_run()
        tried, done = (here, here) if fresh else (journal.tried(), journal.done() | here)
        left = order(wanted, tried, done)
        print(f"{len(left)} of {len(wanted)} tasks to do in {self.chosen.minutes:.3g} minutes")
        return [
            replace(task, skip=tuple(n for n in task.contenders if f"{task.name} | {n}" in here))
            for task in left
        ]

    def write_lost(self, tasks: list[Task], lost: Row) -> None:
        """A row for who ended the worker before; a clock that died spoils all that it timed."""
        here = self.of_this_run()
        for task in (one for one in tasks if one.name == lost["task"]):
            names = task.contenders if lost["contender"] == CLOCK else (lost["contender"],)
            for name in (one for one in names if f"{task.name} | {one}" not in here):
                row = {"implementation": name, "ok": False, "reason": lost["reason"]}
                self.write(task, row)

    def run(self) -> int:
        """The exit status: 0 when all was tried for which there was time."""
        tasks = self.tasks()
        if self.capability is not None and self.chosen.compilers > 0:
            self.compile(first_minutes(tasks, self.chosen.minutes))
        late = []
        for task in tasks:
            if task.seconds > 60 * self.chosen.minutes - (time.monotonic() - self.began):
                late.append(task.name)
            elif not self.do(task):
                return LOST
        if late:
            print(f"no time for {len(late)} tasks; run again: {', '.join(late[:8])} ...")
        return 0

    def compile(self, tasks: list[Task]) -> None:
        """Compile the kernels of these tasks beside each other, and say what that gave."""
        count, seconds = self.chosen.compilers, LIMIT * self.chosen.minutes * 60
        self.tell(begin=["", ""], limit=seconds + 60)
        major, minor = self.capability
        found = compile_ahead(tasks, (major, minor), count, seconds)
        print(
            f"{found['compiled']} kernels compiled ahead in {found['seconds']} s by {count} "
            f"processes, {found['compile_s']} s one by one; {found['failed']} did not end in time"
        )

    def do(self, task: Task) -> bool:
        """One task; False when the device can no longer be used."""
        from benchmarks.gpu import measure

        def begin(name: str) -> None:
            self.tell(begin=[task.name, name], limit=task.limit)

        try:
            for row in measure.rows(task, self.device, begin):
                self.write(task, {**row, **self.compiled()})
        except Exception as error:
            for name in (one for one in task.contenders if one not in task.skip):
                self.write(task, {"implementation": name, **failure(error)})
        try:
            measure.survive(self.device)
        except Exception as error:
            print(f"the device is lost: {error}", file=sys.stderr)
            return False
        # From here on nobody is to blame for what happens.
        self.tell(begin=["", ""], limit=60)
        return True


def said(row: Row) -> str:
    """A row as it comes, in a few words."""
    if not row["ok"]:
        return f"FAILED {row.get('reason') or row.get('worst')}"[:150]
    if "median_ms" in row:
        rate = f"  {row['tflops']:7.1f} TFLOP/s" if "tflops" in row else ""
        return f"{row['median_ms']:9.4f} ms{rate}"
    return f"{row['checks']} checks right" if "checks" in row else "done"


def main(arguments: list[str] | None = None) -> int:
    """The exit status, as `Worker.run` says; UNUSABLE where there is no such device."""
    chosen = parser().parse_args(arguments)
    if chosen.device == "cpu":
        # The dry run: Triton's interpreter, switched on before anything imports Triton.
        os.environ["TRITON_INTERPRET"] = "1"
    # A pool of compilers takes longer to start than these few kernels need.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    try:
        import torch

        device = torch.device(chosen.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"no GPU: torch {torch.__version__} sees none")
        worker = Worker(chosen, device)
    except Exception as error:
        print(f"nothing was measured: {reason(error)}. Another Python: make gpu GPU_PYTHON=...")
        return UNUSABLE
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
