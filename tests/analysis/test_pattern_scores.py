"""Scores of patterns of one's own agree with the built-in ones, and with sums by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.analysis import head_scores, pattern_scores, repeated_ids
from minibert.errors import TraceError
from minibert.text.tokens import Tokens


def previous(tokens: Tokens) -> Tensor:
    """The token before, from every token but the first."""
    length = tokens.lengths[0]
    return torch.ones(length, length).tril(-1).triu(-1).bool()


def induction(tokens: Tokens) -> Tensor:
    """The token behind each earlier occurrence of this one."""
    [ids] = tokens.ids
    behind = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    behind[:, 1:] = ids[:, None] == ids[None, :-1]
    return behind.tril(-1)


def test_the_known_patterns_written_as_functions_have_the_known_scores() -> None:
    model = minibert.load("tiny-gpt2")
    ids = repeated_ids(model.config.vocab_size, length=11, draws=3)
    found = pattern_scores(model, ids, {"previous": previous, "induction": induction})
    known = head_scores(model, ids, repeated=ids)
    assert torch.allclose(found["previous"], known.previous, atol=1e-5)
    assert torch.allclose(found["induction"], known.induction, atol=1e-5)
    assert found.best("previous") == pytest.approx(known.best("previous"), abs=1e-5)
    assert minibert.axes_of(found) == {"values": ("layer", "head", "pattern")}


def test_a_score_is_the_mean_over_the_rows_that_have_a_key() -> None:
    model = minibert.load("tiny-bert")
    texts = ["the horse ran away", "a boy"]

    def first_third(tokens: Tokens) -> Tensor:
        weights = torch.zeros(tokens.lengths[0], tokens.lengths[0])
        weights[1, 0], weights[2, 0], weights[2, 1] = 0.25, 1.0, 0.5
        return weights

    found = pattern_scores(model, texts, {"mine": first_third})["mine"]
    expected = []
    for text in texts:
        probs = model.trace(text).stack("probs")[:, 0]
        second = probs[..., 2, 0] + probs[..., 2, 1] / 2
        expected.append((probs[..., 1, 0] / 4 + second) / 2)
    assert torch.allclose(found, (expected[0] + expected[1]) / 2, atol=1e-6)


def test_sentences_without_a_key_do_not_count() -> None:
    model = minibert.load("tiny-gpt2")
    both = Tokens.from_ids([[5, 6, 5, 7], [1, 2, 3, 0]], mask=[[1, 1, 1, 1], [1, 1, 1, 0]])
    found = pattern_scores(model, both, {"again": induction})
    alone = pattern_scores(model, [5, 6, 5, 7], {"again": induction})
    assert torch.allclose(found.values, alone.values, atol=1e-6)
    nothing = pattern_scores(model, [1, 2, 3], {"again": induction})
    assert nothing.values.isnan().all()
    with pytest.raises(TraceError, match="named no key"):
        nothing.best("again")


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({}, "functions by name"),
        ({"x": lambda tokens: torch.ones(3, 2)}, r"\(3, 2\) for 3 tokens"),
        ({"x": lambda tokens: torch.full((3, 3), 2.0)}, "weights from 0 to 1"),
        ({"x": lambda tokens: "no"}, "gave str"),
    ],
)
def test_what_is_no_pattern_is_refused(patterns: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        pattern_scores(minibert.load("tiny-gpt2"), [1, 2, 3], patterns)
