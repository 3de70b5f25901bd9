"""Every option of the forward in Triton, drawn together, against NumPy float64."""

import math
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from calls_by_hand import STATISTICS, Units, complaints, truth, wanted
from drawn_calls import Drawn, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.kernels.api import attend
from minibert.kernels.call import Call, parse_want

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = frozenset((*STATISTICS, "key_mass", "map"))
CUTS = [(16, 16, 4, 1), (16, 32, 4, 1), (32, 16, 4, 1), (64, 64, 4, 1)]


def fused(call: Drawn, cut: tuple[int, ...], want: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the kernels give that are cut like this."""
    from minibert.kernels.fused import attention, columns, forward, one_tile
    from minibert.kernels.fused.launch import Config

    told = {n: x.to(DEVICE) if torch.is_tensor(x) else x for n, x in call.options.items()}
    with pytest.MonkeyPatch.context() as patch:
        for module in (columns, forward, one_tile):
            patch.setattr(module, "best_config", lambda *_: Config(*cut))
        vectors = (one.to(DEVICE) for one in (call.query, call.key, call.value))
        found = attention.attend(Call.of(*vectors, want=want, **told))
    return {name: one.cpu() for name, one in found.items()}


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.sampled_from(CUTS),
    st.just(ALL) | st.frozensets(st.sampled_from(sorted(ALL))),
)
def test_any_options_together_are_right(seed, cut, names):
    random = Random(seed)
    dtype = random.choice((torch.float32, torch.float16))
    call = drawn(random, dtype)
    while "pages" in call.options:
        # Keys in pages are handed on one after the other: nothing of these kernels.
        call = drawn(random, dtype)
    asked = [one for one in wanted(call, of_tensors=False) if one[0] in names or one in names]
    want = parse_want(asked, n_keys=None)
    found = fused(call, cut, want)
    assert set(found) == {"z", "lse", *want}
    eps = torch.finfo(dtype).eps
    right = truth(call, Units(2.0**-23, 2.0**-23, 2.0**-23, eps, eps))
    if "argmax" in want and eps > 2.0**-23:
        # What `launch.best_of` says of inputs of 16 bits: their keys take the last bits of a score.
        right.row_max_bound = right.row_max_bound + 2.0**-17 * np.abs(right.row_max)
    # Below the smallest normal number the spacing is no longer relative: of z, and of weights.
    spacing = torch.finfo(dtype).smallest_normal * eps
    values = (
        call.value.double()
        .abs()
        .sum(2, keepdim=True)
        .repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)
    )
    right.z_bound = right.z_bound + spacing * (1 + values.numpy())
    nothing = dict.fromkeys(STATISTICS)
    statistics = SimpleNamespace(**nothing | found)
    outputs = SimpleNamespace(z=found["z"], lse=found["lse"], statistics=statistics)
    assert not complaints(call, outputs, right), f"{call} {want}"


@pytest.mark.parametrize("window", [(20, 0), (40, 25)])
def test_blocks_outside_the_window_are_not_read(window):
    call = Drawn(*torch.randn(3, 1, 1, 160, 8).unbind(), {"window": window, "scale": 0.3})
    want = {"entropy": ()}
    expected = attend(
        call.query, call.key, call.value, impl="reference", want=("entropy",), **call.options
    )
    # The queries 80 to 95 are a block, whose keys come in blocks of 16.
    first, last = (80 - window[0]) // 16 * 16, math.ceil((96 + window[1]) / 16) * 16
    for one in (call.key, call.value):
        one[:, :, :first] = one[:, :, last:] = math.nan
    found = fused(call, CUTS[0], want)
    rows = slice(80, 96)
    for ours, theirs in (
        (found["z"][:, :, rows], expected.z[:, :, rows]),
        (found["lse"][:, :, rows], expected.lse[:, :, rows]),
        (found["entropy"][:, :, rows], expected.statistics.entropy[:, :, rows]),
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [(20, 0), (40, 25)])
def test_queries_that_do_not_see_a_key_are_not_read_for_its_sum(window):
    from minibert.kernels.fused.columns import received_and_map
    from minibert.kernels.fused.launch import Config

    query, key = torch.randn(2, 1, 1, 160, 8).unbind()
    options, want = {"window": window, "scale": 0.3}, ("received",)
    expected = attend(query, key, key, impl="reference", want=want, **options)
    # The keys 80 to 95 are a block, which queries see from 80 − after to 95 + before.
    first, last = (80 - window[1]) // 16 * 16, math.ceil((96 + window[0]) / 16) * 16
    query[:, :, :first] = query[:, :, last:] = math.nan
    vectors = [one.to(DEVICE) for one in (query, key, key)]
    call, lse = Call.of(*vectors, want={"received": ()}, **options), expected.lse.float().to(DEVICE)
    found = received_and_map(call, lse=lse, config=Config(*CUTS[0]))["received"].cpu()
    right = expected.statistics.received[:, :, 80:96]
    torch.testing.assert_close(found[:, :, 80:96].double(), right, rtol=0, atol=1e-5)


def test_nothing_is_made_on_the_host_at_the_second_call(monkeypatch):
    lengths = torch.tensor([20], device=DEVICE)
    vectors = torch.randn(3, 1, 2, 30, 8).unbind()
    calls = [
        (Drawn(*vectors, {"lengths": lengths}), {"map": (3,), "received": (), "key_mass": (0,)}),
        (Drawn(*vectors, {"packed": (10, 20)}), {"received": (), "offset_mass": (-1,)}),
    ]
    for call, want in calls:
        fused(call, CUTS[3], want)

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a tensor was made on the host")

    monkeypatch.setattr(torch, "tensor", refused)
    for call, want in calls:
        fused(call, CUTS[3], want)
