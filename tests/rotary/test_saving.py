"""What is saved loads in transformers, and here, with the same logits."""

import tempfile

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert.checkpoint.save import save
from tests.rotary.classes import ARCHITECTURES
from tests.rotary.drawn import drawn
from tests.rotary.ours import LIMIT, inputs_of
from tests.rotary.theirs import as_tokens, model_of, run
from tests.rotary.wide import wide


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES, ids=[name for _, name in ARCHITECTURES])
@settings(max_examples=1)
@given(data=st.data())
def test_a_saved_model_is_the_same_in_transformers(
    family: str, name: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    theirs = model_of(chosen, name)
    model = minibert.load(theirs)
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        here = minibert.load(folder)
        with wide():
            there, report = getattr(transformers, name).from_pretrained(
                folder, attn_implementation="eager", output_loading_info=True
            )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert here.config == model.config
    for inputs in inputs_of(chosen):
        tokens = as_tokens(inputs)
        expected = run(theirs, inputs)["logits"]
        rows = tokens.mask if expected.dim() > 2 else slice(None)
        for logits in (run(there, inputs)["logits"], here(tokens)):
            assert logits.dtype == torch.float64
            difference = (logits - expected)[rows].abs().max()
            assert difference <= LIMIT * max(1.0, float(expected.abs().max()))
