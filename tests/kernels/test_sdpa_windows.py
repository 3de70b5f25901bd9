"""Long texts in a window by sdpa: blocks of rows give what the whole mask gives."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minibert.kernels.allowed_keys import AllowedKeys, Window
from minibert.kernels.api import compute
from minibert.kernels.call import Call

CALLS: list[tuple[bool, Window, tuple[int, ...]]] = [
    (True, (99, 0), (1100, 1100)),
    (True, (255, 0), (1300, 700)),
    (True, (100, None), (777, 1)),
    (False, (40, 40), (1030, 1030)),
    (False, (0, 0), (600, 300)),
    (False, (3, 200), (900, 899)),
]


class Largest(TorchDispatchMode):
    """The numbers of the largest boolean that an operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.bool:
            self.numbers = max(self.numbers, found.numel())
        return found


@pytest.mark.parametrize(("causal", "window", "lengths"), CALLS)
def test_rows_are_taken_block_by_block(
    causal: bool, window: Window, lengths: tuple[int, ...]
) -> None:
    generator, longest = torch.Generator().manual_seed(0), max(lengths)
    query = torch.randn(2, 4, longest, 16, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, longest, 16, generator=generator, dtype=torch.float64)
    ragged = None if min(lengths) == longest else lengths
    allowed = AllowedKeys(2, longest, query.device, causal, ragged, window=window)
    for vectors in (query, key, value):
        vectors.requires_grad_()
    call = Call(query, key, value, 0.25, allowed)
    found = {}
    for impl in ("sdpa", "eager"):
        with Largest() as largest:
            z = compute(call, impl).z
        gradients = torch.autograd.grad(z.square().sum(), [query, key, value])
        found[impl] = (z.detach(), *gradients)
        assert (largest.numbers < longest**2 / 1.5) == (impl == "sdpa")
    for mine, expected in zip(*found.values(), strict=True):
        assert torch.allclose(mine, expected, atol=1e-12)
