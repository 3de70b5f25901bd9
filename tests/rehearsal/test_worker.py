"""A worker may die anywhere: it costs the contender it had begun, and nothing of another task."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.plan import CLOCK, Task
from benchmarks.gpu.rows import read
from benchmarks.gpu.worker import LostError, Worker

TASKS = [Task(name, ("a", "b"), seconds=1) for name in ("one", "two", "three")]


class Mortal:
    """In place of a worker: dies before the message of that number, and another one lives."""

    dies, clocked = -1, False

    def __init__(self, *_: Any) -> None:
        self.facts = {"device": "none", "sources": "s", "versions": {}}

    def messages(self, task: Task) -> Iterator[Any]:
        rows = [{"implementation": name, "ok": True} for name in task.contenders]
        said: list[Any] = [one for two in zip(task.contenders, rows, strict=True) for one in two]
        for message in [*task.contenders, CLOCK, *rows] if self.clocked else said:
            self.step()
            yield message
        self.step()

    def step(self) -> None:
        Mortal.dies -= 1
        if Mortal.dies == -1:
            raise LostError("killed")


def rows_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dies: int, *, clocked: bool = False
) -> list[dict[str, Any]]:
    monkeypatch.setattr(Mortal, "dies", dies)
    monkeypatch.setattr(Mortal, "clocked", clocked)
    monkeypatch.setattr(program, "Worker", Mortal)
    monkeypatch.setattr(program, "plan", lambda quick: TASKS)
    chosen = program.parser().parse_args(["--device", "cpu", "--output", str(folder)])
    run = program.Run(chosen)
    run.all()
    return read(run.journal.path)


@pytest.mark.parametrize("clocked", [False, True])
@pytest.mark.parametrize("dies", range(15))
def test_a_worker_that_dies_anywhere_loses_what_it_had_begun_and_no_other_task(
    dies: int, clocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a worker that was lost after a task took all rows of the next task with it."""
    found = rows_of(tmp_path, monkeypatch, dies, clocked=clocked)
    keys = [key for task in TASKS for key in task.row_keys()]
    assert sorted(row["key"] for row in found) == sorted(keys)
    failed = [row["key"] for row in found if not row["ok"]]
    step = dies % (6 if clocked else 5)
    task = TASKS[dies // (6 if clocked else 5)]
    # In turns: before a, begun a, begun b, the clock, row a, row b.
    lost = [[0], [0], [1], [0, 1], [1], []][step] if clocked else [[0], [0], [1], [1], []][step]
    assert failed == [task.row_keys()[one] for one in lost]


def says_and_hangs(pipe: Any, device: str) -> None:
    os.setsid()
    pipe.send({"device": device})
    pipe.recv()
    pipe.send("a")
    time.sleep(600)


def ends(pipe: Any, device: str) -> None:
    pipe.send({"device": device})
    pipe.recv()
    os._exit(7)


def has_none(pipe: Any, device: str) -> None:
    pipe.send({"reason": "no GPU"})


def test_a_process_is_ended_past_its_limit_and_told_of_when_it_ends() -> None:
    stop = time.monotonic() + 600
    one = Worker("d", stop, says_and_hangs)
    messages = one.messages(Task("p", ("a",), limit=0.5))
    assert next(messages) == "a"
    with pytest.raises(LostError, match=r"not done in 0\.5 s"):
        next(messages)
    assert not one._process.is_alive()
    with pytest.raises(LostError, match="ended with status 7"):
        next(Worker("d", stop, ends).messages(Task("p", ("a",))))
    with pytest.raises(LostError, match="no GPU"):
        Worker("d", stop, has_none)
