"""Edits as a page asks for them, against Python's own `edit=`."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.errors import EditError
from minibert.model import Model
from minibert.trace.edit import hide, mean, replace, zero
from minibert.trace.read import Trace
from minibert.viz.engine_edits import EngineEdit, checked_edits, python_edits, set_weight

TEXTS = {
    "tiny-bert": ("the horse [MASK] away .", "one boat was down now"),
    "tiny-gpt2": ("The boys saw the horse there", "One day in the garden there"),
}


@pytest.fixture(scope="module", params=list(TEXTS))
def model(request: pytest.FixtureRequest) -> Model:
    return minibert.load(request.param)


def traces(model: Model) -> tuple[Trace, Trace]:
    """Of two texts with as many tokens."""
    first, second = (model.trace(text) for text in TEXTS[model.name])
    assert first.allowed.position == second.allowed.position
    return first, second


def made(model: Model, edits: list[dict[str, Any]]) -> Trace:
    clean, other = traces(model)
    n_tokens = clean.allowed.position
    checked = checked_edits(edits, model.config, n_tokens, n_tokens)
    return clean.rerun(python_edits(checked, model.config, clean=clean, other=other))


def one(change: str, quantity: str, **place: Any) -> dict[str, Any]:
    return {"change": change, "quantity": quantity, **place}


def same(found: Trace, expected: Trace) -> None:
    assert torch.equal(found.logits, expected.logits)
    assert not torch.equal(found.logits, expected.rerun({}).logits)


def test_edits_of_whole_rows_are_those_of_python(model: Model) -> None:
    clean, other = traces(model)
    for edit, expected in [
        (one("zero", "z", layer=1, head=2), {("z", 1, 2): zero}),
        (one("zero", "mlp_out", layer=2, position=3), {("mlp_out", 2): zero.at(positions=3)}),
        (one("mean", "attn_out", layer=0), {("attn_out", 0): mean(over=clean)}),
        (one("mean", "z", layer=3, head=0, position=2),
         {("z", 3, 0): mean(over=clean, positions=2)}),
        (one("text", "resid_post", layer=1, position=4),
         {("resid_post", 1): replace(other, positions=4)}),
        (one("text", "probs", layer=2), {("probs", 2): replace(other)}),
        (one("hide", "scores", layer=2, head=1, position=4, key=2),
         {("scores", 2, 1): hide(2, positions=4)}),
        (one("set", "mlp_post", layer=1, value=0.25), {("mlp_post", 1): replace(0.25)}),
        (one("zero", "z", head=3), {("z", layer, 3): zero for layer in range(4)}),
        (one("text", "embed", position=1), {"embed": replace(other, positions=1)}),
    ]:  # fmt: skip
        same(made(model, [edit]), clean.rerun(expected))


def test_edits_of_single_numbers_are_made_one_after_the_other(model: Model) -> None:
    clean, other = traces(model)

    def change(value: Tensor) -> Tensor:
        value[0, 2, 5] = 0
        value[0, :, 6] = clean[1, 2].z[0, :, 6].mean()
        value[0, 1, 7] = other[1, 2].z[0, 1, 7]
        value[0, 3] = 0.5
        return value

    edits = [
        one("zero", "z", layer=1, head=2, position=2, neuron=5),
        one("mean", "z", layer=1, head=2, neuron=6),
        one("text", "z", layer=1, head=2, position=1, neuron=7),
        one("set", "z", layer=1, head=2, position=3, value=0.5),
    ]
    found, expected = made(model, edits), clean.rerun({("z", 1, 2): change})
    torch.testing.assert_close(found[1].z, expected[1].z, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)


def test_the_edit_of_a_head_comes_after_the_edit_of_its_layer(model: Model) -> None:
    clean, _ = traces(model)
    edits = [one("set", "z", layer=1, head=2, value=0.5), one("zero", "z", layer=1)]
    same(made(model, edits), clean.rerun({("z", 1): zero, ("z", 1, 2): replace(0.5)}))


def test_a_weight_that_is_set_takes_from_the_others_in_proportion(model: Model) -> None:
    clean, _ = traces(model)
    edit = one("set", "probs", layer=1, head=2, position=4, key=1, value=0.7)
    before, after = clean[1, 2].probs[0], made(model, [edit])[1, 2].probs[0]
    others = [key for key in range(len(before)) if key != 1]
    assert after[4, 1] == pytest.approx(0.7)
    scale = 0.3 / (1 - before[4, 1])
    torch.testing.assert_close(after[4, others], before[4, others] * scale)
    rows = [row for row in range(len(before)) if row != 4]
    assert torch.equal(after[rows], before[rows])


def test_a_weight_of_every_query_leaves_those_that_cannot_look(model: Model) -> None:
    after = made(model, [one("set", "probs", layer=1, key=2, value=0.25)])[1].probs[0]
    first = 2 if model.config.causal else 0
    torch.testing.assert_close(after.sum(-1), torch.ones(after.shape[:-1]))
    assert (after[:, first:, 2] - 0.25).abs().max() < 1e-6
    assert not after[:, :first, 2].any()


def test_a_row_without_other_weights_is_refused() -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0]])
    with pytest.raises(EditError, match="all other weights of query 0 are 0"):
        set_weight(probs, query=0, key=1, weight=0.5)
    for query, weight in ((0, 1.0), (slice(None), 0.5)):
        assert set_weight(probs, query=query, key=1, weight=weight).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({}, "expected a list, found dict"),
        ([7], "Edit 1: expected an object"),
        ([one("zero", "z", layers=3)], "Edit 1: there is no field layers"),
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
        ([one("zero", "mlp_out", layer=0, head=1)], "mlp_out has no head"),
        ([one("zero", "z", key=1)], "z has no key"),
        ([one("zero", "z", position=6)], "there is no position 6; expected 0 to 5"),
        ([one("zero", "z", neuron=32)], "there is no neuron 32; expected 0 to 31"),
        ([one("zero", "probs", neuron=1)], "probs has no neuron"),
        ([one("zero", "z", value=1)], "zero takes no value"),
        ([one("set", "z")], "set needs a value"),
        ([one("set", "z", value=math.inf)], "value is inf; expected a finite number"),
        ([one("set", "z", value="1")], "value is '1'"),
        ([one("set", "probs", layer=0, value=0.5)], "a weight needs a key"),
        ([one("set", "probs", key=1, value=1.5)], "a value from 0 to 1"),
        ([one("hide", "probs", key=1)], "expected quantity scores and a key"),
        ([one("hide", "scores")], "expected quantity scores and a key"),
        ([one("mean", "scores")], "a mean over positions says nothing"),
        ([one("text", "z")], "it reads another text"),
        ([one("zero", "z")] * 1001, "There are 1001 edits"),
    ],
)  # fmt: skip
def test_a_wrong_edit_is_named(edits: Any, message: str) -> None:
    with pytest.raises(EditError, match=message):
        checked_edits(edits, minibert.load().config, 6)


def test_a_text_of_another_length_has_no_other_place_than_a_single_one() -> None:
    config = minibert.load().config
    with pytest.raises(EditError, match="the other text has 5 tokens and this one 6"):
        checked_edits([one("text", "z")], config, 6, 5)
    with pytest.raises(EditError, match="5 tokens and no position 5"):
        checked_edits([one("text", "z", position=5)], config, 6, 5)


def test_a_place_of_a_longer_text_is_read(model: Model) -> None:
    clean, longer = model.trace("the horse"), model.trace("one boat was down now")
    edit = one("text", "resid_post", layer=1, position=1)
    checked = checked_edits([edit], model.config, *(t.allowed.position for t in (clean, longer)))
    found = clean.rerun(python_edits(checked, model.config, clean=clean, other=longer))
    assert torch.equal(found[1].resid_post[0, 1], longer[1].resid_post[0, 1])
    assert torch.equal(found[1].resid_post[0, 0], clean[1].resid_post[0, 0])


@pytest.mark.parametrize(
    ("place", "message"),
    [({"position": 1, "key": 2}, "does not look at key 2"), ({"position": 0, "key": 0}, "one key")],
)
def test_a_weight_of_a_causal_model_that_cannot_be_set(place: dict[str, int], message: str) -> None:
    edit = one("set", "probs", value=0.5, **place)
    with pytest.raises(EditError, match=message):
        checked_edits([edit], minibert.load("tiny-gpt2").config, 6)


def test_an_edit_without_choices_is_of_everything() -> None:
    (edit,) = checked_edits([one("zero", "z", layer=None)], minibert.load().config, 6)
    assert edit == EngineEdit("z", "zero")
