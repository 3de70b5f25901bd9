"""What a worker says of its time is held against the judge's clock; what it gives, against ours."""

import random
from contextlib import closing, suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_kernels import written

from minibert.bench.judge import JudgedFunction, learn
from minibert.bench.measure import JudgedRun
from minibert.bench.result_rows import GateError, WrongError
from minibert.bench.signatures import SIGNATURES, Way
from minibert.bench.worker_process import WorkerEndedError
from minibert.errors import MinibertError
from minibert.kernels.check.gradients import GRADIENTS, sampled
from minibert.kernels.check.problem import by_eager
from minibert.kernels.check.workload import Workload, inputs_of

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


EVERY_FIELD = """
from minibert.kernels.check.problem import Problem, by_eager

def attention(query, key, value, lengths, causal, scale, window, prefix, soft_cap, alibi_slopes,
              sinks, mask, bias, packed, packed_keys, pages):
    return {"z": by_eager(Problem(**locals()), query.dtype)["z"]}
"""


@pytest.fixture(scope="module")
def every_field(tmp_path_factory):
    one = JudgedFunction(written(tmp_path_factory.mktemp("every"), EVERY_FIELD), CPU, seconds=60.0)
    one.worker.place = "a turn"
    yield one
    one.close()


def ready(user, workload=WORK):
    return JudgedRun(user.label, user.worker, workload, inputs_of(workload, CPU), baseline=False)


def test_numbers_of_a_seed_are_the_same_in_both_processes_and_a_turn_is_timed_from_outside(user):
    run = ready(user)
    assert run.gate()["errors"]["z"] < 1e-5
    assert all(one > 4 for one in run.turn(5, cold=False))
    assert run.peak_bytes() > 0


def test_a_call_that_fails_is_told_in_the_words_of_the_worker(user):
    run = ready(user, Workload(1, 2, 7, 16, "float32", False))
    with pytest.raises(GateError, match=r"^raised ValueError: seven \(line 23 of kernel\.py\)$"):
        run.gate()


VALUES = [None, True, 7, -1, 10**30, 1.5, "x", "\x1b[2J", [], [None], {}]
NAMES = ["z", "lse", "output 2", "output 9", "output 9999999", "output x", "probs", "", "key"]
SHAPES = [(), (0,), (1, 1), (3, 0, 2), (7, 1, 2, 64), (1, 1, 2, 64, 16), (1, 1, 2, 64)]
DTYPES = [torch.bool, torch.int64, torch.complex64, torch.float64, torch.float32, torch.bfloat16]


def lied(draw, row, tensors):
    """An answer with one field or one tensor of another kind, name or place."""
    row, tensors = dict(row), dict(tensors)
    what = draw.choice(["nothing", "field", "drop", "name", "more"])
    if what == "field":
        names = sorted({"bytes", "options", "signature", *row})
        row[draw.choice(names)] = draw.choice(VALUES)
    elif what in ("drop", "name") and tensors:
        one = tensors.pop(draw.choice(sorted(tensors)))
        tensors |= {draw.choice(NAMES): one} if what == "name" else {}
    elif what == "more":
        kind = draw.choice(DTYPES)
        made = torch.zeros(draw.choice(SHAPES), dtype=kind)
        tensors[draw.choice(NAMES)] = made
    return row, tensors


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_whatever_is_answered_is_an_answer_or_an_error_in_one_line(user, seed):
    # Not by hypothesis: how many are drawn depends on inputs that nobody foresees.
    draw, true = random.Random(seed), user.worker.ask
    plain, work = SIGNATURES["plain"], replace(WORK, tokens=5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(user.worker, "ask", lambda *a, **b: lied(draw, *true(*a, **b)))
        patched.setattr(user.worker, "distrust", WorkerEndedError)
        patched.setattr(user, "signature", plain)
        for do in (
            lambda: learn(user, dtype=torch.float32, d_head=16),
            lambda: user.call(inputs_of(work, CPU)),
            lambda: user.later(),
            lambda: ready(user, work).gate(),
            lambda: ready(user, work).peak_bytes(),
        ):
            with suppress(MinibertError):
                do()
    user.called(Way())


LEAVES_CALLS_OUT = """
import sys

def attention(query, key, value, lengths, causal):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "repeat":
        frame = frame.f_back
    if frame is not None:
        return {"z": torch.zeros_like(query)}
    return {"z": right(query, key, value, lengths, causal)}
"""


def test_calls_that_are_left_out_between_two_looks_are_found(tmp_path):
    user = JudgedFunction(written(tmp_path, LEAVES_CALLS_OUT), CPU, seconds=60.0)
    with closing(user):
        run = ready(user)
        run.gate()
        with pytest.raises(WrongError, match="other numbers when calls follow each other"):
            run._compare(80.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"backward": True},
        {"backward": True, "heads": 4, "key_heads": 2, "tokens": 7, "causal": False},
        {"backward": True, "layout": "packed", "batch": 3},
        {"window": (5, None), "alibi": True, "sinks": True, "soft_cap": 2.0, "prefix": 3},
        {"layout": "paged", "queries": 4, "batch": 3, "heads": 4, "key_heads": 2, "d_value": 8},
        {"layout": "packed", "batch": 3, "queries": 9, "bias": False, "strided": True},
        {"mask": True, "bias": True, "lengths": "full"},
    ],
)
def test_every_field_of_a_workload_is_drawn_alike_in_both_processes(every_field, changes):
    work = replace(WORK, **changes)
    run = ready(every_field, work)
    errors = run.gate()["errors"]
    wanted = {"z", "z, mean"} | ({*GRADIENTS} if work.backward else set())
    assert errors.keys() == wanted
    assert all(one < 1e-4 for one in errors.values())


def test_gradients_of_another_gradient_of_z_are_wrong(every_field):
    run = ready(every_field, replace(WORK, backward=True))
    _, found = run._call(cold=False)
    # As if only the gradient of z were another one.
    run._problem.z_gradient.neg_()
    with pytest.raises(WrongError, match="error of query_gradient"):
        run._check(found)


def right(looked):
    return all(error <= allowed for error, allowed in looked.values())


def test_every_row_of_a_short_sentence_is_looked_at():
    problem = inputs_of(Workload(1, 1, 20, 16, "float32", False), CPU)
    z = by_eager(problem, torch.float32)["z"]
    assert right(sampled(problem, {"z": z}))
    for row in (0, 7, 19):
        wrong = z.clone()
        wrong[0, 0, row] += 0.01
        assert not right(sampled(problem, {"z": wrong})), row


def test_many_small_errors_are_wrong_too():
    """The fault: over 8192 keys all of z is smaller than what one number may be off."""
    problem = inputs_of(Workload(1, 1, 8192, 64, "bfloat16", False), CPU)
    z = torch.nn.functional.scaled_dot_product_attention(
        problem.query, problem.key, problem.value, scale=problem.scale
    )
    assert right(sampled(problem, {"z": z}))
    assert not right(sampled(problem, {"z": torch.zeros_like(z)}))
