"""Rollout and relevance against products of whole matrices and autograd."""

from typing import Any

import numpy as np
import pytest
import torch
from small_traces import KINDS, LAYERS, small_trace
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, both

import minibert
from minibert.analysis import flow as module
from minibert.analysis.flow import relevance_of, rollout_of
from minibert.errors import TraceError
from minibert.loading import from_transformers
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import Sizes, as_tokens, batch, hf_model
from tests.rotary import theirs as rotary


def mixed(trace: Trace, residual: float = 0.5) -> Any:
    """Abnar and Zuidema's matrix of each layer, (layer, batch, query, key), in float64."""
    probs = trace.stack("probs").double().numpy()
    matrices = (1 - residual) * probs.mean(2) + residual * np.eye(probs.shape[-1])
    return matrices / matrices.sum(-1, keepdims=True)


def product(matrices: Any) -> Any:
    found = matrices[0]
    for matrix in matrices[1:]:
        found = matrix @ found
    return found


def watched(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> list[tuple[str, int]]:
    """What is read of the trace from now on: names, and how many rows."""
    read, asked = trace.read, []

    def watching(name: str, *where: Any) -> Any:
        value = read(name, *where)
        asked.append((name, value.shape[2]))
        return value

    monkeypatch.setattr(trace, "read", watching)
    return asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("residual", "layer", "position"), [(0.25, None, 7), (0.75, 1, -11)])
def test_rollout_is_the_product_of_the_layers(
    residual: float, layer: int | None, position: int, kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plain = small_trace(**KINDS[kind])
    options: Any = {"residual": residual, "layer": layer}
    for trace in (plain, plain.rerun({("probs", 1): lambda probs: probs.roll(1, -1)})):
        matrices = mixed(trace, residual)[: None if layer is None else layer + 1]
        asked = watched(monkeypatch, trace)
        for numbers in (2**22, 3 * 2 * 11):
            monkeypatch.setattr(module, "_NUMBERS", numbers)
            row = rollout_of(trace, position, **options)
            for at in range(len(matrices)):
                upper = product(matrices[at:])[:, position]
                np.testing.assert_allclose(row.values[at], upper, atol=1e-6)
        assert max((rows for name, rows in asked if name == "probs"), default=0) <= 11
        assert row.positions == (position % 11,)
        assert row.tokens == trace.tokens.strings
    lower = plain.model.trace(plain.tokens, until=1)
    whole = rollout_of(plain, position, layer=1).values
    torch.testing.assert_close(rollout_of(lower, position).values, whole)


def test_one_position_reads_few_rows_and_a_mean_over_heads_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = small_trace()
    asked = watched(monkeypatch, trace)
    rollout_of(trace, 8)
    assert {name for name, _ in asked} <= {"query", "key"}


def test_choices_that_do_not_exist_are_refused() -> None:
    trace = small_trace()
    for options, message in (
        ({"residual": -0.5}, "residual=-0.5: expected a weight from 0 to 1"),
        ({"residual": float("nan")}, "residual=nan: expected a weight from 0 to 1"),
        ({"layer": 3}, "There is no layer 3; expected 0 to 2"),
    ):
        with pytest.raises(TraceError, match=message):
            rollout_of(trace, 0, **options)
    with pytest.raises(TraceError, match="Layer 2 was not computed"):
        rollout_of(trace.model.trace(trace.tokens, until=1), 0, layer=2)


CLASSES = {
    "bert": "BertForMaskedLM",
    "distilbert": "DistilBertForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
}


def number(logits: Tensor) -> Tensor:
    return (logits[:, 0, 1] if logits.dim() == 3 else logits[:, 1]).sum()


@pytest.fixture(scope="module", params=CLASSES)
def trace(request: pytest.FixtureRequest) -> Trace:
    sizes = Sizes(layers=3, heads=2)
    model = from_transformers(hf_model(request.param, CLASSES[request.param], sizes, torch.float64))
    trace = model.trace(as_tokens(batch(request.param)), grad=True)
    trace.backward(number(trace.logits))
    return trace


@pytest.fixture(scope="module")
def products(trace: Trace) -> list[Tensor]:
    """dy/dP ∘ P of each layer, from the pass spelled out."""
    explicit = Explicit(trace)
    slopes = explicit.gradients(number(explicit.logits))
    layers = range(len(trace))
    return [slopes[layer, "probs"] * explicit[layer, "probs"].detach() for layer in layers]


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("family", "name"), ROTARY_CLASSES)
def test_of_a_rotary_model_it_is_that_of_transformers_own_gradients(family: str, name: str) -> None:
    theirs, model, inputs, tokens = both(family, name)
    with rotary.computing(theirs):
        out = theirs(**inputs, output_attentions=True)
        slopes = torch.autograd.grad(out.logits[0, 5, 7], out.attentions)
    parts = [slope * probs.detach() for slope, probs in zip(slopes, out.attentions, strict=True)]
    expected = torch.eye(13, dtype=torch.float64)
    for part in parts:
        expected = expected + part[0].clamp(min=0).mean(0) @ expected
    trace = model.trace(tokens, grad=True)
    trace.backward(trace.logits[0, 5, 7])
    same(relevance_of(trace, [5, 5, 0]).values[0, 0], expected[5])


