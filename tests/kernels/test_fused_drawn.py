"""The Triton kernels on drawn calls, each number within its bound; many more: `make siege`'s class
"fused", which has 257 positions as well."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import fused_calls
import pytest
import torch
from drawn_calls import Drawn
from fused_calls import backward_errors, call_of, forward_errors, wrong

pytest.importorskip("triton")

from minibert.kernels.fused import backward as starts
from minibert.kernels.fused import backward_kernels

SMALL = (1, 17)
#: What stands in the kernels of the backward, what takes its place, and the gradients it spoils.
FAULTS = {
    "a dropped scale": ("d_key * scale", "d_key", ["key"]),
    "a block of queries skipped": (
        "range(first, last, BLOCK_M)",
        "range(first + BLOCK_M, last, BLOCK_M)",
        ["key", "value"],
    ),
    "a head of the group left out": (
        "first_head + sizes.group)",
        "first_head + sizes.group - 1)",
        ["key", "value"],
    ),
    "the head of another group": (
        "key_head * sizes.group",
        "tl.maximum(key_head * sizes.group - 1, 0)",
        ["key", "value"],
    ),
    "delta left out": (
        "d_scores = probs * (d_probs - tl.load(inputs.delta + at))",
        "d_scores = probs * d_probs",
        ["key"],
    ),
    "the last block of keys skipped": (
        "tl.range(first, last, BLOCK_N,",
        "tl.range(first, last - BLOCK_N, BLOCK_N,",
        ["query"],
    ),
    "scores rounded to half precision": (
        "input_precision=PRECISION)\n        probs = probabilities(\n            products, logs",
        "input_precision=PRECISION).to(tl.float16)\n        probs = probabilities(\n"
        "            products, logs",
        ["query"],
    ),
}


# The last has weights below the least number of float32.
@pytest.mark.parametrize("seed", [*range(8), 5035])
def test_a_drawn_call_is_within_its_bounds(seed: int) -> None:
    call = call_of(seed, sizes=SMALL)
    assert wrong(forward_errors(call)) == [], call
    assert wrong(backward_errors(call, seed)) == [], call


def test_the_drawn_calls_have_groups_of_eight_and_every_layout() -> None:
    drawn = [call_of(seed, sizes=SMALL) for seed in range(8)]
    assert {one.query.shape[1] // one.key.shape[1] for one in drawn} >= {1, 4, 8}
    assert {"packed", "pages", "window", "lengths"} <= {n for one in drawn for n in one.options}


def test_a_slightly_wrong_and_a_missing_number_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    call, attend = Drawn(*torch.randn(3, 1, 1, 17, 8).unbind()), fused_calls.attend

    def planted(*vectors: torch.Tensor, impl: str, **options: object) -> object:
        found = attend(*vectors, impl="eager", **options)
        if impl == "triton":
            found.z[0, 0, 3, 2] += 1e-3
            found.lse[0, 0, 5] = math.nan
        return found

    monkeypatch.setattr(fused_calls, "attend", planted)
    assert [said.split()[0] for said in wrong(forward_errors(call))] == ["z", "lse"]


def two_groups(dtype: torch.dtype) -> Drawn:
    """Two groups of two heads, of more queries and keys than a tile has."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 80, 8), (1, 2, 80, 8), (1, 2, 80, 8))
    return Drawn(*(torch.randn(one, generator=generator).to(dtype) for one in shapes))


def test_two_groups_are_within_their_bounds() -> None:
    for dtype in fused_calls.DTYPES:
        assert wrong(backward_errors(two_groups(dtype), 0)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_backward_is_beyond_the_bounds(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right, slip, spoiled = FAULTS[fault]
    broken = altered(backward_kernels, right, slip, tmp_path)
    for name in ("backward_key_value_kernel", "backward_query_kernel"):
        monkeypatch.setattr(starts, name, getattr(broken, name))
    # float32 has the narrow bounds; a part of the terms is missed in half precision as well.
    rounded = "rounded" in fault
    for dtype in fused_calls.DTYPES[: 1 if rounded else 2]:
        said = wrong(backward_errors(two_groups(dtype), 0))
        assert [one.split()[0] for one in said] == spoiled, dtype


def altered(module: ModuleType, right: str, slip: str, folder: Path) -> ModuleType:
    """The module with another text in one place."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert text.count(right) == 1, right
    path = folder / "broken.py"
    path.write_text(text.replace(right, slip), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("broken", path)
    assert spec is not None
    assert spec.loader is not None
    broken = importlib.util.module_from_spec(spec)
    sys.modules["broken"] = broken
    spec.loader.exec_module(broken)
    return broken
