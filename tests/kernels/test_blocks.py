"""Blocks of rows: how exact they are, what they spare, and the memory that a thread keeps."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from attention_inputs import STATISTICS, B, H, outputs, vectors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from minibert.kernels import blocks, work_memory
from minibert.kernels.api import attend
from minibert.kernels.blocks import Inputs, parts_of
from minibert.kernels.call import Call

WANT = ("row_max", "max_prob", "entropy", "received")


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    work_memory.release()


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


def test_memory_does_not_grow_with_the_square() -> None:
    from torch.profiler import ProfilerActivity, profile

    tensors = vectors(queries=2048, keys=2048, dtype=torch.float32)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        attend(*tensors, impl="chunked", want=STATISTICS)
    held = [event.self_cpu_memory_usage for event in profiler.events()]
    assert sum(size for size in held if size > 0) < B * H * 2048 * 2048 * 4


def assert_right(seed: int = 0) -> None:
    """A call of this seed is as the reference says, and uses the thread's memory."""
    found = outputs(attend(*vectors(seed=seed), impl="chunked", want=WANT))
    for name, right in outputs(attend(*vectors(seed=seed), impl="reference", want=WANT)).items():
        torch.testing.assert_close(found[name], right, rtol=0, atol=1e-13, msg=name)


def addresses_kept() -> dict[str, int]:
    return {name: array.data_ptr() for name, array in work_memory._kept.arrays.items()}


def test_a_pass_that_begins_within_another_or_is_left_has_memory_of_its_own() -> None:
    query, key, _ = vectors()
    inputs = Inputs(Call.of(query, key, key, scale=1.0))
    assert [block for part in parts_of(inputs) for block in part.blocks()]
    outer = parts_of(inputs)
    scores = next(next(outer).blocks()).scores
    before = scores.clone()
    assert_right()
    assert scores.equal(before)
    scores.fill_(torch.nan)
    outer.close()
    assert work_memory._kept.arrays
    assert_right()


def test_threads_do_not_share_and_memory_of_inference_mode_serves_outside_of_it() -> None:
    with torch.inference_mode():
        assert_right()
    assert_right(seed=1)
    with torch.inference_mode():
        assert_right(seed=2)
    kept = addresses_kept()

    def of_a_thread() -> int:
        n_kept = len(work_memory._kept.arrays)
        assert_right(seed=5)
        return n_kept

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(of_a_thread).result() == 0
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
    assert_right()


def test_what_is_kept_has_the_bound_that_release_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    # The keys of many sentences are made ready in parts.
    for shape in ((1, 16, 1100, 64), (1, 32, 640, 64), (64, 8, 64, 64), (512, 8, 16, 64)):
        query = torch.randn(shape)
        attend(query, query, query, impl="chunked", want=("entropy",))
    assert work_memory._kept.arrays["keys"].numel() <= work_memory.MOST_VECTORS
    assert sum(array.nbytes for array in work_memory._kept.arrays.values()) <= 52 * 2**20
