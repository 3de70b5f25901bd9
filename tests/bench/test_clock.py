"""The clock on a clock of our own: what is inside a call counts, what is around it does not."""

import pytest
import torch

from minibert.bench import clock as module
from minibert.bench.clock import Clock

CPU = torch.device("cpu")


class Time:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    fake = Time()
    monkeypatch.setattr(module, "perf_counter", fake)
    monkeypatch.setattr(module, "flush_bytes", lambda device: 64)
    return fake


def test_each_call_is_timed_alone(time):
    lasting = iter([0.001, 0.002, 0.004])
    seen = []

    def run():
        seen.append("run")
        time.passes(next(lasting))
        return len(seen)

    milliseconds, result = Clock(CPU).turn(run, calls=3)
    assert milliseconds == pytest.approx([1.0, 2.0, 4.0])
    assert result == 3  # what the last call gave


def test_a_cold_cache_is_filled_with_something_else_before_each_call_and_off_the_clock(time):
    clock = Clock(CPU)
    clock._flush.fill_(1)
    left = []

    def run():
        left.append(int(clock._flush.sum()))
        clock._flush.fill_(1)
        time.passes(0.001)

    milliseconds, _ = clock.turn(run, calls=2, cold=True)
    assert left == [0, 0]
    assert milliseconds == pytest.approx([1.0, 1.0])
    left.clear()
    clock.turn(run, calls=2)
    assert left == [64, 64]


def test_a_result_is_let_go_before_the_next_call(time):
    alive = []

    class Result:
        def __init__(self):
            alive.append(self.__class__)
            assert len(alive) == 1

        def __del__(self):
            alive.pop()

    Clock(CPU).turn(Result, calls=4)


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(1e-6, 20), (0.0024, 20), (0.0049, 10), (0.02, 3), (1.0, 3), (0.0, 20)],
)
def test_a_turn_is_as_many_calls_as_fit_a_twentieth_of_a_second_between_3_and_20(
    time, seconds, calls
):
    ran = []

    def run():
        ran.append(0)
        # The first call compiles and does not count.
        time.passes(9.0 if len(ran) == 1 else seconds)

    assert Clock(CPU).calls(run, fewest=3) == calls
    assert len(ran) == 2
