"""What a trace with gradients leaves alone, what it costs, and what has no gradient.

That every family has the right ones, edited or not, is a law in test_laws.py.
"""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import minibert
from minibert.model import Model, from_transformers
from minibert.trace.edit import mean, replace
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, Sizes, as_tokens, batch, hf_model
from tests.trace import editing

close = partial(editing.close, tolerance=1e-9)
DEFAULT = Sizes()


def exact(family: str, chosen: Sizes = DEFAULT) -> Model:
    name = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    return from_transformers(hf_model(family, name, chosen, torch.float64))


def padded(family: str) -> minibert.Tokens:
    return as_tokens(batch(family))


def weighted(logits: torch.Tensor) -> torch.Tensor:
    """A number that depends on every logit, each by another factor."""
    factors = torch.arange(logits.numel(), dtype=logits.dtype).view(logits.shape)
    return (logits * torch.cos(factors)).sum()


def test_scores_that_are_masked_have_no_gradient_and_masked_probs_have_one() -> None:
    trace = exact("gpt2").trace(padded("gpt2"), grad=True)
    trace.backward(weighted(trace.logits))
    for layer, at in enumerate(trace.grad):
        masked = ~trace.mask.expand_as(at.scores)
        assert (at.scores[masked] == 0).all()
        assert close(at.probs, at.z @ trace[layer].value.transpose(-2, -1))
        assert (at.probs[masked] != 0).any()


def test_each_backward_replaces_the_gradients_of_the_one_before() -> None:
    trace = exact("bert").trace(padded("bert"), grad=True)
    trace.backward(trace.logits[0, 3, 5])
    first = trace.grad
    before = first[1].probs
    trace.backward(trace.logits[0, 4, 7])
    assert not close(trace.grad[1].probs, before)
    assert torch.equal(first[1].probs, before)
    trace.backward(trace.logits[0, 3, 5])
    assert torch.equal(trace.grad[1].probs, before)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_some_layers_have_the_gradients_of_all_and_nothing_below_is_differentiated(
    family: str,
) -> None:
    trace = exact(family).trace(padded(family), grad=True)
    number = weighted(trace.logits) + trace[2].probs[0, 1, 3, 0]
    trace.backward(number)
    whole = trace.grad
    reached: list[str] = []
    for name, value in [*trace.records[0].items(), ("embed", trace.embed)]:
        value.register_hook(lambda gradient, name=name: reached.append(name))
    for layers in (-1, [1, 2]):
        trace.backward(number, layers=layers)
        for layer in trace.grad.found.layers:
            for name in LAYER_NAMES:
                if name not in trace.config.absent_in(layer):
                    found, expected = (each[layer].quantity(name) for each in (trace.grad, whole))
                    assert torch.equal(found, expected), name
        assert torch.equal(trace.grad.logits, whole.logits)
    # The last number to be differentiated enters layer 1.
    assert set(reached) == {"resid_post"}
    for read in (lambda: trace.grad[0], lambda: trace.grad.embed, lambda: trace.grad.stack("z")):
        with pytest.raises(AttributeError, match=r"called for layers 1, 2\. Name 0 in"):
            read()
    with pytest.raises(minibert.TraceError, match=r"does not come from .* lowest of them or above"):
        trace.backward(trace[0].z.sum(), layers=2)
    with pytest.raises(minibert.TraceError, match="layer 3"):
        trace.backward(number, layers=3)


def test_the_weights_are_left_as_they_are() -> None:
    requires = True
    model = exact("bert").requires_grad_(requires)
    trace = model.trace(padded("bert"), grad=True)
    trace.backward(weighted(trace.logits))
    assert all(p.grad is None and p.requires_grad is requires for p in model.parameters())
    assert not any(at.mlp_pre.requires_grad or at.probs.requires_grad for at in trace.grad)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_pass_holds_no_matrix_of_query_and_key(family: str) -> None:
    model = exact(family, Sizes(layers=2, heads=2, d_head=5, d_mlp=13))
    held: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    ids = torch.randint(2, 41, (1, 31))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trace = model.trace(ids, grad=True)
        scalar = trace.logits[0, 3, 5]
    assert held
    assert max(held) < 2 * 31 * 31
    trace.backward(scalar)
    assert trace.grad[1].probs.shape == (1, 2, 31, 31)


