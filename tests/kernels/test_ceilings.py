"""The ceilings count what they run, on a clock of our own."""

import pytest
import torch

from minibert.kernels import ceilings

CPU = torch.device("cpu")


class Time:
    """The stand-in for the module `time`: a second passes with each exponential of 65536."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_exponentials_a_second_are_those_that_were_taken(monkeypatch):
    time, taken = Time(), []
    exp = torch.exp

    def slow(numbers, *, out):
        time.now += 1.0
        taken.append(numbers.numel())
        return exp(numbers, out=out)

    monkeypatch.setattr(ceilings, "time", time)
    monkeypatch.setattr(torch, "exp", slow)
    assert ceilings.exponentials_per_second(CPU) == pytest.approx(sum(taken) / time.now)
    assert taken[0] == 2**16


def test_the_best_of_the_runs_counts(monkeypatch):
    time, lasting = Time(), iter([3.0, 2.0, 5.0, 4.0, 3.0, 3.0, 3.0, 3.0])

    def run():
        time.now += next(lasting)

    monkeypatch.setattr(ceilings, "time", time)
    assert ceilings._best(run) == 2.0


def test_a_cpu_has_no_ceiling_of_instructions():
    assert ceilings.instructions_per_second(CPU) is None
