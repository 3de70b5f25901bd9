"""A worker may die anywhere: it costs the contender it had begun, and nothing of another task."""

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import measure, worker
from benchmarks.gpu.journal import read
from benchmarks.gpu.plan import Task

TASKS = [Task(name, ("a", "b"), seconds=1) for name in ("one", "two", "three")]
# The path; then for each task begin, row, begin, row, end.
MESSAGES = 1 + 5 * len(TASKS)


class KilledError(BaseException):
    """What the supervisor sees as the end of the process."""


def watched_at_home(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kill: Callable[[int, str], bool],
    *,
    clocked: bool = False,
) -> list[dict[str, Any]]:
    """The rows of a run whose workers live in this process; `kill(message, when)` ends one.

    `clocked` ones have all rows after the clock, as contenders that are timed in turns.
    """
    said = iter(range(10_000))

    def mortal(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(self: worker.Worker, *given: Any, **named: Any) -> None:
            place = next(said)
            if kill(place, "before"):
                raise KilledError
            act(self, *given, **named)
            if kill(place, "after"):
                raise KilledError

        return acted

    def rows(task: Task, device: Any, begin: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        names = [one for one in task.contenders if one not in task.skip]
        for name in names:
            begin(name)
            if not clocked:
                yield {"implementation": name, "ok": True}
        if clocked:
            begin(worker.CLOCK)
            yield from ({"implementation": name, "ok": True} for name in names)

    def outcome(command: Sequence[str], progress: Path, stop: float) -> str:
        try:
            return str(worker.main(list(command)))
        except KilledError:
            return "-9"

    for target, name, value in (
        (worker.Worker, "tell", mortal(worker.Worker.tell)),
        (worker.Worker, "write", mortal(worker.Worker.write)),
        (worker, "machine", lambda device: {"device": "none", "sources": "s", "versions": {}}),
        (worker, "plan", lambda quick: TASKS),
        (measure, "rows", rows),
        (program, "outcome", outcome),
    ):
        monkeypatch.setattr(target, name, value)
    command = ["--device", "cpu", "--output", str(folder), "--run", "2027-03-02T10"]
    path = program.watched(command, minutes=2)
    assert path == folder / "none-2027-03-02.jsonl"
    return read(path)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", range(MESSAGES))
def test_a_worker_killed_at_any_message_loses_at_most_one_row(
    place: int, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a worker that was lost after a task took all rows of the next task with it."""
    found = watched_at_home(tmp_path, monkeypatch, lambda at, then: (at, then) == (place, when))
    keys = [key for task in TASKS for key in task.row_keys()]
    assert sorted(row["key"] for row in found) == sorted(keys)
    failed = [(row["key"], row["reason"]) for row in found if not row["ok"]]
    # Once it has begun a contender and before it has its row, that one is lost.
    step = (place - 1) % 5
    lost = {("after", 0), ("before", 1), ("after", 2), ("before", 3)} if place else set()
    begun = TASKS[(place - 1) // 5].row_keys()[step // 2 if step < 4 else 0]
    reason = "the process ended with status -9"
    assert failed == ([(begun, reason)] if (when, step) in lost else [])


@pytest.mark.parametrize(("place", "lost"), [(3, ["one | a", "one | b"]), (4, ["one | b"])])
def test_a_clock_that_dies_spoils_what_has_no_row_yet(
    place: int, lost: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(at: int, when: str) -> bool:
        return (at, when) == (place, "after")

    found = watched_at_home(tmp_path, monkeypatch, kill, clocked=True)
    assert len(found) == 6
    assert [row["key"] for row in found if not row["ok"]] == lost


def test_a_device_that_is_lost_after_a_task_is_left_to_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def survive(device: object) -> None:
        asked.append(device)
        if len(asked) == 1:
            raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(measure, "survive", survive)
    found = watched_at_home(tmp_path, monkeypatch, lambda *_: False)
    assert [row["ok"] for row in found] == [True] * 6
    assert len(asked) == 3


def test_one_that_can_never_begin_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(program, "outcome", lambda *given: started.append(given) or "1")
    assert program.watched(["worker"], minutes=1) is None
    assert len(started) == 1 + program.MOST_DEATHS


@pytest.mark.parametrize(
    ("code", "seconds", "ended"),
    [
        ("sys.exit(7)", 60.0, "7"),
        ("tell(begin=['one', 'a'], limit=0.5); time.sleep(60)", 60.0, "not done in 0.5 s"),
        ("tell(begin=['one', 'a'], limit=50); time.sleep(60)", 1.0, "or the time was over"),
    ],
)
def test_a_process_is_ended_past_its_limit_and_when_the_time_is_over(
    code: str, seconds: float, ended: str, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    text = f"""
        import json, sys, time
        def tell(**message): open({str(progress)!r}, "a").write(json.dumps(message) + "\\n")
        {code}
    """
    command = [sys.executable, "-S", "-c", textwrap.dedent(text)]
    assert ended in program.outcome(command, progress, time.monotonic() + seconds)
    if "tell" in code:
        assert program.told(progress)[-1]["begin"] == ["one", "a"]
    progress.write_text(json.dumps({"path": "a"}) + '\n{"begi')
    assert program.told(progress) == [{"path": "a"}]
