"""What Granite multiplies in is in its weights, whoever reads them.

A Granite model is a Llama whose weights have the four factors in them; so everything that is read
of both is the same.
"""

from dataclasses import replace

import pytest
import torch

from minibert.analysis import (
    composition_scores,
    decompose,
    head_norms,
    logit_lens,
    why_logit,
)
from minibert.layers.layer import layer_quantities
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.trace.read import Trace
from tests.rotary import theirs
from tests.rotary.drawn import MULTIPLIERS, plain

IDS = [[5, 11, 7, 3, 11, 29, 2]]


def pair() -> tuple[Model, Model]:
    """A Granite model, and the Llama with its factors in the weights."""
    granite = from_transformers(
        theirs.model_of(plain("granite"), "GraniteForCausalLM", torch.float64)
    )
    config = granite.config
    of_llama = replace(
        config,
        family="llama",
        model_type="llama",
        score_multiplier=None,
        embed_multiplier=1.0,
        residual_multiplier=1.0,
        logits_divisor=1.0,
    )
    llama = Model.from_config(of_llama).double()
    llama.load_state_dict(granite.state_dict())
    with torch.no_grad():
        llama.body.word.weight.mul_(MULTIPLIERS["embedding_multiplier"])
        llama.head.decoder.weight.div_(MULTIPLIERS["logits_scaling"])
        for layer in llama.body.layers:
            scale = MULTIPLIERS["attention_multiplier"] * config.d_head**0.5
            layer.attention.query.weight.mul_(scale)
            layer.attention.output.weight.mul_(MULTIPLIERS["residual_multiplier"])
            layer.mlp.down.weight.mul_(MULTIPLIERS["residual_multiplier"])
    return granite, llama


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    granite, llama = pair()
    found = [model.trace(IDS, grad=True) for model in (granite, llama)]
    for trace in found:
        trace.backward(trace.logits[0, -1, 7])
    return found[0], found[1]


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_every_quantity_and_gradient_has_the_factors(traces: tuple[Trace, Trace]) -> None:
    granite, llama = traces
    same(granite.logits, llama.logits)
    scale = MULTIPLIERS["attention_multiplier"] * granite.config.d_head**0.5
    for layer in range(len(granite)):
        for name in layer_quantities(granite.config):
            # Queries alone have their factor elsewhere: in the scale of the scores.
            factor = scale if name in ("query", "query_unrotated") else 1.0
            same(granite[layer].quantity(name) * factor, llama[layer].quantity(name))
            ours, theirs = granite.grad[layer].quantity(name), llama.grad[layer].quantity(name)
            same(ours, theirs * factor)


def test_weights_have_the_factors(traces: tuple[Trace, Trace]) -> None:
    granite, llama = (trace.model.weights for trace in traces)
    assert list(granite) == list(llama)
    for name in set(granite) - {"W_Q"}:
        same(granite[name], llama[name])
    assert granite["W_O"].abs().max() > 0


def test_analyses_read_the_weights_with_their_factors(traces: tuple[Trace, Trace]) -> None:
    granite, llama = traces
    same(head_norms(granite, 1).values, head_norms(llama, 1).values)
    same(decompose(granite, heads=True).values, decompose(llama, heads=True).values)
    same(logit_lens(granite).values, logit_lens(llama).values)
    same(why_logit(granite, 7).values, why_logit(llama, 7).values)
    for kind, distance in (("Q", 1), ("V", None)):
        both = (composition_scores(trace.model, kind, distance=distance) for trace in traces)
        same(*(each.values for each in both))
    heads = (torch.stack([layer.head_out for layer in trace]) for trace in traces)
    same(*heads)
