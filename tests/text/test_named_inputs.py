"""Inputs by the names of transformers: every form gives what transformers gives for each text."""

from collections import UserDict
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minibert.errors import MinibertError, TokenizationError
from minibert.model import Model
from minibert.text.tokens import Tokens
from tests.circuit_models import model_pair
from tests.families import VOCABULARY, batch
from tests.rotary.theirs import computing

FAMILIES = ("bert", "roberta", "electra", "albert", "distilbert", "gpt2", "llama", "gemma2")
LENGTHS = (13, 7, 1)
ATOL = 1e-10


@cache
def pair(family: str) -> tuple[Any, Model]:
    return model_pair(family)


def run(theirs: Any, **given: Tensor) -> Tensor:
    """The logits of transformers, or its last hidden state."""
    with computing(theirs):
        return theirs(**given)[0]


def right(family: str) -> dict[str, Tensor]:
    """Three texts, padded on the right, with what the family reads."""
    given = batch(family)
    if family in ("distilbert", "gpt2", "llama", "gemma2"):
        given.pop("token_type_ids")
    return given


def left(family: str) -> dict[str, Tensor]:
    """The same texts, padded on the left."""
    return {
        name: torch.stack([row.roll(len(row) - n) for row, n in zip(value, LENGTHS, strict=True)])
        for name, value in right(family).items()
    }


@cache
@torch.no_grad()
def alone(family: str) -> list[Tensor]:
    """What transformers gives for each text by itself."""
    theirs, given = pair(family)[0], right(family)
    return [
        run(theirs, **{name: value[i : i + 1, :n] for name, value in given.items()})[0]
        for i, n in enumerate(LENGTHS)
    ]


def check(found: Any, family: str) -> None:
    for row, expected in zip(found, alone(family), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, atol=ATOL, rtol=0)


def lists(given: dict[str, Tensor]) -> dict[str, list[list[int]]]:
    """What a tokenizer gives without padding: lists of different lengths."""
    return {
        name: [row[:n].tolist() for row, n in zip(value, LENGTHS, strict=True)]
        for name, value in given.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["right", "left", "lists", "arrays", "encoding"])
def test_every_form_gives_what_transformers_gives_for_each_text_alone(family, form):
    model, given = pair(family)[1], left(family) if form == "left" else right(family)
    named: Any = {
        "lists": lambda: lists(given),
        "arrays": lambda: {name: value.numpy() for name, value in given.items()},
    }.get(form, lambda: given)()
    if form == "encoding":
        # As a BatchEncoding is: a UserDict, with what no model reads beside the rest.
        encoding = UserDict(named | {"special_tokens_mask": given["input_ids"] * 0})
        check(model(encoding), family)
        check(model.trace(encoding).logits, family)
        return
    check(model(**named), family)
    check(model.packed(**named), family)
    trace = model.trace(**named)
    check(trace.logits, family)
    check([trace.text(i).logits[0] for i in range(3)], family)
    assert trace.tokens.lengths == LENGTHS


@pytest.mark.parametrize("form", ["left", "lists"])
def test_a_padded_batch_is_continued_as_each_text_alone(form):
    model, given = pair("gpt2")[1], right("gpt2")
    named: Any = left("gpt2") if form == "left" else lists(given)
    options: Any = {"max_new_tokens": 5, "temperature": 0}
    found = model.generate(**named, **options)
    for one, ids, n in zip(found, given["input_ids"], LENGTHS, strict=True):
        assert one.ids == model.generate(ids[:n], **options).ids
        assert one.n_prompt == n
    assert model.generate({"input_ids": [3, 1, 4]}, **options).n_prompt == 3


def test_lists_of_different_lengths_are_filled_up():
    tokens = Tokens.from_ids([[3, 1, 4], [1]])
    assert tokens.lengths == (3, 1)
    assert tokens.mask.tolist() == [[True] * 3, [True, False, False]]
    again = Tokens.from_ids([torch.tensor([3, 1, 4]), np.array([1])])
    assert again.ids.equal(tokens.ids)
    assert again.mask.equal(tokens.mask)
    check(pair("bert")[1](Tokens.from_ids(**by_our_names(lists(right("bert"))))), "bert")


def by_our_names(given: dict[str, Any]) -> dict[str, Any]:
    filled = [row + [0] * (13 - len(row)) for row in given["token_type_ids"]]
    return {"ids": given["input_ids"], "segments": filled}


TWO = [[3, 1, 4], [1, 5, 9]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "No input"),
        ({"attention_mask": TWO}, "found attention_mask"),
        ({"input_ids": TWO, "labels": TWO}, "labels= is neither an option"),
        ({"input_ids": TWO, "attention_mask": [[1, 1, 1], [0, 0, 0]]}, "row 1 has no token"),
        ({"input_ids": TWO, "attention_mask": [[1, 1, 1], [1, 0, 1]]}, "row 1 has padding between"),
        ({"input_ids": TWO, "attention_mask": [[1, 1, 2], [1, 1, 1]]}, "row 0 holds other values"),
        ({"input_ids": TWO, "attention_mask": [[1, 1], [1, 1]]}, r"shape \(2, 2\).*\(2, 3\)"),
        (
            {"input_ids": [[3, 1], [1]], "attention_mask": [[1, 1], [1, 1]]},
            "row 1: expected one value",
        ),
        ({"input_ids": [[3, 1], [1, VOCABULARY]]}, "row 1, position 1"),
        ({"input_ids": [[3, 1], [1, 2, -1]]}, "Token id -1 is outside .* row 1, position 2"),
        ({"input_ids": [[3, 1], 4]}, "row 1 is 4"),
        ({"input_ids": [["The", "horse"]]}, "minibert.Words"),
        ({"input_ids": TWO, "token_type_ids": [[0, 0, 1], [0, 0, 2]]}, "Segment 2 .* row 1"),
        ({"input_ids": torch.zeros(1, 32).long()}, "32 tokens are more than the 31"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_where(given, message):
    model = pair("bert")[1]
    with pytest.raises(MinibertError, match=message):
        model(**given)
    if given and "labels" not in given:
        with pytest.raises(MinibertError, match=message):
            model.trace(UserDict(given))


@pytest.mark.parametrize(
    ("first", "named", "message"),
    [
        ("a text", {"attention_mask": [[1]]}, "attention_mask= goes with ids"),
        (Tokens.from_ids(TWO), {"attention_mask": [[1]]}, "goes with ids"),
        (TWO, {"input_ids": TWO}, "given twice"),
        (TWO, {"keep_all": True}, r"keep_all= \(did you mean .keep.\?\) is neither an option"),
        ({"input_ids": TWO, "labels": TWO}, {}, "'labels' is not an input"),
        ({"input_ids": TWO, "position_ids": [[5, 6, 7]] * 2}, {}, "'position_ids' is not an input"),
    ],
)
def test_a_name_that_does_not_go_with_the_rest_is_an_error(first, named, message):
    with pytest.raises(TokenizationError, match=message):
        pair("bert")[1].trace(first, **named)


def test_segments_are_refused_where_there_are_none():
    model = pair("gpt2")[1]
    with pytest.raises(TokenizationError, match="has no segments"):
        model(input_ids=TWO, token_type_ids=[[0] * 3] * 2)
    llama = pair("llama")[1]
    assert llama(input_ids=TWO, token_type_ids=[[0] * 3] * 2).equal(llama(TWO))
    with pytest.raises(TokenizationError, match="has no segments"):
        llama(input_ids=TWO, token_type_ids=[[0, 0, 1]] * 2)
