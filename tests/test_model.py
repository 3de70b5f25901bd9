"""The model gives what transformers gives: every hidden state, attention and logit."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import ARCHITECTURES, Sizes, batch, hf_model, sizes

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def run_transformers(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """The output of a transformers model with everything it can show."""
    inputs = dict(inputs)
    if model.config.model_type in ("distilbert", "gpt2"):
        inputs.pop("token_type_ids")
    with torch.no_grad():
        return (
            model(**inputs, output_attentions=True, output_hidden_states=True, use_cache=False)
            if model.config.model_type == "gpt2"
            else model(**inputs, output_attentions=True, output_hidden_states=True)
        )


def as_tokens(inputs: dict[str, torch.Tensor]) -> Tokens:
    return Tokens.from_ids(
        inputs["input_ids"],
        mask=inputs["attention_mask"].bool(),
        segments=inputs["token_type_ids"],
    )


def their_logits(output: Any, name: str) -> torch.Tensor:
    if name.endswith("QuestionAnswering"):
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    for key in ("logits", "prediction_logits", "last_hidden_state"):
        if output.get(key) is not None:
            return output[key]
    raise AssertionError(f"{name} gives none of the logits this test knows")


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    return (ours - theirs).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
@settings(max_examples=4, deadline=None)
@given(chosen=sizes, seed=st.integers(0, 2**20))
def test_every_hidden_state_attention_and_logit_is_that_of_transformers(
    family: str, name: str, dtype: torch.dtype, chosen: Sizes, seed: int
) -> None:
    theirs = hf_model(family, name, chosen, dtype)
    inputs = batch(family, chosen.segments, seed)
    output = run_transformers(theirs, inputs)
    model = from_transformers(theirs)
    trace = model.trace(as_tokens(inputs))
    tolerance = TOLERANCE[dtype]
    assert difference(trace.logits, their_logits(output, name)) <= tolerance
    assert difference(model(as_tokens(inputs)), trace.logits) == 0
    for ours, expected in zip(trace.hidden_states, output.hidden_states, strict=True):
        assert difference(ours, expected) <= tolerance
    for ours, expected in zip(trace.attentions, output.attentions, strict=True):
        assert difference(ours, expected) <= tolerance


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_second_head_of_pre_training_is_that_of_transformers(family: str) -> None:
    theirs = hf_model(
        family, {"bert": "BertForPreTraining", "albert": "AlbertForPreTraining"}[family]
    )
    inputs = batch(family)
    output = run_transformers(theirs, inputs)
    expected = output.seq_relationship_logits if family == "bert" else output.sop_logits
    trace = from_transformers(theirs).trace(as_tokens(inputs))
    assert difference(trace.next_sentence_logits, expected) <= 1e-5


@pytest.mark.parametrize(
    ("family", "name"),
    [("bert", "BertModel"), ("roberta", "RobertaModel"), ("albert", "AlbertModel")],
)
def test_the_pooled_first_token_is_that_of_transformers(family: str, name: str) -> None:
    theirs = hf_model(family, name)
    output = run_transformers(theirs, batch(family))
    trace = from_transformers(theirs).trace(as_tokens(batch(family)))
    assert difference(trace.pooled, output.pooler_output) <= 1e-5


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
def test_padding_never_changes_a_result(family: str, name: str) -> None:
    model = from_transformers(hf_model(family, name, dtype=torch.float64))
    padded = as_tokens(batch(family))
    together = model.trace(padded)
    for sentence, length in enumerate(padded.lengths):
        alone = model.trace(padded[sentence])
        for layer in range(len(alone)):
            expected = alone[layer].resid_post[0]
            assert difference(together[layer].resid_post[sentence, :length], expected) <= 1e-12


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertLMHeadModel"])
def test_the_future_does_not_matter_to_a_causal_model(name: str) -> None:
    model = from_transformers(hf_model("gpt2" if "GPT2" in name else "bert", name))
    ids = batch("gpt2")["input_ids"][:1]
    changed = ids.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 41
    assert difference(model(ids)[:, :9], model(changed)[:, :9]) <= 1e-6
    assert difference(model(ids)[:, 9:], model(changed)[:, 9:]) > 1e-3


def test_the_order_of_the_batch_does_not_matter() -> None:
    model = from_transformers(hf_model("bert", "BertForMaskedLM"))
    tokens = as_tokens(batch("bert"))
    order = torch.tensor([2, 0, 1])
    turned = Tokens.from_ids(
        tokens.ids[order], mask=tokens.mask[order], segments=tokens.segments[order]
    )
    assert difference(model(turned), model(tokens)[order]) <= 1e-6


def test_ids_can_come_as_tensor_list_or_tokens() -> None:
    model = from_transformers(hf_model("bert", "BertForMaskedLM"))
    ids = torch.tensor([[5, 7, 11]])
    expected = model(ids)
    for given_ids in (ids[0], [5, 7, 11], [[5, 7, 11]], ids.int(), Tokens.from_ids(ids)):
        assert torch.equal(model(given_ids), expected)


def test_weights_need_no_gradient_until_asked_and_then_have_one() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    ids = batch("gpt2")["input_ids"]
    assert not model(ids).requires_grad
    model.requires_grad_()
    model(ids).square().sum().backward()
    expected = hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64)
    expected(ids).logits.square().sum().backward()
    ours = model.body.layers[0].mlp.up.weight.grad
    theirs = expected.transformer.h[0].mlp.c_fc.weight.grad
    assert difference(ours, theirs.t()) <= 1e-9 * theirs.abs().max().item()


def test_the_weights_of_a_live_model_are_shared_not_copied() -> None:
    theirs = hf_model("bert", "BertModel")
    model = from_transformers(theirs)
    ids = torch.tensor([[5, 7, 11]])
    before = model(ids)
    with torch.no_grad():
        theirs.encoder.layer[0].attention.self.query.weight.add_(1.0)
    assert not torch.equal(model(ids), before)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 41]], "outside the vocabulary"),
        ([[1, -1]], "ids"),
        ([list(range(2, 34))], "more than the 31 positions"),
        (torch.zeros(1, 3), "whole numbers"),
        (torch.zeros(1, 0, dtype=torch.long), "no token"),
        (torch.zeros(0, 3, dtype=torch.long), "no token"),
        ([], "ids"),
    ],
)
def test_ids_that_do_not_fit_are_an_error(ids: Any, message: str) -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    with pytest.raises(minibert.TokenizationError, match=message):
        model(ids)


def test_text_without_a_tokenizer_is_an_error() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    with pytest.raises(minibert.TokenizationError, match="no tokenizer"):
        model("hello")


def test_a_segment_the_model_does_not_have_is_an_error() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    tokens = Tokens.from_ids([[5, 7]], segments=[[0, 2]])
    with pytest.raises(minibert.TokenizationError, match="Segment 2"):
        model(tokens)
