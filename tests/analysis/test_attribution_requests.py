"""What a logit attribution can be asked, and what is refused."""

from typing import Any

import pytest
import torch
from small_traces import small_trace

import minibert
from minibert.analysis.attribution import logit_attribution
from minibert.errors import TokenizationError, TraceError
from tests.analysis.test_attribution import gap
from tests.families import VOCABULARY


def test_tokens_and_positions_can_be_named() -> None:
    model = minibert.load("tiny-bert")
    trace = model.trace("The capital of France is [MASK].")
    ids = trace.tokens.ids[0].tolist()
    assert model.tokenizer is not None
    place = ids.index(model.tokenizer.mask_id)
    found = logit_attribution(trace, "the", against="[SEP]", position="[MASK]")
    assert int(found.positions) == place
    assert model.tokenizer.string(int(found.token)) == "the"
    assert gap(found) <= 1e-5


def test_gradients_are_not_kept_and_half_precision_is_read_in_float32() -> None:
    trace = small_trace(causal=True, task="causal-lm")
    trace.model.requires_grad_()
    assert not logit_attribution(trace.model.trace(trace.tokens), 3).values.requires_grad
    found = logit_attribution(trace.model.bfloat16().trace(trace.tokens), 3)
    assert found.values.dtype == torch.float32
    assert gap(found) < 0.1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"token": VOCABULARY}, TokenizationError, "Token id 41 is outside"),
        ({"token": -1}, TokenizationError, "Token id -1"),
        ({"token": None}, TokenizationError, "None is no token"),
        ({"token": False}, TokenizationError, "False is no token"),
        ({"token": "Paris"}, TokenizationError, "has no tokenizer"),
        ({"token": [1, 2]}, TokenizationError, "2 tokens for 1 sentences"),
        ({"token": torch.tensor([1.5])}, TokenizationError, "is no token"),
        ({"against": 99}, TokenizationError, "Token id 99"),
        ({"position": 11}, TraceError, "no position 11"),
        ({"position": -12}, TraceError, "no position -12"),
        ({"position": "autumn"}, TraceError, 'No token is "autumn"'),
        ({"position": [1, 2]}, TraceError, "2 positions for 1 sentences"),
        ({"position": True}, TraceError, "True is no position"),
        ({"position": 1.5}, TraceError, "1.5 is no position"),
        ({"position": None}, TraceError, "None is no position"),
        ({"sentence": 1}, TraceError, "no sentence 1"),
        ({"sentence": False}, TraceError, "expected a whole number"),
    ],
)
def test_wrong_requests_are_refused(options: Any, error: type[Exception], words: str) -> None:
    trace = small_trace(causal=True, task="causal-lm")
    with pytest.raises(error, match=words):
        logit_attribution(trace, **({"token": 1} | options))


def test_what_does_not_exist_is_refused() -> None:
    trace = small_trace(causal=True, task="causal-lm")
    with pytest.raises(TraceError, match="its task is 'none'"):
        logit_attribution(small_trace(), 1)
    with pytest.raises(TraceError, match="needs every layer"):
        logit_attribution(trace.model.trace(trace.tokens, until=1), 1)
    found = logit_attribution(trace, 1)
    with pytest.raises(TraceError, match="has no 'head 9-6'"):
        found["head 9-6"]
    with pytest.raises(TraceError, match="No layer has a 'neuron'"):
        found.by_layer("neuron")
