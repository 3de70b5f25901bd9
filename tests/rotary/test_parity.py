"""Every family with rotary positions gives what transformers gives, whatever its config says."""

import statistics
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.layers import linear_backends as backends
from tests.rotary.classes import ARCHITECTURES, FAMILIES, LANGUAGE
from tests.rotary.drawn import Drawn, drawn, plain
from tests.rotary.ours import assert_equal, inputs_of, named, squared_differences
from tests.rotary.theirs import as_tokens, batch, model_of, run

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES, ids=[name for _, name in ARCHITECTURES])
@settings(max_examples=3)
@given(data=st.data())
def test_streams_attention_and_logits_are_those_of_transformers(
    family: str, name: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    theirs = model_of(chosen, name)
    model = minibert.load(theirs)
    for inputs in inputs_of(chosen):
        tokens = as_tokens(inputs)
        assert_equal(named(model.trace(tokens)), run(theirs, inputs), tokens)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3)
@given(data=st.data())
def test_float32_errs_at_most_twice_what_it_does_in_transformers(
    family: str, data: st.DataObject
) -> None:
    """The geometric mean over six configurations; one rounding of a small model is chance."""
    ratios: dict[str, list[float]] = defaultdict(list)
    # The same matrix products on both sides: what is left is what our code adds.
    backends.use("torch")
    try:
        for place in range(6):
            chosen = data.draw(drawn(family))
            # The first example is the simplest, six times: of other weights each.
            chosen = replace(chosen, seed=chosen.seed + place)
            for kind, (mine, its) in errors_of(chosen).items():
                ratios[kind].append(max(mine, EPS / 8) / max(its, EPS / 8))
    finally:
        backends.use(None)
    means = {kind: statistics.geometric_mean(each) for kind, each in ratios.items()}
    assert all(mean <= 2 for mean in means.values()), means


def errors_of(chosen: Drawn) -> dict[str, tuple[float, float]]:
    """The root mean square of our float32 error and of transformers', by kind of quantity."""
    ours: dict[str, list[Tensor]] = defaultdict(list)
    theirs: dict[str, list[Tensor]] = defaultdict(list)
    exact, single = (
        model_of(chosen, LANGUAGE[chosen.family], dtype) for dtype in (torch.float64, torch.float32)
    )
    model = minibert.load(single)
    for inputs in inputs_of(chosen):
        tokens, truth = as_tokens(inputs), run(exact, inputs)
        pairs = ((ours, named(model.trace(tokens))), (theirs, run(single, inputs)))
        for kept, found in pairs:
            for name, squares in squared_differences(found, truth, tokens).items():
                kept[name.rstrip("0123456789 ")].append(squares.flatten())

    def error(squares: list[Tensor]) -> float:
        return torch.cat(squares).mean().sqrt().item()

    return {kind: (error(ours[kind]), error(theirs[kind])) for kind in ours}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_in_float32_unless_it_is_kept_from_it(family: str) -> None:
    """What `wide` is for: it matters while a model runs, and while its buffers are made."""
    theirs, inputs = model_of(plain(family), LANGUAGE[family]), batch((13,))
    exact = run(theirs, inputs)["logits"]
    made_narrow = model_of(plain(family), LANGUAGE[family], torch.float32).double()
    for each in (theirs, made_narrow):
        with torch.no_grad():
            logits = each(**inputs).logits
        assert logits.dtype == torch.float64
        assert (logits - exact).abs().max() > 1e-9
