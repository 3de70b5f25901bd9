"""Integrated gradients are the integrals they are said to be, and they add up."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minibert
from minibert.analysis import gradients as module
from minibert.analysis.gradients import integrated_embeddings
from minibert.loading import from_transformers
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import Sizes, as_tokens, batch, hf_model

CLASSES = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
# Equal parts of Simpson's rule, which the code does not use.
PARTS = 16


def number(trace: Any) -> Tensor:
    return trace.logits[0, 4, 7] - trace.logits[1, 2, 3] ** 2


@pytest.fixture(scope="module", params=CLASSES)
def trace(request: pytest.FixtureRequest) -> Trace:
    sizes = Sizes(layers=2, heads=2)
    theirs = hf_model(request.param, CLASSES[request.param], sizes, torch.float64)
    return from_transformers(theirs).trace(as_tokens(batch("bert")))


def simpson(at: Callable[[float], Tensor]) -> Tensor:
    """The mean of what is found on the way from 0 to 1."""
    weights = [1, *(4 if part % 2 else 2 for part in range(1, PARTS)), 1]
    found = [w / (3 * PARTS) * at(part / PARTS) for part, w in enumerate(weights)]
    return torch.stack(found).sum(0)


def a_baseline(trace: Trace) -> Tensor:
    """The same for every position; away from 0, where a LayerNorm is steep."""
    return torch.randn(1, 1, trace.config.d_model, dtype=torch.float64) / 3


def test_integrated_embeddings_are_the_mean_gradient_times_the_difference_and_add_up(
    trace: Trace,
) -> None:
    baseline = a_baseline(trace)
    result = integrated_embeddings(trace, number, baseline=baseline, steps=64)
    difference = trace.embed - baseline

    def gradient(factor: float) -> Tensor:
        explicit = Explicit(trace, embed=baseline + factor * difference)
        return explicit.gradients(number(explicit))["embed"]

    expected = simpson(gradient) * difference
    assert torch.allclose(result.values, expected, rtol=0, atol=1e-3 * expected.abs().max())
    assert torch.equal(result.by_token(), result.values.sum(-1))
    ends = (trace.embed, baseline.expand_as(trace.embed))
    here, there = (number(Explicit(trace, embed=embed)).item() for embed in ends)
    assert result.difference == pytest.approx(here - there, abs=1e-9)
    assert result.values.sum().item() == pytest.approx(here - there, abs=1e-4)
    coarse = integrated_embeddings(trace, number, baseline=baseline, steps=2)
    assert abs(result.gap) < abs(coarse.gap)
    assert coarse.difference == pytest.approx(result.difference, abs=1e-12)


def test_a_trace_with_gradients_gives_the_same(trace: Trace) -> None:
    graded = trace.model.trace(trace.tokens, grad=True)
    graded.backward(number(graded))
    before = graded.grad.embed
    with torch.no_grad():
        ours = integrated_embeddings(graded, number, steps=3)
    theirs = integrated_embeddings(trace, number, steps=3)
    assert torch.allclose(ours.values, theirs.values, rtol=1e-9, atol=1e-12)
    assert not ours.values.requires_grad
    assert torch.equal(graded.grad.embed, before)


def steep(trace: Trace, slope: float) -> tuple[Callable[[Any], Tensor], Tensor]:
    """A number that rises half way from the baseline, the faster the larger the slope."""
    baseline = trace.embed.clone()
    baseline[0, 0, 0] -= 2

    def rising(again: Any) -> Tensor:
        return (slope * (again.embed[0, 0, 0] - trace.embed[0, 0, 0] + 1)).sigmoid()

    return rising, baseline


def test_steps_are_doubled_until_the_gap_is_small_and_a_result_says_when_it_is_not(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    for slope, steps in ((1.0, 16), (20.0, 32)):
        rising, baseline = steep(trace, slope)
        result = integrated_embeddings(trace, rising, baseline=baseline)
        assert (result.steps, result.converged) == (steps, True)
        assert abs(result.gap) < 0.01 * abs(result.difference)
        assert re.match(rf"difference .* after {steps} steps$", result.note())
    monkeypatch.setattr(module, "_LAST", 32)
    rising, baseline = steep(trace, 1e9)
    # The number of steps that is asked for is taken, and no other.
    for asked, steps in ((3, 3), (None, 32)):
        result = integrated_embeddings(trace, rising, baseline=baseline, steps=asked)
        assert (result.steps, result.converged) == (steps, False)
        assert re.search(rf"after {steps} steps, NOT CONVERGED: \d+% of the diff", repr(result))


def of(read: Any, **options: Any) -> Any:
    return lambda trace: integrated_embeddings(trace, read, **options)


WRONG: dict[str, Callable[[Trace], Any]] = {
    "steps=0": of(number, steps=0),
    "steps=1.5": of(number, steps=1.5),
    r"gave \(3, 13, 41\)": of(lambda a: a.logits),
    "gave float": of(lambda a: 3.0),
    "not depend": lambda t: integrated_embeddings(t, lambda a: t.logits.sum()),
    "detach": of(lambda a: a.logits.detach().sum()),
    r"shape \(3,\)": of(number, baseline=torch.ones(3)),
    "expected a tensor": of(number, baseline=0),
    "finite": lambda t: integrated_embeddings(t, number, baseline=t.embed * torch.nan),
    "made with edits": lambda t: integrated_embeddings(t.rerun({("z", 0): 0.0}), number),
    "inference_mode": lambda t: torch.inference_mode()(of(number))(t),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_integrated_is_an_error(trace: Trace, message: str, unchecked: None) -> None:
    with pytest.raises(minibert.TraceError, match=message):
        WRONG[message](trace)
