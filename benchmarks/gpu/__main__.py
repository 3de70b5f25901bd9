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
"""

import argparse
import re
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu.ahead import LIMIT, compile_ahead, processes
from benchmarks.gpu.journal import Journal, path_of, read
from benchmarks.gpu.plan import Task, first_minutes, order, plan
from benchmarks.gpu.supervisor import Supervisor, Worker, WorkerError
from benchmarks.gpu.table import shown
from benchmarks.session import REPOSITORY

RESULTS = "benchmarks/results"
OURS = ("triton", "plain", "T1", "T2", "T3", "all", "backward", "backward relevance")


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when all that was measured is right."""
    chosen = _parser().parse_args(arguments)
    if chosen.table is not None:
        print(shown(read(chosen.table)))
        return 0
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    supervisor = Supervisor(
        lambda: Worker(chosen.device),
        lambda row: print(_line(journal.write(row), time.monotonic() - began), flush=True),
        seconds=chosen.minutes * 60,
    )
    try:
        facts = supervisor.ready()
    except WorkerError as error:
        print(f"nothing was measured: {error}. Another Python: make gpu GPU_PYTHON=...")
        return 1
    # Not datetime.UTC: many a GPU image has Python 3.10.
    moment = datetime.now(timezone.utc)  # noqa: UP017
    folder = chosen.output or REPOSITORY / ("build/gpu" if chosen.quick else RESULTS)
    path = path_of(folder, facts["device"], moment)
    journal = Journal(path, {**facts, "run": moment.isoformat(timespec="seconds")})
    try:
        rows = measured(supervisor, journal, chosen, facts.get("capability"))
    finally:
        supervisor.close()
        print(f"\n{shown(_of_these_sources(journal))}\n\nrows in {path}", flush=True)
    return status(rows)


def measured(
    supervisor: Supervisor, journal: Journal, chosen: Any, capability: list[int] | None
) -> list[dict[str, Any]]:
    """The rows of this run; where a GPU has that capability, its kernels are compiled first."""
    before = len(journal.rows)
    tried, done = (set(), set()) if chosen.fresh else (journal.tried(), journal.done())
    wanted = [task for task in plan(quick=chosen.quick) if re.search(chosen.only, task.name)]
    tasks = order(wanted, tried, done)
    print(f"{len(tasks)} of {len(wanted)} tasks to do in {chosen.minutes:g} minutes", flush=True)
    if capability is not None and chosen.compilers > 0:
        first = first_minutes(tasks, chosen.minutes)
        print(_compiled(first, (capability[0], capability[1]), chosen), flush=True)
    late = supervisor.run(tasks)
    if late:
        print(f"no time for {len(late)} tasks; run again: {', '.join(map(_name, late[:8]))} ...")
    return journal.rows[before:]


def _compiled(tasks: list[Task], capability: tuple[int, int], chosen: Any) -> str:
    """Compiles the kernels of these tasks beside each other, and says what that gave."""
    found = compile_ahead(tasks, capability, chosen.compilers, LIMIT * chosen.minutes * 60)
    said = f"{found['compiled']} kernels compiled ahead in {found['seconds']} s by "
    said += f"{chosen.compilers} processes, {found['compile_s']} s one by one"
    return said + (f"; {found['failed']} of them did not end in time" if found["failed"] else "")


def status(rows: list[dict[str, Any]]) -> int:
    """0 when something of ours was measured, or nothing was left to do, and nothing is wrong."""
    ours = [
        row for row in rows if row["implementation"].split()[0] in {one.split()[0] for one in OURS}
    ]
    wrong = any(row.get("wrong") for row in rows)
    return 1 if wrong or (ours and not any(row["ok"] for row in ours)) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check and time the kernels on an accelerator.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=f"{RESULTS} unless told")
    parser.add_argument("--minutes", type=float, default=9.0, help="no task is begun after")
    parser.add_argument("--only", default="", metavar="REGEX", help="tasks with such a name")
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument(
        "--compilers",
        type=int,
        default=processes(),
        metavar="N",
        help="processes that compile the kernels first, each a core; 0: none",
    )
    parser.add_argument("--quick", action="store_true", help="tiny inputs, rows in build/gpu")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print the table of FILE")
    return parser


def _of_these_sources(journal: Journal) -> list[dict[str, Any]]:
    same = ("device", "sources")
    return [
        row
        for row in journal.rows
        if all(row.get(name) == journal.stamp.get(name) for name in same)
    ]


def _line(row: dict[str, Any], seconds: float) -> str:
    """A row as it comes, in one line."""
    if not row["ok"]:
        said = f"FAILED {row.get('reason') or row.get('worst')}"[:150]
    elif "median_ms" in row:
        said = f"{row['median_ms']:9.4f} ms"
        said += f"  {row['tflops']:7.1f} TFLOP/s" if "tflops" in row else ""
    else:
        said = f"{row['checks']} checks right" if "checks" in row else "done"
    return f"{seconds:6.1f}s  {row['key']:64} {said}"


def _name(task: Task) -> str:
    return task.name


if __name__ == "__main__":
    sys.exit(main())
