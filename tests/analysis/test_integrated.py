"""Integrated gradients are the integrals they are said to be, and they add up."""

import re
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from vocabulary_models import ROTARY_CLASSES, both

import minibert
from minibert.analysis import gradients as module
from minibert.analysis.gradients import integrated_attention, integrated_embeddings
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import Sizes, batch, hf_model

CLASSES = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
# Equal parts of Simpson's rule, which the code does not use.
PARTS = 16


def number(trace: Any) -> torch.Tensor:
    return trace.logits[0, 4, 7] - trace.logits[1, 2, 3] ** 2


@pytest.fixture(scope="module", params=CLASSES)
def model(request: pytest.FixtureRequest) -> Model:
    sizes = Sizes(layers=2, heads=2)
    return from_transformers(hf_model(request.param, CLASSES[request.param], sizes, torch.float64))


@pytest.fixture(scope="module")
def trace(model: Model) -> Trace:
    inputs = batch("bert")
    mask = inputs["attention_mask"].bool()
    return model.trace(minibert.Tokens.from_ids(inputs["input_ids"], mask=mask))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: without the checks of annotations that only tests have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def simpson() -> list[tuple[float, float]]:
    """Places from 0 to 1 and their weights."""
    inner = [4 if part % 2 else 2 for part in range(1, PARTS)]
    return [(part / PARTS, w / (3 * PARTS)) for part, w in enumerate([1, *inner, 1])]


@pytest.mark.parametrize("layer", [0, 1])
def test_integrated_attention_is_the_mean_gradient_times_attention(
    trace: Trace, layer: int
) -> None:
    result = integrated_attention(trace, number, layer=layer, steps=32)
    mean = torch.zeros_like(result.values)
    for factor, weight in simpson():
        explicit = Explicit(trace, scale=(layer, factor))
        mean += explicit.gradients(number(explicit))[layer, "probs"] * weight
    expected = mean * trace[layer].probs
    assert torch.allclose(result.values, expected, rtol=0, atol=1e-4 * expected.abs().max())
    assert (result.values.masked_select(~trace.mask) == 0).all()
    assert result.title == f"Integrated attention, layer {layer}"
    assert result.tokens == trace.tokens.strings


@pytest.mark.parametrize(("family", "name"), ROTARY_CLASSES)
def test_of_a_rotary_model_it_adds_up(family: str, name: str) -> None:
    _, model, _, tokens = both(family, name)
    trace = model.trace(tokens)
    found = integrated_attention(trace, number, layer=0)
    assert found.values.shape == (3, 4, 13, 13)
    without = trace.rerun({("probs", 0): 0.0})
    difference = (number(trace) - number(without)).item()
    assert found.difference == pytest.approx(difference, rel=1e-9)
    # A norm at the output of attention leaves nothing of its size: all of the change is near 0.
    assert found.converged or model.body.layers[0].attention_output_norm is not None
    near = abs(found.values.sum().item() - difference) <= 1e-2 * abs(difference)
    assert near == found.converged


@pytest.mark.parametrize("layer", [0, -1])
def test_integrated_attention_adds_up(trace: Trace, layer: int) -> None:
    result = integrated_attention(trace, number, layer=layer, steps=32)
    full, none = (
        number(Explicit(trace, scale=(layer % 2, factor))).item() for factor in (1.0, 0.0)
    )
    assert result.difference == pytest.approx(full - none, abs=1e-9)
    assert result.values.sum().item() == pytest.approx(full - none, abs=1e-7)
    assert result.gap == pytest.approx(full - none - result.values.sum().item(), abs=1e-9)


