"""What gradients leave alone, what they cost, and what has none."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch

import minibert
from minibert.loading import from_transformers
from minibert.trace.read import Trace
from tests.families import LAYER_NAMES, Sizes, hf_model
from tests.trace.gradient_models import (
    MODELS,
    assert_all,
    close,
    exact,
    padded,
    weighted,
)


def test_each_backward_replaces_the_gradients_of_the_one_before() -> None:
    trace = exact("bert", "BertForMaskedLM").trace(padded("bert"), grad=True)
    trace.backward(trace.logits[0, 3, 5])
    first = trace.grad
    before = first[1].probs
    trace.backward(trace.logits[0, 4, 7])
    assert not close(trace.grad[1].probs, before)
    assert torch.equal(first[1].probs, before)
    trace.backward(trace.logits[0, 3, 5])
    assert torch.equal(trace.grad[1].probs, before)


def test_gradients_work_in_single_precision_and_under_no_grad() -> None:
    exactly = exact("gpt2", "GPT2LMHeadModel").trace(padded("gpt2"), grad=True)
    exactly.backward(exactly.logits[0, 3, 5])
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    with torch.no_grad():
        trace = model.trace(padded("gpt2"), grad=True)
    trace.backward(trace.logits[0, 3, 5])
    with torch.no_grad():
        for name in LAYER_NAMES:
            expected = exactly.grad.stack(name)
            assert close(trace.grad.stack(name).double(), expected, 1e-4)


def test_the_weights_are_left_as_they_are() -> None:
    requires = True
    model = exact("bert", "BertForMaskedLM").requires_grad_(requires)
    trace = model.trace(padded("bert"), grad=True)
    trace.backward(weighted(trace.logits))
    assert_all(trace, lambda explicit: weighted(explicit.logits))
    assert all(p.grad is None and p.requires_grad is requires for p in model.parameters())
    assert not any(at.mlp_pre.requires_grad or at.probs.requires_grad for at in trace.grad)


def test_without_grad_nothing_is_part_of_a_graph() -> None:
    trace = exact("bert", "BertForMaskedLM").trace(padded("bert"))
    assert not trace.logits.requires_grad
    assert not any(getattr(at, name).requires_grad for at in trace for name in LAYER_NAMES)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_pass_holds_no_matrix_of_query_and_key(family: str) -> None:
    model = exact(family, MODELS[family], Sizes(layers=2, heads=2, d_head=5, d_mlp=13))
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
    trace = exact("bert", "BertForMaskedLM").trace(padded("bert"), grad=True)
    trace.backward(trace[1].probs.sum() + trace.logits.sum())
    assert trace.grad[0].probs.shape[1] == 3
    watched = weakref.ref(trace)
    gc.disable()
    try:
        del trace
        assert watched() is None
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def trace() -> Trace:
    model = exact("gpt2", "GPT2LMHeadModel")
    trace = model.trace(padded("gpt2"), grad=True)
    trace.backward(weighted(trace.logits))
    return trace


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: without the checks of annotations that only tests have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def fresh() -> Trace:
    return exact("gpt2", "GPT2LMHeadModel", Sizes(layers=1)).trace([[2, 3, 5]], grad=True)


def test_before_backward_there_are_no_gradients_and_the_error_says_what_to_do() -> None:
    trace = fresh()
    assert not hasattr(trace, "grad")
    with pytest.raises(minibert.TraceError, match=r"no gradients yet: call trace.backward"):
        _ = trace.grad
    with pytest.raises(minibert.TraceError, match=r"no gradients yet: .*grad=True"):
        _ = exact("gpt2", "GPT2Model").trace([[2, 3, 5]]).grad


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


def test_a_number_computed_under_no_grad_is_an_error() -> None:
    trace = fresh()
    with torch.no_grad():
        # torch says of a view that it requires a gradient, even here.
        numbers = [trace.logits[0, 0, 0] * 2, trace.logits[0, 0, 0]]
    for number in numbers:
        with pytest.raises(minibert.TraceError, match=r"no connection.*torch.no_grad\(\)"):
            trace.backward(number)


def test_a_graph_that_torch_has_freed_is_an_error() -> None:
    trace = fresh()
    trace.logits.sum().backward()
    with pytest.raises(minibert.TraceError, match=r"freed by another backward"):
        trace.backward(trace.logits[0, 0, 0])


def test_a_trace_without_grad_has_no_backward() -> None:
    model = exact("gpt2", "GPT2LMHeadModel").requires_grad_()
    trace = model.trace([[2, 3, 5]])
    with pytest.raises(minibert.TraceError, match=r"grad=True"):
        trace.backward(trace.logits[0, 0, 0])


def test_grad_needs_the_whole_pass_and_autograd() -> None:
    model = exact("gpt2", "GPT2LMHeadModel")
    with pytest.raises(minibert.TraceError, match=r"grad=True with until=1"):
        model.trace([[2, 3, 5]], grad=True, until=1)
    with torch.inference_mode(), pytest.raises(minibert.TraceError, match="inference_mode"):
        model.trace([[2, 3, 5]], grad=True)


def test_what_does_not_exist_is_an_error(trace: Trace, unchecked: None) -> None:
    for where in (3, -4, (0, 3), "probs", True, None, (1, 2, 0)):
        with pytest.raises(minibert.TraceError):
            trace.grad[where]
    for name in ("prob", "logits", "mask", "product"):
        assert not hasattr(trace.grad[1], name)
        with pytest.raises(minibert.TraceError, match=name):
            getattr(trace.grad[1, 2], name)
        with pytest.raises(minibert.TraceError, match=name):
            trace.grad.stack(name)


def test_a_gradient_says_what_it_is_of(trace: Trace) -> None:
    assert repr(trace.grad[1, 2]).startswith("<layer 1, head 2 of <gradients of Trace(")
    assert set(LAYER_NAMES) <= set(dir(trace.grad[0]))
