"""Every family with rotary positions gives what transformers gives, whatever its config says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert.layers import linear_backends as backends
from tests.rotary.classes import ARCHITECTURES, FAMILIES, LANGUAGE
from tests.rotary.drawn import drawn, plain
from tests.rotary.ours import assert_equal, differences, inputs_of, largest, named
from tests.rotary.theirs import as_tokens, batch, model_of, run

# Errors of two float32 computations of some thirty numbers are apart by chance: an error of up to
# that many units in the last place of the largest number is no fault.
FLOOR = 8 * torch.finfo(torch.float32).eps


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
@settings(max_examples=4)
@given(data=st.data())
def test_float32_errs_at_most_twice_what_it_does_in_transformers(
    family: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    exact, single = (
        model_of(chosen, LANGUAGE[family], dtype) for dtype in (torch.float64, torch.float32)
    )
    model = minibert.load(single)
    # The same matrix products on both sides: what is left is what our code adds.
    backends.use("torch")
    try:
        for inputs in inputs_of(chosen):
            tokens, truth = as_tokens(inputs), run(exact, inputs)
            ours = differences(named(model.trace(tokens)), truth, tokens)
            theirs = differences(run(single, inputs), truth, tokens)
            _assert_within(ours, theirs, largest(truth))
    finally:
        backends.use(None)


def _assert_within(
    ours: dict[str, float], theirs: dict[str, float], sizes: dict[str, float]
) -> None:
    far = {
        name: (error, theirs[name])
        for name, error in ours.items()
        if not error <= max(2 * theirs[name], FLOOR * max(1.0, sizes[name]))
    }
    assert not far, far


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
