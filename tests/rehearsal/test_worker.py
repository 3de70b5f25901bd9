"""A worker may die anywhere: it costs the contender it had begun, and nothing of another task."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.plan import Task
from benchmarks.gpu.supervisor import Supervisor, Worker
from benchmarks.session import REPOSITORY

TASKS = [Task(name, ("a", "b")) for name in ("one", "two", "three")]
# ready; then for each task begin, row, begin, row, end.
MESSAGES = 1 + 5 * len(TASKS)

# Counts what all the workers of a run have said, and is killed before or after the one told.
MORTAL = """
    import json, os, pathlib, signal, sys
    count, place, early = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "before"
    def say(**message):
        said = len(count.read_bytes()) if count.exists() else 0
        count.write_bytes(b"x" * (said + 1))
        if said == place and early: os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(message), flush=True)
        if said == place: os.kill(os.getpid(), signal.SIGKILL)
    say(ready={"device": "none"})
    for line in sys.stdin:
        task = json.loads(line)
        for name in task["contenders"]:
            if name in task["skip"]: continue
            say(begin=name)
            say(row={"implementation": name, "ok": True})
        say(end=True)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", range(1, MESSAGES))
def test_a_worker_killed_at_any_message_loses_at_most_one_row(
    place: int, when: str, tmp_path: Path
) -> None:
    """The fault: a worker that was lost after a task took all rows of the next task with it."""
    command = [sys.executable, "-S", "-c", textwrap.dedent(MORTAL)]
    command += [str(tmp_path / "count"), str(place), when]
    rows: list[dict[str, Any]] = []
    supervisor = Supervisor(lambda: Worker("cpu", command), rows.append, seconds=120)
    try:
        supervisor.ready()
        assert supervisor.run(TASKS) == []
    finally:
        supervisor.close()
    keys = [row["key"] for row in rows]
    assert sorted(keys) == sorted(key for task in TASKS for key in task.row_keys())
    failed = [row["key"] for row in rows if not row["ok"]]
    # The message that was the last one says what had begun: only that can be lost.
    step = (place - 1) % 5
    lost = {("after", 0), ("before", 1), ("after", 2), ("before", 3)}
    begun = TASKS[(place - 1) // 5].row_keys()[step // 2 if step < 4 else 0]
    assert failed == ([begun] if (when, step) in lost else [])


def test_a_worker_says_end_only_when_the_device_has_survived_the_task() -> None:
    """The fault: it said `end` first, so that the next task was given to a worker that was gone."""
    program = """
        import sys
        from benchmarks.gpu import measure, worker
        def lost(device): raise RuntimeError("an illegal memory access")
        measure.survive = lost
        sys.argv = ["worker", "cpu"]
        sys.exit(worker.main())
    """
    task = Task("ceilings", ("matrix product",)).message()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=json.dumps(task) + "\n",
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
    )
    said = [next(iter(json.loads(line))) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr[-2000:]
    assert said == ["ready", "begin", "row"]
    assert "the device is lost" in done.stderr
