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

A worker measures and writes; here it is watched. One that ends, or that does not get on for as long
as its task may take, is replaced by another. What it had begun is told to that one.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import read
from benchmarks.gpu.table import shown
from benchmarks.gpu.worker import LOST, UNUSABLE, parser
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import Row

OURS = ("triton", "plain", "T1", "T2", "T3", "all", "backward")
#: Seconds to its first line of progress, and how often one may end in a row without any.
START_LIMIT, MOST_DEATHS = 90.0, 2
COMMAND = (sys.executable, "-u", "-m", "benchmarks.gpu.worker")


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 when all that was measured is right."""
    given = sys.argv[1:] if arguments is None else arguments
    chosen = parser().parse_args(given)
    if chosen.table is not None:
        print(shown(read(chosen.table)))
        return 0
    # Not datetime.UTC: many a GPU image has Python 3.10.
    run = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
    path = watched([*COMMAND, *given, "--run", run], chosen.minutes)
    if path is None:
        return 1
    rows = read(path)
    last = rows[-1] if rows else {}
    same = [one for one in rows if all(one.get(n) == last.get(n) for n in ("device", "sources"))]
    print(f"\n{shown(same)}\n\nrows in {path}", flush=True)
    return status([row for row in rows if row.get("run") == run])


def status(rows: list[Row]) -> int:
    """0 when something of ours was measured, or nothing was left to do, and nothing is wrong."""
    ours = [row for row in rows if row["implementation"].split()[0] in OURS]
    wrong = any(row.get("wrong") for row in rows)
    return 1 if wrong or (ours and not any(row["ok"] for row in ours)) else 0


def watched(command: Sequence[str], minutes: float) -> Path | None:
    """The file of rows, when workers have done what there is time for; None where none can."""
    stop, lost, deaths = time.monotonic() + 60 * minutes, "", 0
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while deaths <= MOST_DEATHS and (left := stop - time.monotonic()) > 0:
            before = len(told(progress))
            # What was compiled ahead stays compiled.
            more = ["--compilers", "0"] if before else []
            options = [f"--progress={progress}", f"--lost={lost}", f"--minutes={left / 60}"]
            ended = outcome([*command, *more, *options], progress, stop)
            lines = told(progress)
            if ended in ("0", str(UNUSABLE)):
                break
            task, contender = (lines[-1] if len(lines) > before else {}).get("begin", ("", ""))
            deaths = 0 if task or ended == str(LOST) else deaths + 1
            why = f"the process ended with status {ended}" if ended.lstrip("-").isdigit() else ended
            blame = {"task": task, "contender": contender, "reason": why}
            lost = json.dumps(blame) if task else ""
        paths = [line["path"] for line in told(progress) if "path" in line]
    return Path(paths[0]) if paths else None


def told(progress: Path) -> list[Row]:
    """The lines of progress; one that is half written counts when it is whole."""
    if not progress.exists():
        return []
    lines: list[Any] = progress.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def outcome(command: Sequence[str], progress: Path, stop: float) -> str:
    """The exit status of a worker, or why it was ended: past its limit, or when time is over."""
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    size, since = -1, time.monotonic()
    try:
        while process.poll() is None:
            lines = told(progress)
            if len(lines) != size:
                size, since = len(lines), time.monotonic()
            limit = lines[-1].get("limit", START_LIMIT) if lines else START_LIMIT
            if time.monotonic() > min(since + limit, stop):
                return f"not done in {limit:g} s, or the time was over"
            time.sleep(0.05)
    finally:
        # With what it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return str(process.returncode)


if __name__ == "__main__":
    sys.exit(main())
