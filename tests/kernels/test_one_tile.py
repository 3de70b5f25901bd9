"""The kernel for short texts against NumPy float64: in the interpreter, or on a GPU if there."""

import pytest
import torch

from minibert.kernels import eager
from minibert.kernels.call import Call
from minibert.kernels.check.cases import Case
from minibert.kernels.check.problem import truth
from minibert.kernels.check.tolerances import error_of, tolerance_of

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_device")

ALL = ("row_max", "max_prob", "entropy", "argmax", "key_mass", "offset_mass", "received", "map")


def compare(kind, n, d_head, dtype, device, config=None, wants=ALL):
    from minibert.kernels.fused.one_tile import fits, one_tile

    problem = Case(kind, n, n, 1.0).draw(
        dtype=dtype, device=torch.device(device), d_head=d_head, wants=wants, seed=n
    )
    call = problem.call()
    assert fits(call)
    found = one_tile(call, config=config)
    expected, yardstick = truth(problem), eager.attend(call)
    for output in ("z", "lse", *wants):
        error = error_of(output, problem, found, expected)
        assert error <= tolerance_of(output, problem, yardstick, expected), output


@pytest.mark.parametrize(
    ("kind", "n", "d_head"),
    [("mask", 17, 64), ("mask", 61, 24), ("bias", 61, 24), ("causal lengths", 59, 80)],
)
def test_sixteen_rows_a_block_give_what_more_give(kind, n, d_head, triton_device):
    from minibert.kernels.fused.launch import Config

    config = Config(16, 128, 4, 1)
    compare(kind, n, d_head, torch.float16, triton_device, config)


@pytest.mark.parametrize(
    ("kind", "n"), [("lengths", 127), ("causal", 251), ("mask", 127), ("bias", 251)]
)
def test_the_largest_tiles_are_right(kind, n, triton_device):
    # A cell of the map of 251 is larger than the 16 rows of a block.
    d_head, wants = (80, ALL) if n == 127 else (24, ALL[:-1])
    compare(kind, n, d_head, torch.float16, triton_device, wants=wants)


def test_no_tile_is_larger_than_the_registers_hold(triton_device):
    from minibert.kernels.fused.one_tile import fits

    def fit(n, d_head, dtype, *, edges=False):
        vectors = torch.empty(1, 1, n, d_head, dtype=dtype, device=triton_device)
        bias = vectors.new_empty(1, 1, 1, 1) if edges else None
        return fits(Call.of(vectors, vectors, vectors, want={"received": ()}, bias=bias))

    assert fit(256, 64, torch.float16)
    assert not fit(257, 64, torch.float16)
    assert not fit(129, 65, torch.float16)
    assert fit(64, 64, torch.float32)
    assert not fit(65, 64, torch.float32)
    assert not fit(33, 65, torch.float32)
    assert fit(256, 64, torch.float16, edges=True)
    assert not fit(16, 64, torch.float32, edges=True)


@pytest.mark.parametrize(("n", "d_head"), [(9, 80), (30, 80), (64, 24)])
def test_tiles_of_float32_are_right(n, d_head, triton_device):
    from minibert.kernels.fused.one_tile import fitted
    from minibert.kernels.fused.tuning import candidates

    (cut,) = candidates("one tile", "fp32", d_head, "causal keys")
    places = 1 << (n - 1).bit_length()
    config = fitted(cut, places, 64, edges=False, wide=True)
    compare("causal lengths", n, d_head, torch.float32, triton_device, config)


@pytest.mark.parametrize("kind", ["mask", "bias"])
def test_a_mask_in_float32_takes_two_passes_and_is_right(kind, triton_device):
    from minibert.kernels.registry import implementations

    problem = Case(kind, 20, 20, 1.0).draw(
        dtype=torch.float32, device=torch.device(triton_device), d_head=16, wants=ALL, seed=1
    )
    found = implementations()["triton"].fn(problem.call())
    expected, yardstick = truth(problem), eager.attend(problem.call())
    for output in ("z", "lse", *ALL):
        error = error_of(output, problem, found, expected)
        assert error <= tolerance_of(output, problem, yardstick, expected), output
