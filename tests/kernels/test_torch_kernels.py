"""torch's own kernels: what they were seen to do, and windows by blocks."""

from random import Random

import pytest
import torch
from attention_inputs import D, by_torch, vectors
from drawn_calls import drawn
from torch.utils._python_dispatch import TorchDispatchMode

from minibert.kernels import torch_kernels
from minibert.kernels.allowed_keys import AllowedKeys, Window
from minibert.kernels.api import attend, compute
from minibert.kernels.call import Call
from tests.kernels.test_any_call import NOT_FUSED, wrong


def test_any_call_is_right_without_the_private_operator(monkeypatch):
    monkeypatch.setattr(torch_kernels, "_flash_for_cpu", None)
    for seed in range(40):
        if not NOT_FUSED & drawn(Random(seed), torch.float32).options.keys():
            assert not wrong("sdpa", torch.float32, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", [slice(None), slice(0, 512), slice(-1, None)])
@pytest.mark.parametrize("keys", [1, 16, 1301])
def test_keys_that_are_nan_come_out_wherever_the_blocks_of_the_kernel_end(dtype, where, keys):
    query, key, value = vectors(keys=keys, dtype=dtype)
    key[:, :, where] = float("nan")
    found = attend(query, key, value, impl="sdpa")
    rows = key.isnan().any(dim=-1).any(dim=-1, keepdim=True).expand_as(found.lse)
    assert torch.equal(found.lse.isnan(), rows)
    assert torch.equal(found.z.isnan().all(dim=-1), rows)


def test_an_lse_that_is_zero_by_right_stays_zero_and_one_of_training_is_detached():
    zeros, value = torch.zeros(1, 1, 1, D), torch.randn(1, 1, 1, D)
    found = attend(zeros, zeros, value, impl="sdpa")
    assert found.lse.item() == 0
    torch.testing.assert_close(found.z, value)
    query, key, value = (tensor.requires_grad_() for tensor in vectors())
    found = attend(query, key, value, impl="sdpa")
    assert found.z.requires_grad
    assert not found.lse.requires_grad
    torch.testing.assert_close(found.lse, by_torch(query, key, value)["lse"].detach())


class Largest(TorchDispatchMode):
    """The numbers of the largest boolean that an operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.bool:
            self.numbers = max(self.numbers, found.numel())
        return found


@pytest.mark.parametrize(
    ("causal", "window", "lengths"),
    [
        (True, (255, 0), (1300, 700)),
        (True, (100, None), (777, 1)),
        (False, (40, 40), (1030, 1030)),
        (False, (0, 0), (600, 300)),
        (False, (3, 200), (900, 899)),
    ],
)
def test_the_rows_of_a_window_are_taken_block_by_block(
    causal: bool, window: Window, lengths: tuple[int, ...]
) -> None:
    generator, longest = torch.Generator().manual_seed(0), max(lengths)
    query = torch.randn(2, 4, longest, 16, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, longest, 16, generator=generator, dtype=torch.float64)
    ragged = None if min(lengths) == longest else lengths
    allowed = AllowedKeys(2, longest, query.device, causal, ragged, window=window)
    for one in (query, key, value):
        one.requires_grad_()
    call, found = Call(query, key, value, 0.25, allowed), {}
    for impl in ("sdpa", "eager"):
        with Largest() as largest:
            z = compute(call, impl).z
        gradients = torch.autograd.grad(z.square().sum(), [query, key, value])
        found[impl] = (z.detach(), *gradients)
        assert (largest.numbers < longest**2 / 1.5) == (impl == "sdpa")
    for mine, expected in zip(*found.values(), strict=True):
        assert torch.allclose(mine, expected, atol=1e-12)