def test_a_trace_is_freed_without_the_collector_of_cycles() -> None:
    trace = exact("bert").trace(padded("bert"), grad=True)
    trace.backward(trace[1].probs.sum() + trace.logits.sum())
    assert trace.grad[0].probs.shape[1] == 3
    watched = weakref.ref(trace)
    gc.disable()
    try:
        del trace
        assert watched() is None
    finally:
        gc.enable()


def fresh() -> Trace:
    return exact("gpt2", Sizes(layers=1)).trace([[2, 3, 5]], grad=True)


NO_NUMBERS: list[tuple[Callable[[Trace], Any], str]] = [
    (lambda trace: trace.logits, r"one number, found shape \(1, 3, 41\)"),
    (lambda trace: trace.logits[0, 0, :0], r"one number, found shape \(0,\)"),
    (lambda trace: trace.logits.sum().item(), r"backward\(float\): expected a tensor"),
    (lambda trace: None, r"backward\(NoneType\): expected a tensor"),
    (lambda trace: trace.logits.detach().sum(), "no connection to a trace"),
    (lambda trace: trace.logits.argmax(), "no connection to a trace"),
    (lambda trace: torch.ones((), requires_grad=True) * 2, "does not come from this trace"),
    (lambda trace: fresh().logits.sum(), "does not come from this trace"),
]


def test_what_is_no_number_of_the_trace_is_an_error(unchecked: None) -> None:
    trace = fresh()
    trace.backward(trace.logits[0, 0, 0])
    before = trace.grad.embed
    for number, message in NO_NUMBERS:
        with pytest.raises(minibert.TraceError, match=message):
            trace.backward(number(trace))
        assert torch.equal(trace.grad.embed, before)


class Broken(torch.autograd.Function):
    """Somebody's own function, whose backward fails."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("of my own")


def test_a_trace_or_a_number_without_its_graph_has_no_backward() -> None:
    trace, freed, model = fresh(), fresh(), exact("gpt2")
    with torch.no_grad():
        # torch says of a view that it requires a gradient, even here.
        cut = [trace.logits[0, 0, 0] * 2, trace.logits[0, 0, 0]]
    freed.logits.sum().backward()
    plain = model.requires_grad_().trace([[2, 3, 5]])
    with pytest.raises(RuntimeError, match="of my own"):
        trace.backward(Broken.apply(trace.logits[0, 0, 0]))
    for call, message in (
        *((lambda number=number: trace.backward(number), r"torch.no_grad\(\)") for number in cut),
        (lambda: freed.backward(freed.logits[0, 0, 0]), "freed by another backward"),
        (lambda: plain.backward(plain.logits[0, 0, 0]), "grad=True"),
        (lambda: model.trace([[2, 3, 5]], grad=True, until=1), "grad=True with until=1"),
        (lambda: torch.inference_mode()(model.trace)([[2, 3, 5]], grad=True), "inference_mode"),
    ):
        with pytest.raises(minibert.TraceError, match=message):
            call()


@pytest.mark.parametrize("edit", [mean, replace])
def test_a_value_of_another_trace_is_a_number_that_no_gradient_passes(edit: Any) -> None:
    model = exact("gpt2")
    source = model.trace([[2, 3, 5, 7]], grad=True)
    edits = {("z", 1): edit(source), ("mlp_out", 0): replace(source, positions=[2])}
    fresh, again = model.trace([[2, 3, 5, 7]], edit=edits, grad=True), source.rerun(edits)
    for trace in (fresh, again):
        trace.backward(trace.logits[0, -1, 5])
    assert close(again.grad.embed, fresh.grad.embed)
    assert fresh.grad.embed.abs().max() > 0


def test_a_trace_made_in_inference_mode_can_be_read_from() -> None:
    model = exact("gpt2")
    with torch.inference_mode():
        source = model.trace([[11, 3, 5, 7]])
    trace = model.trace([[2, 3, 5, 7]], edit={("z", 1): source}, grad=True)
    trace.backward(trace.logits[0, -1, 5])
    assert trace.grad[1].z.abs().max() > 0
