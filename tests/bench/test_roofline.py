"""The roofline against operations and bytes counted by hand, and ceilings on a clock of our own."""

import pytest
import torch

from minibert.bench import roofline
from minibert.bench.roofline import INSTRUCTIONS, ceilings, least_times
from minibert.bench.workload import Workload

CPU = torch.device("cpu")
FULL = Workload(batch=2, heads=3, tokens=5, d_head=7, dtype="float32", causal=False)


def counted(causal, lengths, n):
    """Pairs of a query and a key it may see, one by one."""
    return sum(
        1
        for length in lengths
        for query in range(n)
        for key in range(n)
        if key < length and (not causal or key <= query)
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths", "real"), [("full", [5, 5]), ("varied", [5, 1])])
def test_work_is_what_is_counted_pair_by_pair(causal, lengths, real):
    one = Workload(2, 3, 5, 7, "float32", causal, lengths)
    pairs = 3 * counted(causal, real, 5)
    assert one.real_keys() == real
    assert one.pairs == pairs
    # query · key and probs · value: 7 multiplications and 7 additions each.
    assert one.flop == pairs * (7 + 7) * 2
    # query, key, value and z: 4 tensors of 2 x 3 x 5 x 7 numbers of 4 bytes.
    assert one.bytes == 4 * 2 * 3 * 5 * 7 * 4


def test_half_the_bytes_are_moved_in_half_precision():
    assert Workload(2, 3, 5, 7, "bfloat16", False).bytes * 2 == FULL.bytes


def test_the_least_times_are_work_over_speed_in_milliseconds():
    found = least_times(FULL, {"tensor": 1e3, "exponential": 10.0, "issue": 100.0, "memory": 2e4})
    # 2 x 3 heads x 25 pairs = 150; 28 operations a pair; 3360 bytes.
    assert found == pytest.approx(
        {"tensor": 4200.0, "exponential": 15000.0, "issue": 6750.0, "memory": 168.0}
    )
    assert INSTRUCTIONS == 4.5


def test_a_unit_that_was_not_measured_bounds_nothing():
    assert set(least_times(FULL, {"tensor": 1.0})) == {"tensor"}


class Time:
    """Seconds that pass only when told: the stand-in for the module `time`."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_ceilings_are_operations_and_bytes_over_the_fastest_of_some_runs(monkeypatch):
    time, runs = Time(), []
    # The first run is the slowest, the third the fastest: 4 s, 3 s, 2 s, 3 s, ...
    lasting = [4.0, 3.0, 2.0]

    def run():
        time.now += lasting[len(runs)] if len(runs) < 3 else 3.0
        runs.append(0)

    monkeypatch.setattr(roofline, "time", time)
    assert roofline._best(run, CPU) == 2.0
    assert len(runs) > 3

    monkeypatch.setattr(roofline, "_best", lambda run, device: run() is None or 0.5)
    assert roofline._matmul(CPU, torch.float32) == 2 * 1024**3 / 0.5  # a product of 1024 x 1024
    assert roofline._copy(CPU) == 2 * 2**27 / 0.5  # 128 MiB read and 128 MiB written


def test_what_this_device_cannot_measure_is_left_out(monkeypatch):
    monkeypatch.setattr(roofline, "_matmul", lambda device, dtype: 5.0)
    monkeypatch.setattr(roofline, "_copy", lambda device: 7.0)
    monkeypatch.setattr(roofline, "exponentials_per_second", lambda device: 11.0)
    ceilings.cache_clear()
    try:
        found = ceilings(CPU, "float32")
        assert found == {"tensor": 5.0, "exponential": 11.0, "memory": 7.0}
    finally:
        ceilings.cache_clear()
