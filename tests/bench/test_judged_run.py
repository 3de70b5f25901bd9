"""What a worker says of its time is held against the judge's clock; what it gives, against ours."""

import pytest
import torch
from planted_kernels import written

from minibert.bench.gate import GateError, WrongError
from minibert.bench.judged_function import JudgedFunction
from minibert.bench.judged_run import JudgedRun, one_thread
from minibert.bench.workload import Workload

CPU = torch.device("cpu")
WORK = Workload(1, 2, 65, 16, "float32", True, "varied")
SLEEPS = """
import time

def attention(query, key, value, lengths, causal):
    time.sleep(0.004)
    if query.shape[2] == 7:
        raise ValueError("seven")
    return {"z": right(query, key, value, lengths, causal)}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    one = JudgedFunction(written(tmp_path_factory.mktemp("judged"), SLEEPS), CPU, seconds=60.0)
    one.worker.place = "a turn"
    yield one
    one.close()


def ready(user, workload=WORK):
    return JudgedRun(user.label, user.worker, workload, workload.draw(CPU), baseline=False)


def test_numbers_of_a_seed_are_the_same_in_both_processes_and_a_turn_is_timed_from_outside(user):
    run = ready(user)
    assert run.gate()["errors"]["z"] < 1e-5
    assert all(one > 4 for one in run.turn(5, cold=False))
    assert run.peak_bytes() > 0


def test_a_call_that_fails_is_told_in_the_words_of_the_worker(user):
    run = ready(user, Workload(1, 2, 7, 16, "float32", False))
    with pytest.raises(GateError, match=r"^raised ValueError: seven \(line 23 of kernel\.py\)$"):
        run.gate()


def test_events_that_say_less_than_the_clock_are_not_trusted(user):
    run = ready(user)
    run.gate()
    run._compare(8.0)
    with pytest.raises(WrongError, match=r"a call of 1 ms by its events takes \d.* by the judge's"):
        run._compare(1.0)


@pytest.mark.parametrize("said", [None, "1.0", 0.0, -1.0, float("nan"), 3.0, True])
def test_a_time_that_cannot_be_is_not_taken(user, said):
    with pytest.raises(WrongError, match="by its events took 2 ms"):
        ready(user)._claimed({"ms": said}, 2.0)


def test_the_judge_uses_one_thread_and_then_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
