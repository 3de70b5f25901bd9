"""Clients take turns in one thread, and the newest request of a client wins."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minibert.errors import MinibertError
from minibert.viz.serve.connection import MOST_WAITING, AbortError, Job, ModelThread


class Turns:
    """A thread whose first job waits for `go`, and what is answered in which order."""

    def __init__(self) -> None:
        self.thread = ModelThread()
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.go, begun = threading.Event(), threading.Event()

        def hold() -> Iterator[Any]:
            begun.set()
            self.go.wait(10)
            yield "held"

        self.submit("first", "about", hold())
        assert begun.wait(10)

    def submit(self, client: str, ask: str, steps: Iterator[Any] | None = None) -> None:
        name = f"{client} {ask}"
        job = Job(ask, steps or iter(["done"]), lambda result: self.answers.put((name, result)))
        self.thread.submit(client, job)

    def answered(self, count: int) -> list[tuple[str, Any]]:
        return [self.answers.get(timeout=10) for _ in range(count)]


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns()
    yield made
    made.go.set()
    assert made.thread.stop(10.0)


@pytest.mark.parametrize("ask", ["trace", "sweep", "step"])
def test_the_newest_of_a_kind_wins(turns: Turns, ask: str) -> None:
    for _ in range(3):
        turns.submit("page", ask)
    turns.submit("other page", ask)
    (old, first), (_, second) = turns.answered(2)
    assert old == f"page {ask}"
    assert isinstance(first, AbortError)
    assert isinstance(second, AbortError)
    turns.go.set()
    assert turns.answered(3) == [
        ("first about", "held"), (f"page {ask}", "done"), (f"other page {ask}", "done"),
    ]  # fmt: skip


def test_reads_are_all_answered_up_to_a_number(turns: Turns) -> None:
    for _ in range(MOST_WAITING):
        turns.submit("page", "block")
    with pytest.raises(MinibertError, match="64 requests of this page wait already"):
        turns.submit("page", "block")
    turns.go.set()
    assert len(turns.answered(1 + MOST_WAITING)) == 1 + MOST_WAITING


def test_clients_take_turns_also_within_a_sweep(turns: Turns) -> None:
    turns.submit("page", "sweep", iter([None, None, "swept"]))
    turns.submit("page", "block")
    turns.submit("other page", "trace")
    turns.go.set()
    names = [name for name, _ in turns.answered(4)]
    assert names == ["first about", "other page trace", "page block", "page sweep"]


def test_a_sweep_that_runs_ends_when_a_newer_one_comes(turns: Turns) -> None:
    def sweep() -> Iterator[Any]:
        yield None
        turns.submit("page", "sweep")
        yield None
        yield "the older one"

    turns.submit("page", "sweep", sweep())
    turns.go.set()
    _, (_, first), (_, second) = turns.answered(3)
    assert isinstance(first, AbortError)
    assert second == "done"


def test_what_waits_for_a_client_that_is_gone_is_not_computed(turns: Turns) -> None:
    turns.submit("page", "trace")
    turns.submit("page", "block")
    turns.thread.forget("page")
    assert turns.thread.n_waiting == 0
    turns.submit("other page", "block")
    turns.go.set()
    assert [name for name, _ in turns.answered(2)] == ["first about", "other page block"]


def raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def test_errors_are_answers_and_the_thread_goes_on(
    turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    turns.go.set()
    for error in (MinibertError("said"), MemoryError(), RuntimeError("out of memory"), KeyError(7)):
        turns.submit("page", "block", raising(error))
    _, *found = (result for _, result in turns.answered(5))
    assert [type(one) for one in found] == [MinibertError] * 4
    assert str(found[0]) == "said"
    assert "not enough memory" in str(found[1])
    assert str(found[1]) == str(found[2])
    assert "made a mistake (KeyError)" in str(found[3])
    assert "KeyError: 7" in capsys.readouterr().err


def test_it_stops_between_two_jobs() -> None:
    turns = Turns()
    turns.submit("page", "block")
    threading.Timer(0.05, turns.go.set).start()
    assert turns.thread.stop(10.0)
    assert turns.answered(1) == [("first about", "held")]
    assert turns.answers.empty()