def test_one_weight_gives_what_small_changes_of_it_give_on_the_way(trace: Trace) -> None:
    result = integrated_attention(trace, number, layer=0, steps=32)
    place, step = (0, 1, 4, 2), 1e-5
    total = 0.0
    for factor, weight in simpson():
        up, down = (
            number(Explicit(trace, ("probs", 0, place, sign * step), scale=(0, factor))).item()
            for sign in (1, -1)
        )
        total += (up - down) / (2 * step) * weight
    expected = total * trace[0].probs[place].item()
    assert expected != 0
    size = result.values.abs().max().item()
    assert result.values[place].item() == pytest.approx(expected, abs=1e-4 * size)


def a_baseline(trace: Trace) -> torch.Tensor:
    """The same for every position; away from 0, where a LayerNorm is steep."""
    return torch.randn(1, 1, trace.config.d_model, dtype=torch.float64) / 3


def test_integrated_embeddings_are_the_mean_gradient_times_the_difference(trace: Trace) -> None:
    baseline = a_baseline(trace)
    result = integrated_embeddings(trace, number, baseline=baseline, steps=64)
    difference = trace.embed - baseline
    mean = torch.zeros_like(trace.embed)
    for factor, weight in simpson():
        explicit = Explicit(trace, embed=baseline + factor * difference)
        mean += explicit.gradients(number(explicit))["embed"] * weight
    expected = mean * difference
    assert torch.allclose(result.values, expected, rtol=0, atol=1e-3 * expected.abs().max())
    assert torch.equal(result.by_token(), result.values.sum(-1))
    assert result.tokens == trace.tokens.strings


def test_one_entry_of_an_embedding_gives_what_small_changes_of_it_give(trace: Trace) -> None:
    baseline, place, step = a_baseline(trace), (0, 2, 3), 1e-5
    result = integrated_embeddings(trace, number, baseline=baseline, steps=64)
    difference = trace.embed - baseline
    nudge = torch.zeros_like(difference)
    nudge[place] = step
    total = 0.0
    for factor, weight in simpson():
        here = baseline + factor * difference
        up, down = (number(Explicit(trace, embed=here + sign * nudge)).item() for sign in (1, -1))
        total += (up - down) / (2 * step) * weight
    expected = total * difference[place].item()
    assert expected != 0
    size = result.values.abs().max().item()
    assert result.values[place].item() == pytest.approx(expected, abs=1e-3 * size)


def test_integrated_embeddings_add_up(trace: Trace) -> None:
    baseline = a_baseline(trace)
    result = integrated_embeddings(trace, number, baseline=baseline, steps=64)
    here, there = (
        number(Explicit(trace, embed=embed.expand_as(trace.embed))).item()
        for embed in (trace.embed, baseline)
    )
    assert result.difference == pytest.approx(here - there, abs=1e-9)
    assert result.values.sum().item() == pytest.approx(here - there, abs=1e-4)
    coarse = integrated_embeddings(trace, number, baseline=baseline, steps=2)
    assert abs(result.gap) < abs(coarse.gap)
    assert coarse.difference == pytest.approx(result.difference, abs=1e-12)


def test_of_a_linear_number_each_entry_gives_its_part_of_it(trace: Trace) -> None:
    weights = torch.randn(trace.embed.shape, dtype=torch.float64)
    result = integrated_embeddings(trace, lambda again: (again.embed * weights).sum(), steps=1)
    assert torch.allclose(result.values, trace.embed * weights)
    assert result.gap == pytest.approx(0, abs=1e-9)


def test_a_token_that_stays_as_it_is_gives_nothing(trace: Trace) -> None:
    baseline = torch.where(torch.arange(13)[:, None] == 4, 0.1, trace.embed)
    tokens = integrated_embeddings(trace, number, baseline=baseline, steps=2).by_token()
    assert (tokens[0].nonzero() == 4).all()
    assert tokens[0, 4] != 0


