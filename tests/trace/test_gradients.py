"""The gradients of a trace are those of autograd through the same pass, spelled out."""

from collections.abc import Callable

import pytest
import torch

import minibert
from minibert.loading import from_transformers
from minibert.quantities import QUANTITIES
from minibert.trace.read import Trace
from tests.explicit_forward import Explicit
from tests.families import LAYER_NAMES, batch, hf_model
from tests.trace.gradient_models import (
    MODELS,
    assert_all,
    close,
    exact,
    padded,
    weighted,
)


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_gradients_of_probs_and_streams_are_those_of_transformers(family: str) -> None:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}.get(family, MODELS[family])
    theirs = hf_model(family, name, dtype=torch.float64)
    inputs = batch(family)
    if family in ("distilbert", "gpt2"):
        del inputs["token_type_ids"]
    out = theirs(**inputs, output_attentions=True, output_hidden_states=True)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    probs, streams = out.attentions, out.hidden_states[:-1]
    expected = torch.autograd.grad(weighted(logits), [*probs, *streams])
    tokens = minibert.Tokens.from_ids(
        inputs["input_ids"],
        mask=inputs["attention_mask"].bool(),
        segments=inputs.get("token_type_ids"),
    )
    trace = from_transformers(theirs).trace(tokens, grad=True)
    trace.backward(weighted(trace.logits))
    # What transformers computes for queries that are padding is not compared: its rows differ.
    rows = tokens.mask[:, None, :, None]
    for at, gradient in zip(trace.grad, expected[: len(probs)], strict=True):
        assert close(at.probs * rows, gradient * rows)
    for at, gradient in zip(trace.grad, expected[len(probs) :], strict=True):
        assert close(at.resid_pre, gradient)


def test_scores_that_are_masked_have_no_gradient_and_masked_probs_have_one() -> None:
    trace = exact("gpt2", "GPT2LMHeadModel").trace(padded("gpt2"), grad=True)
    trace.backward(weighted(trace.logits))
    for layer, at in enumerate(trace.grad):
        masked = ~trace.mask.expand_as(at.scores)
        assert (at.scores[masked] == 0).all()
        assert close(at.probs, at.z @ trace[layer].value.transpose(-2, -1))
        assert (at.probs[masked] != 0).any()


@pytest.fixture(scope="module")
def trace() -> Trace:
    model = exact("gpt2", "GPT2LMHeadModel")
    trace = model.trace(padded("gpt2"), grad=True)
    trace.backward(weighted(trace.logits))
    return trace


def test_a_head_is_its_slice_and_a_window_its_part_of_the_layer(trace: Trace) -> None:
    for name in LAYER_NAMES:
        for layer, at in enumerate(trace.grad):
            whole = getattr(at, name)
            for head in range(trace.config.n_heads):
                part = whole[:, head] if QUANTITIES[name].per_head else whole
                assert close(getattr(trace.grad[layer, head], name), part)
        assert torch.equal(getattr(trace.grad[-1], name), getattr(trace.grad[2], name))
        assert close(trace.grad.stack(name)[1], getattr(trace.grad[1], name))
    rows, columns = slice(2, 7), slice(1, None, 3)
    for name in ("scores", "probs"):
        expected = getattr(trace.grad[1], name)[:, :, rows, columns]
        assert close(trace.grad[1].window(name, queries=rows, keys=columns), expected)
        head = trace.grad[1, 1].window(name, queries=rows, keys=columns)
        assert close(head, expected[:, 1])


NUMBERS: dict[str, tuple[Callable[[Trace], torch.Tensor], Callable[[Explicit], torch.Tensor]]] = {
    "one weight of attention": (
        lambda trace: trace[1, 2].probs[0, 5, 3],
        lambda explicit: explicit[1, "probs"][0, 2, 5, 3],
    ),
    "an entropy": (
        lambda trace: -(trace[1].probs[0, 1, 4, :5] * trace[1].probs[0, 1, 4, :5].log()).sum(),
        lambda explicit: torch.special.entr(explicit[1, "probs"][0, 1, 4, :5]).sum(),
    ),
    "a window of scores": (
        lambda trace: weighted(
            trace[2, 0].window("scores", queries=slice(1, 6, 2), keys=slice(0, 2))
        ),
        lambda explicit: weighted(explicit[2, "scores"][:, 0, 1:6:2, 0:2]),
    ),
    "one neuron": (
        lambda trace: trace[1].mlp_post[0, 3, 17],
        lambda explicit: explicit[1, "mlp_post"][0, 3, 17],
    ),
    "each point between the kept ones, twice": (
        lambda trace: sum(
            weighted(getattr(trace[1], name)) + getattr(trace[1], name).square().sum()
            for name in LAYER_NAMES
        ),
        lambda explicit: sum(
            weighted(explicit[1, name]) + explicit[1, name].square().sum() for name in LAYER_NAMES
        ),
    ),
    "logits and a head": (
        lambda trace: weighted(trace.logits) + weighted(trace[0, 1].head_out),
        lambda explicit: weighted(explicit.logits) + weighted(explicit[0, "head_out"][:, 1]),
    ),
    "the embeddings": (
        lambda trace: weighted(trace.embed),
        lambda explicit: weighted(explicit.embed),
    ),
}


@pytest.mark.parametrize(("family", "keep"), [("bert", ("scores", "probs")), ("gpt2", ())])
def test_a_number_may_be_made_of_anything_that_can_be_read(
    family: str, keep: tuple[str, ...]
) -> None:
    trace = exact(family, MODELS[family]).trace(padded(family), grad=True, keep=keep)
    for ours, theirs in NUMBERS.values():
        # What was read for another number leaves no mark.
        trace.backward(weighted(trace[1].probs) + weighted(trace[2].mlp_pre))
        trace.backward(ours(trace))
        assert_all(trace, theirs)
