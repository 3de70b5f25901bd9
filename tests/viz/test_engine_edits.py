"""Edits as a page asks for them, against Python's own `edit=`; drawn ones: tests/live."""

import math
from typing import Any

import pytest
import torch

import minibert
from minibert.errors import EditError
from minibert.viz.engine_edits import EngineEdit, checked_edits, python_edits, set_weight


def one(change: str, quantity: str, **place: Any) -> dict[str, Any]:
    return {"change": change, "quantity": quantity, **place}


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({}, "expected a list, found dict"),
        ([7], "Edit 1: expected an object"),
        ([one("zero", "z", layers=3)], "Edit 1: no field layers"),
        ([one("zero", "Z")], "quantity is 'Z'; expected embed, "),
        ([one("zero", "mask")], "quantity is 'mask'"),
        ([one("zero", ["z"])], "quantity is "),
        ([one("double", "z")], "change is 'double'; expected zero, mean, text, set or hide"),
        ([one("zero", "z", layer=0), one("zero", "z", layer=4)],
         r"Edit 2 \(zero z\): there is no layer 4; expected 0 to 3"),
        ([one("zero", "z", layer=-1)], "there is no layer -1"),
        ([one("zero", "z", layer=1.0)], "layer is 1.0; expected a whole number or null"),
        ([one("zero", "z", layer=True)], "layer is True"),
        ([one("zero", "embed", layer=0)], "embed has no layer; leave layer out"),
        ([one("zero", "z", key=1)], "z has no key"),
        ([one("zero", "z", position=6)], "there is no position 6; expected 0 to 5"),
        ([one("zero", "z", neuron=32)], "there is no neuron 32; expected 0 to 31"),
        ([one("zero", "z", value=1)], "zero takes no value"),
        ([one("set", "z")], "set needs a value"),
        ([one("set", "z", value=math.inf)], "value is inf; expected a finite number"),
        ([one("set", "z", value="1")], "value is '1'"),
        ([one("set", "probs", layer=0, value=0.5)], "a weight needs a key"),
        ([one("set", "probs", key=1, value=1.5)], "a value from 0 to 1"),
        ([one("set", "probs", position=1, key=2, value=0.5)], "does not look at key 2"),
        ([one("set", "probs", position=0, key=0, value=0.5)], "one key"),
        ([one("hide", "probs", key=1)], "expected quantity scores and a key"),
        ([one("hide", "scores")], "expected quantity scores and a key"),
        ([one("mean", "scores")], "a mean over positions says nothing"),
        ([one("text", "z")], "the other text has 5 tokens and this one 6"),
        ([one("text", "z", position=5)], "5 tokens and no position 5"),
        ([one("zero", "z")] * 1001, "There are 1001 edits"),
    ],
)  # fmt: skip
def test_a_wrong_edit_is_named(edits, message):
    with pytest.raises(EditError, match=message):
        checked_edits(edits, minibert.load("tiny-gpt2").config, 6, 5)


def test_a_weight_that_nothing_can_be_taken_from_is_not_set():
    probs = torch.tensor([[0.0, 1.0, 0.0]])
    with pytest.raises(EditError, match="all other weights of query 0 are 0"):
        set_weight(probs, query=0, key=1, weight=0.5)
    assert set_weight(probs, query=slice(None), key=1, weight=0.5).tolist() == [[0.0, 1.0, 0.0]]


def test_an_edit_without_choices_is_of_everything_and_other_needs_a_text():
    config = minibert.load().config
    (edit,) = checked_edits([one("zero", "z", layer=None)], config, 6)
    assert edit == EngineEdit("z", "zero")
    with pytest.raises(EditError, match="it reads another text"):
        checked_edits([one("text", "z")], config, 6)


def test_a_place_of_a_longer_text_is_read():
    model = minibert.load()
    clean, longer = model.trace("the horse"), model.trace("one boat was down now")
    edit = one("text", "resid_post", layer=1, position=1)
    checked = checked_edits([edit], model.config, clean.tokens.lengths[0], longer.tokens.lengths[0])
    found = clean.rerun(python_edits(checked, model.config, clean=clean, other=longer))
    assert torch.equal(found[1].resid_post[0, 1], longer[1].resid_post[0, 1])
    assert torch.equal(found[1].resid_post[0, 0], clean[1].resid_post[0, 0])
