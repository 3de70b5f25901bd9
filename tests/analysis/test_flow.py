"""Rollout and relevance against products of whole matrices and autograd."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from small_traces import KINDS, small_trace
from torch import Tensor
from vocabulary_models import ROTARY_CLASSES, VOCABULARY_CLASSES, both

import minibert
from minibert.analysis import flow as module
from minibert.analysis.flow import relevance_of, rollout_of
from minibert.errors import TraceError
from minibert.trace.read import Trace
from tests.rotary import theirs as rotary
from tests.rotary.classes import LANGUAGE


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


def test_one_position_reads_one_row_of_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_trace()
    asked = watched(monkeypatch, trace)
    rollout_of(trace, 8)
    assert [rows for name, rows in asked if name == "probs"] == [1] + [11] * (len(trace) - 1)


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


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("family", "name"), VOCABULARY_CLASSES + ROTARY_CLASSES)
@pytest.mark.parametrize("numbers", [1, 10**9])
def test_relevance_is_the_product_of_transformers_own_gradients(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    theirs, model, inputs, tokens = both(family, name)
    with rotary.computing(theirs) if family in LANGUAGE else nullcontext():
        out = theirs(**inputs, output_attentions=True)
        logits = next(out[key] for key in ("logits", "prediction_logits") if key in out)
        slopes = torch.autograd.grad(logits[0, 5, 7], out.attentions)
    trace = model.trace(tokens, grad=True)
    trace.backward(trace.logits[0, 5, 7])
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    result, matrix = relevance_of(trace, [5, 5, 0]), torch.eye(13, dtype=torch.float64)
    assert result.positions == (5, 5, 0)
    assert not result.values.requires_grad
    # What is behind a layer: the same product, begun there.
    for layer in reversed(range(len(trace))):
        part = (slopes[layer] * out.attentions[layer].detach())[0].clamp(min=0).mean(0)
        matrix = matrix @ (torch.eye(13, dtype=torch.float64) + part)
        same(result.values[layer, 0], matrix[5])


@pytest.fixture(scope="module")
def trace() -> Trace:
    _, model, _, tokens = both("gpt2", "GPT2LMHeadModel")
    made: Trace = model.trace(tokens, grad=True)
    return made


@pytest.mark.parametrize("what", ["y made of probs", "edited probs", "kept probs"])
def test_where_probs_have_a_gradient_of_their_own_relevance_counts_it(
    trace: Trace, what: str
) -> None:
    edit = {("probs", 1): lambda probs: probs.roll(1, -1)} if what == "edited probs" else {}
    keep = ("probs",) if what == "kept probs" else ()
    other = trace.model.trace(trace.tokens, grad=True, edit=edit, keep=keep)
    y = other.logits[:, 0, 1].sum()
    other.backward(y + 3 * other[1].probs[:, :, 0, 0].sum() if what == "y made of probs" else y)
    row = torch.zeros(3, 13, dtype=torch.float64)
    row[:, 0] = 1
    for layer in (2, 1, 0):
        part = (other.grad[layer].probs * other[layer].probs).detach().clamp(min=0).mean(1)
        row = row + torch.einsum("bq,bqk->bk", row, part)
        same(relevance_of(other, 0).values[layer], row)


def test_without_backward_the_error_says_what_to_do(trace: Trace) -> None:
    fresh = trace.model.trace([[2, 3, 5]], grad=True)
    with pytest.raises(minibert.TraceError, match=r"call trace.backward"):
        relevance_of(fresh, 0)
