"""Relevance is what its equations say, with gradients of autograd and whole matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from vocabulary_models import ROTARY_CLASSES, both

import minibert
from minibert.analysis import flow as module
from minibert.analysis.flow import gradient_x_attention, relevance, relevance_of
from minibert.loading import from_transformers
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import Sizes, batch, hf_model
from tests.rotary import theirs as rotary

CLASSES = {
    "bert": "BertForMaskedLM",
    "distilbert": "DistilBertForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
}


def number(logits: torch.Tensor) -> torch.Tensor:
    return (logits[:, 0, 1] if logits.dim() == 3 else logits[:, 1]).sum()


@pytest.fixture(scope="module", params=CLASSES)
def trace(request: pytest.FixtureRequest) -> Trace:
    sizes = Sizes(layers=3, heads=2)
    model = from_transformers(hf_model(request.param, CLASSES[request.param], sizes, torch.float64))
    inputs = batch(request.param)
    mask = inputs["attention_mask"].bool()
    trace = model.trace(minibert.Tokens.from_ids(inputs["input_ids"], mask=mask), grad=True)
    trace.backward(number(trace.logits))
    return trace


@pytest.fixture(scope="module")
def products(trace: Trace) -> list[torch.Tensor]:
    """dy/dP ∘ P of each layer, from the pass spelled out."""
    explicit = Explicit(trace)
    gradients = explicit.gradients(number(explicit.logits))
    return [
        gradients[layer, "probs"] * explicit[layer, "probs"].detach() for layer in range(len(trace))
    ]


@pytest.mark.parametrize(("family", "name"), ROTARY_CLASSES)
def test_of_a_rotary_model_it_is_that_of_transformers_own_gradients(family: str, name: str) -> None:
    theirs, model, inputs, tokens = both(family, name)
    with rotary.computing(theirs):
        out = theirs(**inputs, output_attentions=True)
        slopes = torch.autograd.grad(out.logits[0, 5, 7], out.attentions)
    products = [slope * probs.detach() for slope, probs in zip(slopes, out.attentions, strict=True)]
    expected = torch.eye(13, dtype=torch.float64)
    for product in products:
        expected = expected + product[0].clamp(min=0).mean(0) @ expected
    trace = model.trace(tokens, grad=True)
    trace.backward(trace.logits[0, 5, 7])
    found = gradient_x_attention(trace).values[:, 0]
    assert torch.allclose(found, torch.stack(products)[:, 0], rtol=0, atol=1e-10)
    assert torch.allclose(relevance(trace).values[0], expected, rtol=0, atol=1e-10)
    row = relevance_of(trace, [5, 5, 0]).values[0, 0]
    assert torch.allclose(row, expected[5], rtol=0, atol=1e-10)


def test_gradient_x_attention_is_the_product_of_both(
    trace: Trace, products: list[torch.Tensor]
) -> None:
    result = gradient_x_attention(trace)
    assert [result.place("layer", layer) for layer in (0, 1, 2)] == [0, 1, 2]
    assert result.sizes["layer"] == 3
    assert result.tokens == trace.tokens.strings
    assert torch.allclose(result.values, torch.stack(products), rtol=0, atol=1e-10)
    assert (result.values[:, ~trace.mask.expand_as(result.values[0])] == 0).all()
    some = gradient_x_attention(trace, layers=[2, -3])
    assert some.labels["layer"] == (2, 0)
    assert torch.equal(some.at(layer=2), result.at(layer=2))
    assert torch.equal(some.values, result.values[[2, 0]])
    assert torch.equal(gradient_x_attention(trace, layers=1).values, result.values[[1]])


def test_a_row_of_gradient_x_attention_adds_up_to_that_of_z(trace: Trace) -> None:
    rows = gradient_x_attention(trace).values.sum(-1)
    for layer, at in enumerate(trace):
        expected = (trace.grad[layer].z * at.z).sum(-1)
        assert torch.allclose(rows[layer], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("numbers", [1, 10**9])
def test_relevance_is_the_product_of_whole_matrices(
    trace: Trace, products: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    expected = torch.eye(13, dtype=torch.float64).repeat(3, 1, 1)
    for product in products:
        mean = torch.relu(product).mean(1)
        expected = expected + torch.einsum("bqk,bkj->bqj", mean, expected)
    result = relevance(trace)
    assert result.tokens == trace.tokens.strings
    assert torch.allclose(result.values, expected, rtol=0, atol=1e-10)


def test_relevance_of_a_position_is_its_row_of_the_matrix_and_makes_none(
    trace: Trace, products: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = relevance(trace).values[:, 0]

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows of probs were made")

    monkeypatch.setattr(module, "_positive_parts", refused)
    matrix = torch.eye(13, dtype=torch.float64).repeat(3, 1, 1)
    result = relevance_of(trace, 0)
    assert result.positions == (0, 0, 0)
    assert torch.allclose(result.values[0], expected, atol=1e-10)
    assert (result.values >= 0).all()
    # What is behind a layer: the same product, begun there.
    for layer in (2, 1, 0):
        step = torch.eye(13, dtype=torch.float64) + torch.relu(products[layer]).mean(1)
        matrix = matrix @ step
        assert torch.allclose(result.values[layer], matrix[:, 0], atol=1e-10)


@pytest.mark.parametrize("what", ["y made of probs", "edited probs", "kept probs"])
def test_where_probs_have_a_gradient_of_their_own_relevance_counts_it(
    trace: Trace, what: str
) -> None:
    edit = {("probs", 1): lambda probs: probs.roll(1, -1)} if what == "edited probs" else {}
    keep = ("probs",) if what == "kept probs" else ()
    other = trace.model.trace(trace.tokens, grad=True, edit=edit, keep=keep)
    y = number(other.logits)
    if what == "y made of probs":
        y = y + 3 * other[1].probs[:, :, 0, 0].sum()
    other.backward(y)
    row = np.zeros((3, 13))
    row[:, 0] = 1
    for layer in (2, 1, 0):
        product = (other.grad[layer].probs * other[layer].probs).detach().numpy()
        row = row + np.einsum("bq,bqk->bk", row, np.maximum(product, 0).mean(1))
        found = relevance_of(other, 0).values[layer].numpy()
        np.testing.assert_allclose(found, row, rtol=0, atol=1e-12)


def test_the_results_say_what_they_are(trace: Trace) -> None:
    whole = repr(gradient_x_attention(trace)).splitlines()
    assert whole[:2] == [
        "Result 'Gradient x attention' of layer 3, batch 3, head 2, query 13, key 13",
        "  in dy/dP ∘ P",
    ]
    assert whole[2].startswith("  computed with function='gradient_x_attention', trace='Trace(")
    square = repr(relevance(trace)).splitlines()
    assert square[0] == "Result 'Relevance' of batch 3, query 13, key 13"
    assert square[2].startswith("  computed with function='relevance', trace='Trace(")
    row = relevance_of(trace, 0)
    lines = repr(row).splitlines()
    assert lines[0] == "OfPosition 'Relevance to' of layer 3, batch 3, key 13"
    assert lines[2].endswith(", position=0")
    assert row.labels["batch"] == [
        f"“{strings[0].strip()}” at position 0" for strings in trace.tokens.strings
    ]


def test_nothing_of_it_is_part_of_a_graph(trace: Trace) -> None:
    for result in (gradient_x_attention(trace), relevance(trace), relevance_of(trace, 0)):
        assert not result.values.requires_grad


@pytest.mark.parametrize("layers", [3, -4, [], [0, 3]])
def test_a_layer_that_does_not_exist_is_an_error(trace: Trace, layers: Any) -> None:
    with pytest.raises(minibert.TraceError, match="layer"):
        gradient_x_attention(trace, layers=layers)


def test_without_backward_the_error_says_what_to_do(trace: Trace) -> None:
    fresh = trace.model.trace([[2, 3, 5]], grad=True)
    for call in (gradient_x_attention, relevance, lambda trace: relevance_of(trace, 0)):
        with pytest.raises(minibert.TraceError, match=r"call trace.backward"):
            call(fresh)
