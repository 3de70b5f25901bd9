"""The gradients of a trace are those of autograd through the same pass, spelled out.

What a trace with gradients leaves alone, what it costs and what has no gradient stand here too.
That every family has the right ones, edited or not, is a law in test_laws.py.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minibert
from minibert.quantities import QUANTITIES
from minibert.trace.edit import mean, replace
from minibert.trace.read import Trace
from tests.explicit_forward import (
    MODELS,
    Explicit,
    assert_all,
    close,
    exact,
    padded,
    weighted,
)
from tests.families import LAYER_NAMES, Sizes


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


def test_the_weights_are_left_as_they_are() -> None:
    requires = True
    model = exact("bert", "BertForMaskedLM").requires_grad_(requires)
    trace = model.trace(padded("bert"), grad=True)
    trace.backward(weighted(trace.logits))
    assert_all(trace, lambda explicit: weighted(explicit.logits))
    assert all(p.grad is None and p.requires_grad is requires for p in model.parameters())
    assert not any(at.mlp_pre.requires_grad or at.probs.requires_grad for at in trace.grad)


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


def fresh() -> Trace:
    return exact("gpt2", "GPT2LMHeadModel", Sizes(layers=1)).trace([[2, 3, 5]], grad=True)


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
    trace, freed, model = fresh(), fresh(), exact("gpt2", "GPT2LMHeadModel")
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
    model = exact("gpt2", "GPT2LMHeadModel")
    source = model.trace([[2, 3, 5, 7]], grad=True)
    edits = {
        ("z", 1): edit(source),
        (
            "mlp_out",
            0,
        ): replace(source, positions=[2]),
    }
    fresh, again = model.trace([[2, 3, 5, 7]], edit=edits, grad=True), source.rerun(edits)
    for trace in (fresh, again):
        trace.backward(trace.logits[0, -1, 5])
    assert close(again.grad.embed, fresh.grad.embed)
    assert fresh.grad.embed.abs().max() > 0


def test_a_trace_made_in_inference_mode_can_be_read_from() -> None:
    model = exact("gpt2", "GPT2LMHeadModel")
    with torch.inference_mode():
        source = model.trace([[11, 3, 5, 7]])
    trace = model.trace([[2, 3, 5, 7]], edit={("z", 1): source}, grad=True)
    trace.backward(trace.logits[0, -1, 5])
    assert trace.grad[1].z.abs().max() > 0
