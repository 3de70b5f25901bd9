"""Any call of `attend`, drawn over all its fields, against NumPy float64 and bounds of rounding."""

from random import Random
from typing import Any

import pytest
import torch
from calls_by_hand import STATISTICS, Units, complaints, truth
from drawn_calls import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.errors import AttentionError
from minibert.kernels.api import attend, implementations

EPS = {one: torch.finfo(one).eps for one in (torch.float64, torch.float32, torch.bfloat16)}
CASES = [
    (impl, dtype)
    for impl in ("eager", "sdpa", "chunked", "flex")
    for dtype in EPS
    if dtype in implementations()[impl].dtypes
]


def units_of(impl: str, dtype: torch.dtype, options: dict[str, Any]) -> Units:
    """Where an implementation rounds: chunked at the end alone, torch's own the probs as well.

    ALiBi is rounded where it becomes a bias: to whoever does not take it, and beside pages.
    """
    sums = EPS[torch.float64 if dtype == torch.float64 else torch.float32]
    scores = EPS[dtype] if impl == "eager" else sums
    added = impl in ("eager", "sdpa") or "pages" in options or "packed" in options
    probs = sums if impl == "chunked" else EPS[dtype]
    return Units(sums, scores, EPS[dtype] if added else sums, probs, EPS[dtype])


@pytest.mark.parametrize(("impl", "dtype"), CASES, ids=str)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_call_is_right_to_rounding(impl: str, dtype: torch.dtype, seed: int) -> None:
    call = drawn(Random(seed), dtype)
    want = () if impl == "flex" else STATISTICS
    if "pages" in call.options:
        want = tuple(name for name in want if name != "offset_mass")
    asked = {"impl": impl, "want": want, **call.options}
    if impl == "sdpa" and {"soft_cap", "sinks"} & call.options.keys():
        with pytest.raises(AttentionError, match="it takes no"):
            attend(call.query, call.key, call.value, **asked)
        return
    found = attend(call.query, call.key, call.value, **asked)
    lse_error = implementations()[impl].lse_error if dtype == torch.bfloat16 else 0.0
    right = truth(call, units_of(impl, dtype, call.options))
    assert not complaints(call, found, right, lse_error=lse_error), str(call)