def test_a_trace_with_gradients_gives_the_same(trace: Trace) -> None:
    graded = trace.model.trace(trace.tokens, grad=True)
    graded.backward(number(graded))
    before = graded.grad.embed
    for call in (
        lambda any_trace: integrated_embeddings(any_trace, number, steps=3),
        lambda any_trace: integrated_attention(any_trace, number, layer=1, steps=3),
    ):
        with torch.no_grad():
            ours = call(graded)
        assert torch.allclose(ours.values, call(trace).values, rtol=1e-9, atol=1e-12)
        assert not ours.values.requires_grad
    assert torch.equal(graded.grad.embed, before)


def steep(trace: Trace, slope: float) -> tuple[Callable[[Any], torch.Tensor], torch.Tensor]:
    """A number that rises half way from the baseline, the faster the larger the slope."""
    baseline = trace.embed.clone()
    baseline[0, 0, 0] -= 2

    def rising(again: Any) -> torch.Tensor:
        return (slope * (again.embed[0, 0, 0] - trace.embed[0, 0, 0] + 1)).sigmoid()

    return rising, baseline


def test_steps_are_doubled_until_the_gap_is_below_one_percent_of_the_difference(
    trace: Trace, unchecked: None
) -> None:
    for slope, steps in ((1.0, 16), (20.0, 32)):
        rising, baseline = steep(trace, slope)
        result = integrated_embeddings(trace, rising, baseline=baseline)
        assert result.steps == steps
        assert result.converged
        assert abs(result.gap) < 0.01 * abs(result.difference)
        assert result.note().endswith(f" after {steps} steps")
    assert result.note().startswith("difference ")
    attention = integrated_attention(trace, number, layer=1)
    assert attention.converged
    assert "layer 1" in repr(attention)


def test_a_result_that_is_not_converged_says_so(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    monkeypatch.setattr(module, "_LAST", 32)
    rising, baseline = steep(trace, 1e9)
    # The number of steps that is asked for is taken, and no other.
    for asked, steps in ((3, 3), (None, 32)):
        result = integrated_embeddings(trace, rising, baseline=baseline, steps=asked)
        assert result.steps == steps
        assert not result.converged
        assert re.search(rf"after {steps} steps, NOT CONVERGED: \d+% of the diff", repr(result))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: integrated_attention(t, number, layer=2), "no layer 2"),
        (lambda t: integrated_attention(t, number, layer=0, steps=0), "steps=0"),
        (lambda t: integrated_attention(t, number, layer=0, steps=1.5), "steps=1.5"),
        (lambda t: integrated_attention(t, lambda a: a.logits, layer=0), r"gave \(3, 13, 41\)"),
        (lambda t: integrated_attention(t, lambda a: 3.0, layer=0), "gave float"),
        (lambda t: integrated_attention(t, lambda a: t.logits.sum(), layer=0), "not depend"),
        (lambda t: integrated_attention(t, lambda a: a[0].z.sum(), layer=1), "not depend"),
        (lambda t: integrated_embeddings(t, lambda a: a.logits.detach().sum()), "detach"),
        (lambda t: integrated_embeddings(t, number, baseline=torch.ones(3)), r"shape \(3,\)"),
        (lambda t: integrated_embeddings(t, number, baseline=0), "expected a tensor"),
        (lambda t: integrated_embeddings(t, number, baseline=t.embed * torch.nan), "finite"),
    ],
)
def test_what_cannot_be_integrated_is_an_error(
    trace: Trace, call: Callable[[Trace], Any], message: str, unchecked: None
) -> None:
    with pytest.raises(minibert.TraceError, match=message):
        call(trace)


def test_inference_mode_is_an_error(trace: Trace) -> None:
    with torch.inference_mode(), pytest.raises(minibert.TraceError, match="inference_mode"):
        integrated_attention(trace, number, layer=0)


def test_a_trace_with_edits_is_refused_since_they_would_be_lost(trace: Trace) -> None:
    edited = trace.rerun({("z", 0): 0.0})
    for integrate in (integrated_embeddings, lambda *both: integrated_attention(*both, layer=1)):
        with pytest.raises(minibert.TraceError, match="made with edits"):
            integrate(edited, number)
