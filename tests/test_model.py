"""What a model takes and refuses, and gradients of its weights.

test_verification.py compares every hidden state, attention and logit with transformers.
"""

from typing import Any

import pytest
import torch

import minibert
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import (
    batch,
    difference,
    hf_model,
)


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
