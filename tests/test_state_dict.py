"""A model goes to transformers' names and comes back bit for bit, in every family and task."""

from typing import Any

import pytest
import torch

import minibert
from minibert.model import Model
from tests.families import ARCHITECTURES, Sizes, as_tokens, batch, hf_model

# transformers keeps two biases where the decoder is not tied and reads the other one.
UNREAD = ("cls.predictions.bias", "lm_head.bias", "predictions.bias")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_the_weights_of_transformers_come_back_bit_for_bit(
    family: str, name: str, tied: bool
) -> None:
    theirs = hf_model(family, name, Sizes(layers=2, tied=tied, layer_groups=2))
    ours = Model.from_transformers(theirs).to_state_dict("transformers")
    wanted = theirs.state_dict()
    assert set(ours) == set(wanted)
    for key, value in wanted.items():
        assert ours[key].dtype == value.dtype
        assert torch.equal(ours[key], value) or (key in UNREAD and not tied), key
    if tied:
        assert (
            not hf_model(family, name, Sizes(layers=2, layer_groups=2))
            .load_state_dict(ours, strict=True)
            .missing_keys
        )


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_a_model_made_here_runs_in_transformers(family: str, name: str) -> None:
    theirs = hf_model(family, name, Sizes(layers=2, seed=1))
    inputs = batch(family)
    model = Model.from_transformers(hf_model(family, name, Sizes(layers=2, seed=2)))
    theirs.load_state_dict(model.to_state_dict(), strict=True)
    again = Model.from_transformers(theirs)
    assert torch.equal(again(as_tokens(inputs)), model(as_tokens(inputs)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_type_stays_unless_another_is_asked_for(dtype: torch.dtype) -> None:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=1), dtype)
    kept = Model.from_transformers(theirs).to_state_dict()
    assert {value.dtype for value in kept.values()} == {dtype}
    wide = Model.from_transformers(theirs, dtype=torch.float64).to_state_dict()
    assert {value.dtype for value in wide.values()} == {torch.float64}


def test_a_body_alone_has_the_names_of_the_bare_class() -> None:
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(layers=2))
    bare = Model.from_transformers(theirs, task="none").to_state_dict()
    wanted = hf_model("bert", "BertModel", Sizes(layers=2)).state_dict()
    assert set(bare) == {name for name in wanted if not name.startswith("pooler")}


def test_memory_is_shared_in_both_directions() -> None:
    theirs = hf_model("bert", "BertForMaskedLM", Sizes(layers=1))
    model = Model.from_transformers(theirs)
    state = model.to_state_dict()
    word = "bert.embeddings.word_embeddings.weight"
    assert state[word].data_ptr() == theirs.state_dict()[word].data_ptr()
    assert state["cls.predictions.decoder.weight"].data_ptr() == state[word].data_ptr()


@pytest.mark.parametrize("names", ["Transformers", "", "minibert"])
def test_other_names_are_an_error(names: str) -> None:
    model = Model.from_transformers(hf_model("bert", "BertModel", Sizes(layers=1)))
    with pytest.raises(minibert.CheckpointError, match='expected names="transformers"'):
        model.to_state_dict(names)


@pytest.mark.parametrize("wrong", [torch.nn.Linear(2, 3), None, "bert"])
def test_what_is_no_transformers_model_is_an_error(wrong: Any) -> None:
    with pytest.raises(minibert.CheckpointError, match="expected a transformers model"):
        Model.from_transformers(wrong)
