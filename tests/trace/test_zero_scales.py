"""What a norm cannot divide by is refused where an edit writes it."""

from typing import Any

import pytest
import torch

from minibert.errors import EditError
from minibert.trace.edit import replace, zero
from tests.trace.norms_of_peers import FINAL, LAYER, Pair


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_scale_that_nothing_can_be_divided_by_is_refused(family: str) -> None:
    pair = Pair(family)
    trace = pair.ours.trace(pair.tokens)
    keys: list[Any] = [("attention_norm_scale", LAYER), ("mlp_norm_scale", LAYER)]
    keys += ["final_norm_scale"] if family in FINAL else []
    # The reciprocal of the smallest of these is beyond float64.
    for edit in (0.0, -0.0, 1e-320, zero, lambda scale: scale * 0, lambda scale: scale * torch.nan):
        for key in keys:
            with pytest.raises(EditError, match=r"_norm_scale.*: the norm divides by this"):
                trace.rerun({key: edit})
    at_one = replace(0.0, positions=-1, sentences=1)
    with pytest.raises(EditError, match=r"made 0 of it at position \d+ of sentence 1"):
        trace.rerun({keys[0]: at_one})
    for edit in (1e-3, -2.0):
        assert bool(trace.rerun(dict.fromkeys(keys, edit)).logits.isfinite().all())


def test_a_sweep_refuses_a_scale_of_zero() -> None:
    pair = Pair("gpt2")
    with pytest.raises(EditError, match="the norm divides by this"):
        pair.ours.trace(pair.tokens).rerun_each(
            [{("mlp_norm_scale", LAYER): zero}], lambda logits: logits[:, -1, 0]
        )
