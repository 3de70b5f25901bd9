"""Blocks of rows give what NumPy gives, whatever the blocks, without an N x N tensor."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from attention_inputs import OF_TENSORS, STATISTICS, VARIATIONS, B, H, K, Q, some_mask, vectors
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import AttentionError
from minibert.kernels import blocks, work_memory
from minibert.kernels.api import attend
from minibert.kernels.check import parity, tolerances
from minibert.kernels.check.problem import Problem

#: Rows of one head that NumPy computes at once; everything `want=` names that is a number a row.
ALL = (*STATISTICS[:5], ("key_mass", (0, 3, 5)), ("offset_mass", (-2, 0, 1)), ("map", 7))


def by_numpy(tensors: tuple[Any, ...], *, causal: bool, lengths: list[int]) -> dict[str, Any]:
    """z and statistics in float64, whole matrices at a time."""
    query, key, value = (each.double().numpy() for each in tensors)
    N = query.shape[2]
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
    real = np.arange(N) < np.array(lengths)[:, None]
    allowed = np.broadcast_to(real[:, None, None, :], scores.shape).copy()
    if causal:
        allowed &= np.tril(np.ones((N, N), dtype=bool))
    masked = np.where(allowed, scores, -np.inf)
    row_max = masked.max(-1)
    weights = np.exp(masked - row_max[..., None])
    total = weights.sum(-1, keepdims=True)
    probs = weights / total
    logs = np.log(np.where(probs > 0, probs, 1))
    counted = probs * real[:, None, :, None]
    padded = np.pad(probs, ((0, 0), (0, 0), (0, 0), (2, 2)))
    rows = np.arange(N)
    return {
        "z": probs @ value,
        "lse": row_max + np.log(total[..., 0]),
        "row_max": row_max,
        "max_prob": probs.max(-1),
        "entropy": -(probs * logs).sum(-1),
        "received": counted.sum(2),
        "key_mass": probs[..., [0, 3, 5]],
        "offset_mass": np.stack([padded[:, :, rows, rows + 2 + o] for o in (-2, 0, 1)], -1),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[601, 601], [601, 257]])
def test_float32_inputs_of_size_one_give_numpy_within_a_millionth_and_the_rounding_of_the_number(
    causal: bool, lengths: list[int]
) -> None:
    tensors = vectors(queries=601, keys=601, dtype=torch.float32)
    options: dict[str, Any] = {"causal": causal, "lengths": torch.tensor(lengths)}
    found = attend(*tensors, impl="chunked", want=ALL, **options)
    expected = by_numpy(tensors, causal=causal, lengths=lengths)
    outputs = {"z": found.z, "lse": found.lse, **vars(found.statistics)}
    for name, right in expected.items():
        error = np.abs(outputs[name].double().numpy() - right)
        # What float32 itself cannot hold of a number larger than 1 comes on top.
        assert (error <= 1e-6 + 2.0**-23 * np.abs(right)).all(), (name, error.max())


@pytest.mark.parametrize("causal", [False, True])
def test_float32_heads_of_64_give_numpy_within_a_millionth(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 256, 64)
    tensors = tuple(torch.randn(shape, generator=generator) for _ in range(3))
    lengths = [256, 131]
    found = attend(*tensors, impl="chunked", want=ALL, causal=causal, lengths=torch.tensor(lengths))
    outputs = {"z": found.z, "lse": found.lse, **vars(found.statistics)}
    for name, right in by_numpy(tensors, causal=causal, lengths=lengths).items():
        error = np.abs(outputs[name].double().numpy() - right)
        # Those that grow beyond 1 with the scores or the number of rows: to a millionth of them.
        if name in ("row_max", "entropy", "received"):
            error = error / np.maximum(1, np.abs(right))
        assert error.max() <= 1e-6, (name, error.max())


@pytest.mark.parametrize("size", [1.0, 10.0, 30.0])
def test_float64_inputs_give_numpy_within_a_millionth_whatever_their_size(size: float) -> None:
    query, key, value = vectors(queries=257, keys=257)
    tensors = (query * size, key * size, value)
    found = attend(*tensors, impl="chunked", want=ALL, causal=True)
    outputs = {"z": found.z, "lse": found.lse, **vars(found.statistics)}
    for name, right in by_numpy(tensors, causal=True, lengths=[257, 257]).items():
        assert np.abs(outputs[name].numpy() - right).max() <= 1e-10, name


@pytest.mark.parametrize("size", [10.0, 30.0])
def test_larger_float32_inputs_err_as_the_rounding_of_their_scores_allows(size: float) -> None:
    query, key, value = vectors(queries=257, keys=257, dtype=torch.float32)
    tensors = (query * size, key * size, value)
    found = attend(*tensors, impl="chunked", want=ALL)
    allowed = tolerances.floors(Problem(*tensors, scale=1 / math.sqrt(query.shape[-1])))
    outputs = {"z": found.z, "lse": found.lse, **vars(found.statistics)}
    for name, right in by_numpy(tensors, causal=False, lengths=[257, 257]).items():
        assert np.abs(outputs[name].double().numpy() - right).max() <= allowed[name], name


def test_every_case_of_the_harness_is_right() -> None:
    assert parity.check("chunked", sizes=(1, 33), input_scales=(1.0, 30.0)).ok


@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("cells", [1, 100])
@pytest.mark.parametrize("queries", [Q, K])
def test_blocks_of_any_size_give_the_same(
    name: str, cells: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_memory, "CELLS", cells)
    monkeypatch.setattr(work_memory, "LEAST_ROWS", 2)
    monkeypatch.setattr(work_memory, "CAUSAL_ROWS", 3)
    tensors = vectors(queries=queries)
    options: dict[str, Any] = dict(VARIATIONS[name])
    if "mask" in options:
        options["mask"] = some_mask(queries=queries)
    options["bias"] = torch.randn(1, H, queries, K, dtype=torch.float64)
    want = (*STATISTICS, *OF_TENSORS)
    found = attend(*tensors, impl="chunked", want=want, **options)
    expected = attend(*tensors, impl="reference", want=want, **options)
    torch.testing.assert_close(found.z, expected.z, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-13)
    for statistic, numbers in vars(expected.statistics).items():
        torch.testing.assert_close(
            getattr(found.statistics, statistic), numbers, rtol=0, atol=1e-13, msg=statistic
        )


@given(
    lengths=st.lists(st.integers(0, 23), min_size=B, max_size=B),
    causal=st.booleans(),
    queries=st.sampled_from([1, 7, 23, 29]),
    blocks_a_side=st.integers(1, 30),
)
def test_any_lengths_give_the_reference(
    lengths: list[int], causal: bool, queries: int, blocks_a_side: int
) -> None:
    tensors = vectors(queries=queries, keys=23)
    options: dict[str, Any] = {"lengths": torch.tensor(lengths), "causal": causal}
    want = (*STATISTICS[:-1], ("map", blocks_a_side))
    found = attend(*tensors, impl="chunked", want=want, **options)
    expected = attend(*tensors, impl="reference", want=want, **options)
    torch.testing.assert_close(found.z, expected.z, rtol=0, atol=1e-13)
    for statistic, numbers in vars(expected.statistics).items():
        torch.testing.assert_close(
            getattr(found.statistics, statistic), numbers, rtol=0, atol=1e-13, msg=statistic
        )


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Cells of each block that is computed from now on."""
    cells: list[int] = []
    block = blocks.Part._block

    def watched(part: Any, *given: Any) -> Any:
        found = block(part, *given)
        cells.append(found.scores.numel())
        return found

    monkeypatch.setattr(blocks.Part, "_block", watched)
    return cells


