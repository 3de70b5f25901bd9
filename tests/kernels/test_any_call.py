"""Any call of `attend`, drawn over all its fields, against NumPy float64 and bounds of rounding."""

from random import Random

import pytest
import torch
from any_call import CASES, NOT_FUSED, wrong, wrong_gradients
from drawn_calls import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import AttentionError
from minibert.kernels import work_memory

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize(("impl", "dtype"), CASES, ids=str)
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, cells=st.sampled_from([1, 100, work_memory.CELLS]))
def test_any_call_is_right_to_rounding(
    impl: str, dtype: torch.dtype, seed: int, cells: int
) -> None:
    if impl == "sdpa" and NOT_FUSED & drawn(Random(seed), dtype).options.keys():
        with pytest.raises(AttentionError, match="it takes no"):
            wrong(impl, dtype, seed)
        return
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of any size: the calls are too small for more than one of the usual ones.
        patch.setattr(work_memory, "CELLS", cells)
        if cells <= 100:
            patch.setattr(work_memory, "LEAST_ROWS", 2)
            patch.setattr(work_memory, "CAUSAL_ROWS", 3)
        assert not wrong(impl, dtype, seed)


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_any_calls_gradients_are_those_of_the_formulas(impl: str, seed: int) -> None:
    if impl == "sdpa" and NOT_FUSED & drawn(Random(seed), torch.float64).options.keys():
        return
    assert not wrong_gradients(impl, seed)
