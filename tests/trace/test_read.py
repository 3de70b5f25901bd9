"""What is read of a trace: parts of the whole, what is not there, and what outlives a change."""

import pytest
import torch

import minibert
from minibert.model import Model, from_transformers
from minibert.quantities import QUANTITIES
from tests.families import Sizes, batch, hf_model
from tests.trace.editing import NAMES, close, model_of, sentences

BOTH = ("scores", "probs")
WHOLE_NAMES = ["logits", "hidden", "hidden_states", "attentions", "pooled", "next_sentence_logits"]


@pytest.mark.parametrize("family", ["gpt2", "albert"])
def test_a_head_is_its_slice_a_layer_one_of_the_stack_and_a_window_a_part(family: str) -> None:
    model = model_of(family, torch.float64)
    graded = model.trace(sentences(family), grad=True)
    graded.backward(graded.logits.sin().sum())
    for trace in (graded, graded.grad, model.trace(sentences(family), keep=BOTH)):
        for name in NAMES:
            stacked = trace.stack(name)
            assert len(stacked) == len(graded) == 3
            for layer in (0, -1):
                whole = getattr(trace[layer], name)
                assert torch.equal(stacked[layer], whole)
                axes = dict(zip(QUANTITIES[name].axes, whole.shape, strict=True))
                assert (axes["batch"], axes.get("head", 3)) == (3, 3)
                for head in (0, -1):
                    part = whole[:, head] if QUANTITIES[name].per_head else whole
                    assert close(getattr(trace[layer, head], name), part, 1e-9)
        for name in BOTH:
            for queries, keys in WINDOWS:
                expected = getattr(trace[1], name)[:, :, queries, keys]
                got = trace[1].window(name, queries=queries, keys=keys)
                assert close(got, expected, 1e-9)
                head = trace[1, 1].window(name, queries=queries, keys=keys)
                assert close(head, expected[:, 1], 1e-9)


WINDOWS = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(3, 7)),
    (slice(-3, None), slice(None, -2)),
    (slice(1, 9, 3), slice(None, None, 2)),
]


def gpt2() -> Model:
    return from_transformers(hf_model("gpt2", "GPT2LMHeadModel", Sizes(layers=5)))


@pytest.fixture(scope="module")
def tokens() -> minibert.Tokens:
    inputs = batch("bert")
    return minibert.Tokens.from_ids(inputs["input_ids"], mask=inputs["attention_mask"].bool())


def test_above_where_a_trace_stopped_there_is_an_error_that_says_so(
    tokens: minibert.Tokens,
) -> None:
    short = gpt2().trace(tokens, until=2)
    for where in (3, 4, -1, (3, 0)):
        with pytest.raises(minibert.TraceError, match=r"until=2.*Trace again with until=[34]"):
            short[where]
    for name in WHOLE_NAMES[:-1]:
        with pytest.raises(minibert.TraceError, match=r"needs every layer.*until=2"):
            getattr(short, name)
        assert not hasattr(short, name)


def test_nothing_above_is_computed_when_a_trace_stops_early(tokens: minibert.Tokens) -> None:
    model, ran = gpt2(), list[str]()
    for name, module in model.named_modules():
        if name.endswith(("output", "down")) or name == "head":
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    model.trace(tokens, until=0)
    assert ran == []
    model.trace(tokens, until=1)
    assert ran == ["body.groups.0.attention.output", "body.groups.0.mlp.down"]


def test_a_name_that_does_not_exist_is_an_error_and_hasattr_says_no(
    tokens: minibert.Tokens,
) -> None:
    trace = gpt2().trace(tokens)
    for name in ("prob", "logits", "embed", "weights", "Query"):
        for at in (trace[1], trace[1, 2]):
            with pytest.raises(minibert.TraceError, match=name):
                getattr(at, name)
            assert not hasattr(at, name)
        with pytest.raises(minibert.TraceError, match=name):
            trace.stack(name)
    for name in (*NAMES, "weights"):
        assert not hasattr(trace, name)
        with pytest.raises(AttributeError, match=name):
            getattr(trace, name)
    assert set(NAMES) <= set(dir(trace[0]))
    assert all(hasattr(trace[0], name) and hasattr(trace[0, 0], name) for name in NAMES)


def test_what_the_pass_computed_outlives_a_change_of_the_weights(tokens: minibert.Tokens) -> None:
    """What is computed on demand (attn_out, the MLP's inside, head_out) reads the new weights."""
    changed = gpt2()
    trace = changed.trace(tokens)
    names = ("resid_pre", "query", "key", "value", "scores", "probs", "z", "resid_mid")
    before = {name: trace.stack(name).clone() for name in names}
    logits = trace.logits.clone()
    for parameter in changed.parameters():
        parameter.mul_(2)
    assert torch.equal(trace.logits, logits)
    for name, expected in before.items():
        assert torch.equal(trace.stack(name), expected)


def test_a_gradient_reaches_the_weights_through_a_trace(tokens: minibert.Tokens) -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    model.requires_grad_()
    weight = model.body.groups[0].mlp.up.weight
    (lazy,) = torch.autograd.grad(model.trace(tokens)[-1].probs.square().sum(), [weight])
    model.requires_grad_()
    (plain,) = torch.autograd.grad(
        model.trace(tokens, keep=("probs",))[-1].probs.square().sum(), [weight]
    )
    assert lazy.abs().max() > 0
    assert torch.allclose(lazy, plain, atol=1e-12)
