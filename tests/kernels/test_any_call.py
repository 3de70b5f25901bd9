"""Any call of `attend`, drawn over all its fields, against NumPy float64 and bounds of rounding."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from calls_by_hand import Units, complaints, gradients, truth, wanted
from drawn_calls import Drawn, drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minibert.errors import AttentionError
from minibert.kernels import work_memory
from minibert.kernels.api import attend, implementations

EPS = {one: torch.finfo(one).eps for one in (torch.float64, torch.float32, torch.bfloat16)}
#: Options that torch's fused attention does not know.
NOT_FUSED = {"soft_cap", "sinks"}
CASES = [
    (impl, dtype)
    for impl in ("eager", "sdpa", "chunked")
    for dtype in EPS
    if dtype in implementations()[impl].dtypes
] + [("reference", torch.float64)]


def units_of(impl: str, dtype: torch.dtype, options: dict[str, Any]) -> Units:
    """Where an implementation rounds: chunked at the end alone, torch's own the probs as well.

    ALiBi is rounded where it becomes a bias: to whoever does not take it, and beside pages.
    """
    sums = EPS[torch.float64 if dtype == torch.float64 else torch.float32]
    scores = EPS[dtype] if impl == "eager" else sums
    added = impl in ("eager", "sdpa") or "pages" in options or "packed" in options
    probs = sums if impl == "chunked" else EPS[dtype]
    return Units(sums, scores, EPS[dtype] if added else sums, probs, EPS[dtype])


def wrong(impl: str, dtype: torch.dtype, seed: int) -> list[str]:
    """What an implementation gives wrongly for the call of a seed; empty where all is right.

    Raises AttentionError for a call that it does not take.
    """
    call = drawn(Random(seed), dtype)
    want = wanted(call) if implementations()[impl].wants else ()
    key, value = (with_garbage(one, call.options) for one in (call.key, call.value))
    found = attend(call.query, key, value, impl=impl, want=want, **call.options)
    lse_error = implementations()[impl].lse_error if dtype == torch.bfloat16 else 0.0
    right = truth(call, units_of(impl, dtype, call.options))
    said = [*complaints(call, found, right, lse_error=lse_error), *wrong_dtypes(found, dtype)]
    return [f"{one} in {call}" for one in said]


def with_garbage(numbers: Tensor, options: dict[str, Any]) -> Tensor:
    """Keys or values with large numbers behind the end of each sentence, where nothing looks."""
    if "lengths" not in options or "pages" in options:
        return numbers
    beyond = torch.arange(numbers.shape[2]) >= options["lengths"][:, None, None]
    return numbers.masked_fill(beyond.unsqueeze(-1), 1e30)


def wrong_dtypes(found: Any, dtype: torch.dtype) -> list[str]:
    """The outputs in another dtype than the call's (z), int64 (keys), float32 or float64."""
    wide = torch.promote_types(dtype, torch.float32)
    known = {"z": dtype, "argmax": torch.int64, "top_keys": torch.int64}
    statistics = vars(found.statistics) if found.statistics else {}
    given = {"z": found.z, "lse": found.lse} | statistics
    return [
        f"{name} is {one.dtype}"
        for name, one in given.items()
        if one is not None and one.dtype != known.get(name, wide)
    ]


def wrong_gradients(impl: str, seed: int) -> list[str]:
    """Which gradients of z, in float64, are not those of the formulas; see `wrong`."""
    call = drawn(Random(seed), torch.float64)
    leaves, options = options_as_leaves(call, ("bias", "alibi_slopes", "sinks"))
    z = attend(leaves["query"], leaves["key"], leaves["value"], impl=impl, **options).z
    generator = torch.Generator().manual_seed(seed)
    z_gradient = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    z.backward(z_gradient)
    right = gradients(Drawn(call.query, call.key, call.value, options), z_gradient.numpy())
    said = []
    for name, expected in right.items():
        leaf = leaves[name]
        found = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        size = 1 + np.abs(expected).max(initial=0)
        if not np.abs(found - expected).max(initial=0) <= 1e-10 * size:
            said.append(
                f"gradient of {name} is off by {np.abs(found - expected).max():.1e} in {call}"
            )
    return said


def options_as_leaves(
    call: Drawn, trained: tuple[str, ...]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """query, key and value as leaves with those of the options that are trained; all options."""
    leaves = {name: _leaf(getattr(call, name)) for name in ("query", "key", "value")}
    options = dict(call.options)
    for name in trained:
        if name in options:
            given = options[name]
            wide = given.double() if call.query.dtype == torch.float64 else given
            leaves[name] = options[name] = _leaf(wide)
    return leaves, options


def _leaf(numbers: Tensor) -> Tensor:
    return numbers.detach().requires_grad_()


SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize(("impl", "dtype"), CASES, ids=str)
@settings(max_examples=30, deadline=None)
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
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_any_calls_gradients_are_those_of_the_formulas(impl: str, seed: int) -> None:
    if impl == "sdpa" and NOT_FUSED & drawn(Random(seed), torch.float64).options.keys():
        return
    assert not wrong_gradients(impl, seed)
