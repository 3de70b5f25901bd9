"""Edits as a page asks for them, against Python's own `edit=`; drawn ones: tests/live."""

import math
from typing import Any

import pytest
import torch

import minibert
from minibert.errors import EditError
from minibert.layers.config import FAMILIES, Config
from minibert.layers.rotary import Rotary
from minibert.model import Model
from minibert.trace.read import Trace
from minibert.viz.engine_edits import EngineEdit, checked_edits, python_edits, set_weight
from minibert.viz.live import built_of

TEXTS = {
    "tiny-bert": ("the horse [MASK] away .", "one boat was down now"),
    "tiny-gpt2": ("The boys saw the horse there", "One day in the garden there"),
}


@pytest.fixture(scope="module", params=list(TEXTS))
def model(request: pytest.FixtureRequest) -> Model:
    return minibert.load(request.param)


def made(edits: list[dict[str, Any]], clean: Trace, other: Trace) -> Trace:
    sizes = (clean.allowed.position, other.allowed.position)
    checked = checked_edits(edits, clean.config, *sizes)
    return clean.rerun(python_edits(checked, clean.config, clean=clean, other=other))


def one(change: str, quantity: str, **place: Any) -> dict[str, Any]:
    return {"change": change, "quantity": quantity, **place}


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
def test_a_wrong_edit_is_named(edits: Any, message: str) -> None:
    with pytest.raises(EditError, match=message):
        checked_edits(edits, minibert.load("tiny-gpt2").config, 6, 5)


def test_a_weight_that_nothing_can_be_taken_from_is_not_set() -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0]])
    with pytest.raises(EditError, match="all other weights of query 0 are 0"):
        set_weight(probs, query=0, key=1, weight=0.5)
    assert set_weight(probs, query=slice(None), key=1, weight=0.5).tolist() == [[0.0, 1.0, 0.0]]


def test_an_edit_without_choices_is_of_everything_and_other_needs_a_text() -> None:
    config = minibert.load().config
    (edit,) = checked_edits([one("zero", "z", layer=None)], config, 6)
    assert edit == EngineEdit("z", "zero")
    with pytest.raises(EditError, match="it reads another text"):
        checked_edits([one("text", "z")], config, 6)


def test_a_place_of_a_longer_text_is_read(model: Model) -> None:
    clean, longer = model.trace("the horse"), model.trace("one boat was down now")
    found = made([one("text", "resid_post", layer=1, position=1)], clean, longer)
    assert torch.equal(found[1].resid_post[0, 1], longer[1].resid_post[0, 1])
    assert torch.equal(found[1].resid_post[0, 0], clean[1].resid_post[0, 0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_told_how_every_family_is_built(family: str) -> None:
    choices: dict[str, Any] = {"roberta": {"position_offset": 2}, "electra": {"d_embed": 4}}
    more = choices.get(family, {}) | {"causal": bool(FAMILIES[family].causal), "d_mlp": 17}
    if FAMILIES[family].choices.get("positions") == "rotary":
        more["rotary"] = Rotary(4)
    sizes = {"vocab_size": 41, "n_positions": 53, "n_layers": 2, "n_heads": 2, "d_model": 8}
    config = Config(family=family, task="none", **(sizes | more))
    built = built_of(Model.from_config(config, seed=1))
    for name, field in {
        "norm": "norm_place", "normKind": "norm", "plusOne": "norm_plus_one", "eps": "norm_eps",
        "firstNorm": "first_norm", "parallel": "parallel", "keyHeads": "n_kv_heads",
        "queryKeyNorm": "query_key_norm", "gated": "gated", "embedNorm": "embed_norm",
        "finalNorm": "final_norm", "activation": "activation", "logitSoftCap": "logit_soft_cap",
        "positionOffset": "position_offset",
    }.items():  # fmt: skip
        assert built[name] == getattr(config, field), name
    assert built["rotary"] is not built["positions"]
    assert built["embedProject"] is (family in ("albert", "electra"))
    assert built["embedScale"] == pytest.approx(8**0.5 if config.embed_scaled else 1)
