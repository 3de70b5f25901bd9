"""The model gives what transformers gives: every hidden state, attention and logit."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import (
    ARCHITECTURES,
    CLASSES,
    Sizes,
    as_tokens,
    batch,
    difference,
    hf_model,
    run_transformers,
    sizes,
    their_logits,
)


def compare(family: str, name: str, chosen: Sizes, seed: int, dtype: Any, limit: float) -> None:
    theirs = hf_model(family, name, chosen, dtype)
    inputs = batch(family, chosen.segments, seed)
    output = run_transformers(theirs, inputs)
    model, tokens = from_transformers(theirs), as_tokens(inputs)
    trace = model.trace(tokens)
    assert difference(trace.logits, their_logits(output, name)) <= limit
    assert difference(model(tokens), trace.logits) == 0
    for ours, expected in zip(trace.hidden_states, output.hidden_states, strict=True):
        assert difference(ours, expected) <= limit
    for ours, expected in zip(trace.attentions, output.attentions, strict=True):
        assert difference(ours, expected) <= limit
    second = output.get("seq_relationship_logits", output.get("sop_logits"))
    if second is not None:
        assert difference(trace.next_sentence_logits, second) <= limit
    if output.get("pooler_output") is not None:
        assert difference(trace.pooled, output.pooler_output) <= limit
    packed = model.packed(tokens)
    assert len(packed) == len(tokens)
    for sentence, length in enumerate(tokens.lengths):
        alone = model(tokens[sentence])[0]
        together = trace.logits[sentence]
        # A class of the whole text has no position axis; everything else is cut to its length.
        by_position = together.dim() > 0 and together.shape[0] == tokens.ids.shape[1]
        assert difference(together[:length] if by_position else together, alone) <= limit
        assert difference(packed[sentence], alone) <= limit


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES)
@settings(max_examples=2)
@given(chosen=sizes, seed=st.integers(0, 2**20))
def test_everything_is_that_of_transformers_padded_packed_and_alone(
    family: str, name: str, chosen: Sizes, seed: int
) -> None:
    compare(family, name, chosen, seed, torch.float64, 1e-10)


def test_single_precision_is_that_of_transformers() -> None:
    for family, (_, name, *_) in CLASSES.items():
        compare(family, name, Sizes(), 3, torch.float32, 1e-5)


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


def test_what_the_model_cannot_read_is_an_error() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    cases: list[tuple[Any, str]] = [
        ([[1, 41]], "outside the vocabulary"),
        ([[1, -1]], "ids"),
        ([list(range(2, 34))], "more than the 31 positions"),
        (torch.zeros(1, 3), "whole numbers"),
        (torch.zeros(1, 0, dtype=torch.long), "no token"),
        (torch.zeros(0, 3, dtype=torch.long), "no token"),
        ([], "ids"),
        ("hello", "no tokenizer"),
        (Tokens.from_ids([[5, 7]], segments=[[0, 2]]), "Segment 2"),
    ]
    for given_input, message in cases:
        with pytest.raises(minibert.TokenizationError, match=message):
            model(given_input)
