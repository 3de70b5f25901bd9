"""Who is wrong is never timed; everyone is warmed before anyone is timed. No time is asserted."""

from contextlib import contextmanager

import pytest
import torch

from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest, time_in_turns
from minibert.bench.gate import Truth

TRUTH = Truth({"z": torch.arange(5.0)}, absolute=1e-6)


class Recorder:
    """Contenders that note each of their calls."""

    def __init__(self):
        self.calls = []

    def contender(self, name, *, plus=0.0, fails_at=None, around=None):
        def run():
            self.calls.append(name)
            if fails_at is not None and self.calls.count(name) >= fails_at:
                raise RuntimeError("out of memory")
            return torch.arange(5.0) + plus

        return Contender(run, lambda z: {"z": z}, *([around] if around else []))


@pytest.fixture
def one_call_a_turn(monkeypatch):
    monkeypatch.setattr("minibert.bench.clock.MOST_CALLS", 1)


def test_a_wrong_or_failing_contender_is_a_row_with_the_reason_and_is_never_timed(one_call_a_turn):
    noted = Recorder()
    runs = {
        "right": noted.contender("right"),
        "wrong": noted.contender("wrong", plus=1e-3),
        "broken": noted.contender("broken", fails_at=1),
    }
    rows = contest(runs, TRUTH.check, Clock(), rounds=2, baseline="right")
    assert list(rows) == ["right", "wrong", "broken"]
    assert rows["right"]["ok"]
    assert (rows["right"]["ratio"], rows["right"]["rounds"], rows["right"]["calls"]) == (1, 2, 2)
    assert rows["right"]["peak_bytes"] >= 5 * 4
    assert (rows["wrong"]["wrong"], rows["broken"]["wrong"]) == (True, False)
    assert rows["wrong"]["reason"].startswith("z differs by 1.00e-03")
    assert rows["broken"]["reason"] == "RuntimeError: out of memory"
    for name in ("wrong", "broken"):
        assert "median_ms" not in rows[name]
        assert noted.calls.count(name) == 1


def test_everyone_is_warmed_twice_before_anyone_is_timed_and_then_they_take_turns(one_call_a_turn):
    noted = Recorder()
    runs = {name: noted.contender(name) for name in ("a", "b")}
    timed = time_in_turns(runs, Clock(), rounds=3)
    assert noted.calls[:4] == ["a", "a", "b", "b"]
    assert [sorted(noted.calls[i : i + 2]) for i in (4, 6, 8)] == [["a", "b"]] * 3
    assert {name: len(one.turns) for name, one in timed.timings.items()} == {"a": 3, "b": 3}


def test_who_fails_under_the_clock_has_no_time_and_the_others_go_on(one_call_a_turn):
    noted = Recorder()
    runs = {"late": noted.contender("late", fails_at=4), "right": noted.contender("right")}
    rows = contest(runs, TRUTH.check, Clock(), rounds=3, baseline="right", memory=False)
    assert rows["right"]["calls"] == 3
    said = "right when checked, but while it was timed: RuntimeError: out of memory"
    assert (rows["late"]["ok"], rows["late"]["reason"]) == (False, said)
    assert "median_ms" not in rows["late"]
    assert noted.calls.count("late") == 4


def test_without_the_baseline_nobody_has_a_ratio_and_the_reason_names_it(one_call_a_turn):
    noted = Recorder()
    runs = {"base": noted.contender("base", plus=1.0), "right": noted.contender("right")}
    rows = contest(runs, TRUTH.check, Clock(), rounds=2, baseline="base")
    assert rows["base"]["reason"].startswith("z differs")
    assert rows["right"]["reason"] == "the baseline failed: base"
    assert not rows["right"]["ok"]


def test_settings_are_entered_around_every_call_and_left_again(one_call_a_turn):
    depth = []

    @contextmanager
    def around():
        depth.append(1)
        yield
        depth.pop()

    def run():
        assert depth == [1]
        return torch.arange(5.0)

    one = Contender(run, lambda z: {"z": z}, around)
    rows = contest({"a": one}, TRUTH.check, Clock(), rounds=2, baseline="a")
    assert rows["a"]["ok"], rows
    assert depth == []
