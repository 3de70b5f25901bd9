"""The Triton kernels on drawn calls, at most twice as wrong as eager; many more: `make siege`'s
class "fused", which has 257 positions as well."""

import math

import pytest
import torch
from drawn_calls import Drawn
from fused_calls import backward_errors, call_of, forward_errors, wrong

pytest.importorskip("triton")

SMALL = (1, 17)


@pytest.mark.parametrize("seed", range(8))
def test_a_drawn_call_is_at_most_twice_as_wrong_as_eager(seed: int) -> None:
    call = call_of(seed, sizes=SMALL)
    assert wrong(forward_errors(call)) == [], call
    assert wrong(backward_errors(call, seed)) == [], call


def test_the_drawn_calls_have_groups_of_eight_and_every_layout() -> None:
    drawn = [call_of(seed, sizes=SMALL) for seed in range(8)]
    assert {one.query.shape[1] // one.key.shape[1] for one in drawn} >= {1, 4, 8}
    assert {"packed", "pages", "window", "lengths"} <= {n for one in drawn for n in one.options}


def test_an_error_of_three_times_eager_and_a_missing_number_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fused_calls

    call, attend = Drawn(*torch.randn(3, 1, 1, 17, 8).unbind()), fused_calls.attend

    def planted(*vectors: torch.Tensor, impl: str, **options: object) -> object:
        found = attend(*vectors, impl="eager", **options)
        if impl == "triton":
            found.z[0, 0, 3, 2] += 1e-3
            found.lse[0, 0, 5] = math.nan
        return found

    monkeypatch.setattr(fused_calls, "attend", planted)
    assert [said.split()[0] for said in wrong(forward_errors(call))] == ["z", "lse"]