def test_padding_and_the_future_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = computed(monkeypatch)
    tensors = vectors(queries=512, keys=512, dtype=torch.float32)
    attend(*tensors, impl="chunked", lengths=torch.tensor([512, 32]), want=("entropy",))
    assert sum(cells) == H * 512 * (512 + 32)
    cells.clear()
    attend(*tensors, impl="chunked", causal=True, want=("entropy",))
    assert sum(cells) <= 0.57 * B * H * 512 * 512


@pytest.mark.parametrize(("cells_a_thread", "most"), [(2**16, 2**22), (2**20, 2**16)])
def test_no_block_is_larger_than_is_said(
    cells_a_thread: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_memory, "CELLS", cells_a_thread)
    monkeypatch.setattr(work_memory, "MOST_CELLS", most)
    cells = computed(monkeypatch)
    tensors = vectors(queries=700, keys=700, dtype=torch.float32)
    attend(*tensors, impl="chunked", want=STATISTICS)
    largest = min(cells_a_thread * torch.get_num_threads(), most)
    assert largest / 4 < max(cells) <= largest


@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_any_scale_is_as_in_the_reference_and_loses_no_nan(scale: float) -> None:
    query, key, value = vectors()
    query[1, 2, 3, 4] = math.nan
    found = attend(query, key, value, impl="chunked", scale=scale)
    expected = attend(query, key, value, impl="reference", scale=scale)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-13, equal_nan=True)
    assert found.lse[1, 2, 3].isnan()


