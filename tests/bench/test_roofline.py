"""The roofline against operations and bytes counted by hand, and ceilings on a clock of our own."""

from dataclasses import replace

import pytest
import torch

from minibert.bench.roofline import INSTRUCTIONS, least_times
from minibert.kernels.check.problem import unfolded
from minibert.kernels.check.workload import WORKLOADS, Workload, drawn

CPU = torch.device("cpu")
FULL = Workload(batch=2, heads=3, tokens=5, d_head=7, dtype="float32", causal=False)


FIELDS = [
    {},
    {"lengths": "full"},
    {"causal": True},
    {"window": (2, 1)},
    {"window": (2, None), "causal": True},
    {"window": (1, 0), "causal": True, "prefix": 2, "lengths": "full"},
    {"causal": True, "prefix": 3, "lengths": "full"},
    {"queries": 2, "causal": True},
    {"queries": 2, "causal": True, "window": (1, None), "layout": "paged", "tokens": 37},
    {"layout": "packed", "causal": True, "window": (1, None)},
    {"layout": "packed", "queries": 3, "causal": True},
    {"layout": "paged", "queries": 1},
]


SMALL = Workload(3, 4, 7, 5, "float32", False, "varied", key_heads=2, d_value=3)


@pytest.mark.parametrize("changes", FIELDS)
def test_work_of_every_field_is_what_a_mask_of_drawn_inputs_counts(changes):
    work = replace(SMALL, **changes)
    problem = drawn(work, work.real_keys(), seed=0, device=CPU, dtype=torch.float32)
    mask = unfolded(problem).mask
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
    if work.prefix:
        # Each sentence is drawn with a prefix of its own; the first one's is that of the workload.
        work, mask = replace(work, batch=1), mask[:1]
        problem = drawn(work, work.real_keys(), seed=0, device=CPU, dtype=torch.float32)
    B, H, Q, _ = problem.query.shape
    allowed = mask.expand(B, H, Q, problem.n_keys)
    pairs = int(allowed.sum())
    assert work.pairs == pairs
    assert work.flop == 2 * (5 + 3) * pairs
    seen = int(allowed[:, 0].any(dim=1).sum())
    assert work.bytes == 4 * (4 * B * Q * (5 + 3) + 2 * seen * (5 + 3))
    # Again q·kᵀ, dz·vᵀ; and dv, dq, dk.
    backward = replace(work, backward=True)
    assert backward.flop == pairs * 2 * ((5 + 3) + (5 + 3) + (3 + 5 + 5))
    vectors = 4 * B * Q * 5 + 2 * seen * 8
    assert replace(work, dtype="bfloat16").bytes * 2 == work.bytes
    assert backward.bytes == 4 * (3 * vectors + 3 * 4 * B * Q * 3)


def test_a_named_workload_that_is_cut_keeps_its_groups_and_its_window_in_proportion():
    work = WORKLOADS["mistral-window"].cut(1024, batch=1, heads=8)
    assert (work.heads, work.n_key_heads, work.window) == (8, 2, (256, None))
    assert {one.cut(64).tokens for one in WORKLOADS.values()} == {64}
    decode = WORKLOADS["llama3-8b-decode"].cut(512)
    assert decode.n_queries == 1
    assert decode.asks() == {"lengths", "pages", "causal", "groups"}


def test_the_least_times_are_work_over_speed_in_milliseconds():
    found = least_times(FULL, {"tensor": 1e3, "exponential": 10.0, "issue": 100.0, "memory": 2e4})
    # 2 x 3 heads x 25 pairs = 150; 28 operations a pair; 3360 bytes.
    assert found == pytest.approx(
        {"tensor": 4200.0, "exponential": 15000.0, "issue": 6750.0, "memory": 168.0}
    )
    assert INSTRUCTIONS == 4.5
    # A unit that was not measured bounds nothing.
    assert set(least_times(FULL, {"tensor": 1.0})) == {"tensor"}