@pytest.mark.parametrize("numbers", [1, 10**9])
def test_relevance_is_the_product_of_whole_matrices_and_a_row_makes_none(
    trace: Trace, products: list[Tensor], monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    unit = torch.eye(13, dtype=torch.float64).repeat(3, 1, 1)
    steps = [unit + torch.relu(each).mean(1) for each in products]
    monkeypatch.setattr(module, "_positive_parts", lambda *_: pytest.fail("rows were made"))
    result, matrix = relevance_of(trace, 0), unit
    assert result.positions == (0, 0, 0)
    # What is behind a layer: the same product, begun there.
    for layer in (2, 1, 0):
        matrix = matrix @ steps[layer]
        same(result.values[layer], matrix[:, 0])


@pytest.mark.parametrize("what", ["y made of probs", "edited probs", "kept probs"])
def test_where_probs_have_a_gradient_of_their_own_relevance_counts_it(
    trace: Trace, what: str
) -> None:
    edit = {("probs", 1): lambda probs: probs.roll(1, -1)} if what == "edited probs" else {}
    keep = ("probs",) if what == "kept probs" else ()
    other = trace.model.trace(trace.tokens, grad=True, edit=edit, keep=keep)
    y = number(other.logits)
    other.backward(y + 3 * other[1].probs[:, :, 0, 0].sum() if what == "y made of probs" else y)
    row = torch.zeros(3, 13, dtype=torch.float64)
    row[:, 0] = 1
    for layer in (2, 1, 0):
        part = (other.grad[layer].probs * other[layer].probs).detach().clamp(min=0).mean(1)
        row = row + torch.einsum("bq,bqk->bk", row, part)
        same(relevance_of(other, 0).values[layer], row)


def test_the_results_say_what_they_are_and_are_part_of_no_graph(trace: Trace) -> None:
    row = relevance_of(trace, 0)
    lines = repr(row).splitlines()
    assert lines[0] == "OfPosition 'Relevance' of layer 3, batch 3, key 13"
    assert lines[2].startswith("  computed with function='relevance_of', trace='Trace(")
    assert lines[2].endswith(", position=0")
    assert row.labels["batch"] == [
        f"to “{strings[0].strip()}” at position 0" for strings in trace.tokens.strings
    ]
    rolled = rollout_of(trace, 0)
    assert rolled.values.shape == (LAYERS, 3, 13)
    assert not row.values.requires_grad
    assert not rolled.values.requires_grad


def test_without_backward_the_error_says_what_to_do(trace: Trace) -> None:
    fresh = trace.model.trace([[2, 3, 5]], grad=True)
    with pytest.raises(minibert.TraceError, match=r"call trace.backward"):
        relevance_of(fresh, 0)
