"""The memory a thread keeps for blocks of scores: reused, never shared, given back."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from attention_inputs import vectors
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from minibert.kernels import work_memory
from minibert.kernels.api import attend
from minibert.kernels.blocks import Inputs, parts_of
from minibert.kernels.call import Call
from minibert.kernels.columns import column_sums
from minibert.kernels.work_memory import WorkMemory

WANT = ("entropy", "received")


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    work_memory.release()


def found_by(impl: str, *, seed: int = 0, **options: Any) -> dict[str, torch.Tensor]:
    attended = attend(*vectors(seed=seed), impl=impl, want=WANT, **options)
    return {"z": attended.z, "lse": attended.lse, **vars(attended.statistics)}


def assert_right(found: dict[str, torch.Tensor], *, seed: int = 0) -> None:
    for name, expected in found_by("reference", seed=seed).items():
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-13, msg=name)


def addresses_kept() -> dict[str, int]:
    return {name: array.data_ptr() for name, array in work_memory._kept.arrays.items()}


def memory_of(n_keys: int = 33, dtype: torch.dtype = torch.float32) -> WorkMemory:
    return WorkMemory(torch.ones(2, 3, n_keys, 8, dtype=dtype), n_keys=n_keys, causal=False)


def test_the_next_call_takes_the_memory_of_the_last_unless_it_was_released() -> None:
    with memory_of() as memory:
        first = memory.scores((3,)).data_ptr()
        assert memory.second((3,)).data_ptr() != first
    with memory_of(n_keys=7) as memory:
        assert memory.scores((3,)).data_ptr() == first
    assert work_memory._kept.arrays.keys() == {"scores", "second"}
    work_memory.release()
    assert not work_memory._kept.arrays


def test_what_is_too_small_or_of_another_dtype_is_not_taken() -> None:
    with memory_of(n_keys=7) as memory:
        memory.scores((3,))
    with memory_of(n_keys=33) as memory:
        assert memory.scores((6 * 33 * 33,)).numel() == 6 * 33 * 33
    with memory_of(dtype=torch.float64) as memory:
        assert memory.scores((3,)).dtype == torch.float64


def test_the_next_part_takes_the_memory_of_the_keys_of_the_last_where_it_is_large_enough() -> None:
    with memory_of() as memory:
        first = memory.vectors("keys", (2, 5, 8)).data_ptr()
        assert memory.vectors("values", (2, 5, 8)).data_ptr() != first
        assert memory.vectors("keys", (1, 5, 8)).data_ptr() == first
        assert memory.vectors("keys", (3, 5, 8)).shape == (3, 5, 8)
    assert work_memory._kept.arrays["keys"].numel() == 3 * 5 * 8


def test_a_short_text_leaves_what_a_long_one_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_memory, "CACHED_CELLS", 49)
    with memory_of() as memory:
        long = memory.scores((3,)).data_ptr()
    with memory_of(n_keys=7) as memory:
        assert memory.cells == 49 * memory.threads
        memory.scores((3,))
    with memory_of() as memory:
        assert memory.cells > 49 * memory.threads
        assert memory.scores((3,)).data_ptr() == long


def test_blocks_of_one_part_take_its_heads_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, _ = vectors()
    heads = query.shape[1]
    monkeypatch.setattr(work_memory, "CELLS", query.shape[2] * key.shape[2])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    parts = list(parts_of(Inputs(Call.of(query, key, key, scale=1.0))))
    assert len(parts) == len(query)
    assert heads > 1
    for part in parts:
        assert [block.place[1] for block in part.blocks()] == [
            slice(n, n + 1) for n in range(heads)
        ]
        for block in part.blocks():
            expected = query[block.place] @ key[block.place[:2]].transpose(-2, -1)
            torch.testing.assert_close(block.scores, expected)


def test_keys_that_are_much_beside_a_block_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_memory, "VECTORS", 10)
    with memory_of() as memory:
        memory.vectors("keys", (memory.threads, 2, 5))
        memory.vectors("values", (memory.threads, 2, 6))
    assert work_memory._kept.arrays.keys() == {"keys"}


def test_rows_longer_than_a_block_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_memory, "MOST_CELLS", 10)
    assert_right(found_by("chunked"))
    assert not work_memory._kept.arrays.keys() & {"scores", "second"}


def test_a_pass_that_begins_within_another_has_memory_of_its_own() -> None:
    query, key, _ = vectors()
    blocks = [
        block
        for part in parts_of(Inputs(Call.of(query, key, key, scale=1.0)))
        for block in part.blocks()
    ]
    assert blocks  # and their memory is kept now
    outer = parts_of(Inputs(Call.of(query, key, key, scale=1.0)))
    scores = next(next(outer).blocks()).scores
    before = scores.clone()
    assert_right(found_by("chunked"))
    assert scores.equal(before)


def test_memory_made_in_inference_mode_serves_outside_of_it_and_the_other_way_round() -> None:
    with torch.inference_mode():
        inside = found_by("chunked")
    assert_right(inside)
    assert_right(found_by("chunked", seed=1), seed=1)
    with torch.inference_mode():
        assert_right(found_by("chunked", seed=2), seed=2)


def test_an_interrupted_call_leaves_nothing_behind_that_counts() -> None:
    query, key, _ = vectors()
    parts = parts_of(Inputs(Call.of(query, key, key, scale=1.0)))
    next(next(parts).blocks()).scores.fill_(torch.nan)
    parts.close()
    assert work_memory._kept.arrays
    assert_right(found_by("chunked"))


def test_what_one_dtype_left_does_not_stand_in_the_way_of_another() -> None:
    for dtype in (torch.float64, torch.float32):
        with memory_of(dtype=dtype) as memory:
            addresses = memory.scores((3,)).data_ptr(), memory.second((3,)).data_ptr()
    with memory_of() as memory:
        assert (memory.scores((3,)).data_ptr(), memory.second((3,)).data_ptr()) == addresses


def test_threads_do_not_share() -> None:
    found_by("chunked")
    kept = addresses_kept()

    def of_a_thread(seed: int) -> tuple[int, dict[str, torch.Tensor]]:
        n_kept = len(work_memory._kept.arrays)
        return n_kept, found_by("chunked", seed=seed)

    with ThreadPoolExecutor(1) as pool:
        n_kept, found = pool.submit(of_a_thread, 5).result()
    assert n_kept == 0
    assert_right(found, seed=5)
    assert addresses_kept() == kept


def test_a_tracer_neither_takes_what_is_kept_nor_leaves_anything() -> None:
    found_by("chunked")
    kept = addresses_kept()
    with FakeTensorMode() as mode:
        query = mode.from_tensor(torch.ones(2, 3, 9, 8))
        with WorkMemory(query, n_keys=9, causal=False) as memory:
            assert isinstance(memory.scores((4,)), FakeTensor)
    assert addresses_kept() == kept


def leave_by_fake_tensors(query: torch.Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        attend(query, query, query, impl="chunked")


def leave_by_functionalize(query: torch.Tensor) -> None:
    torch.func.functionalize(lambda one: attend(one, one, one, impl="chunked").z)(query)


def leave_by_a_graph(query: torch.Tensor) -> None:
    graph = make_fx(lambda one: attend(one, one, one, impl="chunked").z)(query)
    graph(query).fill_(torch.nan)


@pytest.mark.parametrize("leave", [leave_by_fake_tensors, leave_by_functionalize, leave_by_a_graph])
@pytest.mark.parametrize("before", [False, True])
def test_nothing_of_a_transformation_is_kept_or_kept_by_it(leave: Any, before: bool) -> None:
    query = torch.randn(1, 2, 9, 8)
    if before:
        attend(query, query, query, impl="chunked")
    kept = addresses_kept()
    leave(query)
    assert addresses_kept() == kept
    assert all(type(array) is torch.Tensor for array in work_memory._kept.arrays.values())
    assert_right(found_by("chunked"))


def test_what_is_kept_has_the_bound_that_release_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for shape in ((1, 16, 1100, 64), (1, 32, 640, 64), (64, 8, 64, 64), (64, 16, 16, 64)):
        query = torch.randn(shape)
        attend(query, query, query, impl="chunked", want=("entropy",))
        given = {"value": query, "z_gradient": query, "of": "relevance", "impl": "chunked"}
        column_sums(query, query, **given)
    kept = sum(array.nbytes for array in work_memory._kept.arrays.values())
    assert kept <= 52 * 2**20


def test_the_keys_of_many_sentences_are_made_ready_in_parts() -> None:
    query, key = torch.randn(512, 8, 1, 64), torch.randn(512, 8, 16, 64)
    found = attend(query, key, key, impl="chunked")
    assert work_memory._kept.arrays["keys"].numel() <= work_memory.MOST_VECTORS
    expected = attend(query, key, key, impl="reference")
    torch.testing.assert_close(found.z.double(), expected.z, rtol=0, atol=1e-6)