def test_vectors_whose_product_overflows_before_it_is_scaled_are_no_matter() -> None:
    query = torch.full((1, 1, 40, 64), 3e18)
    found = attend(query, query, torch.ones_like(query), impl="chunked", want=("entropy",))
    expected = attend(query, query, torch.ones_like(query), impl="eager", want=("entropy",))
    assert found.lse.isfinite().all()
    torch.testing.assert_close(found.lse, expected.lse)
    torch.testing.assert_close(found.statistics.entropy, expected.statistics.entropy)


@pytest.mark.parametrize("options", [{}, {"lengths": torch.tensor([40])}])
def test_scores_that_are_all_minus_infinity_are_no_dead_row(options: dict[str, Any]) -> None:
    query, key = torch.full((1, 1, 40, 8), 1e20), torch.full((1, 1, 40, 8), -1e20)
    found = attend(query, key, key, impl="chunked", want=("entropy",), **options)
    expected = attend(query, key, key, impl="eager", want=("entropy",), **options)
    assert expected.lse.isnan().all()
    assert found.lse.isnan().all()
    assert found.z.isnan().all()


def test_autocast_changes_nothing() -> None:
    tensors = vectors(queries=K, dtype=torch.float32)
    plain = attend(*tensors, impl="chunked", want=STATISTICS)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(*tensors, impl="chunked", want=STATISTICS)
    assert found.z.equal(plain.z)
    for name, numbers in vars(plain.statistics).items():
        assert numbers is None or getattr(found.statistics, name).equal(numbers), name


def test_nan_in_padding_reaches_nothing() -> None:
    query, key, value = vectors(queries=K)
    key[0, :, 5:], value[0, :, 5:] = math.nan, math.nan
    found = attend(query, key, value, lengths=torch.tensor([5, K]), impl="chunked", want=STATISTICS)
    assert found.z.isfinite().all()
    assert found.statistics is not None
    assert found.statistics.received.isfinite().all()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": some_mask(queries=K)}])
def test_a_nan_comes_out_in_exactly_the_rows_that_see_it(
    which: int, options: dict[str, Any]
) -> None:
    tensors = vectors(queries=K)
    tensors[which][1, 2, 3, 4] = math.nan
    found = attend(*tensors, impl="chunked", want=("entropy",), **options)
    expected = attend(*tensors, impl="reference", **options)
    assert torch.equal(found.lse.isnan(), expected.lse.isnan())
    assert found.z[expected.lse.isnan()].isnan().all()
    assert found.statistics is not None
    assert torch.equal(found.statistics.entropy.isnan(), expected.lse.isnan())


def test_gradients_are_refused_and_auto_takes_another() -> None:
    query, key, value = vectors()
    query.requires_grad_()
    with pytest.raises(AttentionError, match="gradients do not flow through it"):
        attend(query, key, value, impl="chunked", want=("entropy",))
    assert attend(query, key, value, want=("entropy",)).statistics.entropy.requires_grad


def test_memory_does_not_grow_with_the_square() -> None:
    from torch.profiler import ProfilerActivity, profile

    def peak(n: int) -> int:
        work_memory.release()
        tensors = vectors(queries=n, keys=n, dtype=torch.float32)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            attend(*tensors, impl="chunked", want=STATISTICS)
        held = [event.self_cpu_memory_usage for event in profiler.events()]
        return sum(size for size in held if size > 0)

    assert peak(2048) < B * H * 2048 * 2048 * 4
