"""A model in other people's hands: hooks, replaced parts, gradients, inference mode, autocast."""

from pathlib import Path

import pytest
import torch
import torch.nn.utils.prune

import minibert
from minibert.model import Model, from_transformers
from minibert.text.tokens import Tokens
from tests.families import hf_model
from tests.small_traces import KINDS, small_trace


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours - theirs).abs().max().item()


def test_a_module_in_the_place_of_query_is_used() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    ids = torch.tensor([[5, 7, 11]])
    attention = model.body.layers[1].attention
    attention.query = torch.nn.Linear(15, 15)
    trace = model.trace(ids)
    expected = attention.query(trace[1].resid_pre)
    assert torch.allclose(trace[1].query.transpose(1, 2).flatten(2), expected)
    assert torch.allclose(model.trace(ids, until=1)[1, 2].query, trace[1, 2].query)


def test_gpt2_classifies_a_text_alike_alone_and_beside_a_longer_one() -> None:
    theirs = hf_model("gpt2", "GPT2ForSequenceClassification")
    model = from_transformers(theirs)
    # Padded with an id that is not the padding id of the config, which is 0.
    ids = torch.tensor([[5, 7, 9, 9], [5, 7, 11, 13]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    together = model(Tokens.from_ids(ids, mask=mask))
    assert difference(together[:1], model(ids[:1, :2])) <= 1e-6
    assert difference(together[:1], theirs(ids[:1, :2]).logits.detach()) <= 1e-5


def test_a_model_loaded_in_inference_mode_runs_anywhere(tmp_path: Path) -> None:
    theirs = hf_model("bert", "BertModel")
    theirs.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 7, 11]])
    with torch.inference_mode():
        model = minibert.load(tmp_path)
        inside = model(ids)
    with torch.no_grad():
        assert torch.equal(model(ids), inside)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_a_model_of_inference_mode_is_differentiated_outside_of_it(name: str) -> None:
    text, expected = "the horse ran away .", minibert.load(name)
    with torch.inference_mode():
        model = minibert.load(name)
        tokens = model.tokenize(text)
        drawn = Model.from_config(model.config, tokenizer=model.tokenizer)
    found, wanted = model.trace(tokens, grad=True), expected.trace(text, grad=True)
    for trace in (found, wanted):
        trace.backward(trace.logits[0, -1, 7])
    assert torch.equal(found.grad[1].probs, wanted.grad[1].probs)
    drawn.requires_grad_()
    drawn(text).sum().backward()
    assert drawn.body.word.weight.grad is not None
    with torch.inference_mode():
        moved = minibert.load(name).to(torch.float64)
        theirs = hf_model("gpt2", "GPT2LMHeadModel")
    assert moved.trace(tokens, grad=True).differentiable
    with pytest.raises(minibert.TraceError, match=r"weights .* inside torch.inference_mode"):
        minibert.load(theirs).trace([[3, 4]], grad=True)


def test_a_model_without_values_says_so() -> None:
    model = minibert.load("tiny-gpt2").to("meta")
    for call in (model, model.trace, model.packed, model.generate):
        with pytest.raises(minibert.CheckpointError, match=r"tiny-gpt2 are on the meta device"):
            call("the horse")
    with pytest.raises(minibert.TokenizationError, match=r"ids are on the meta device"):
        minibert.load()(torch.ones(1, 3, dtype=torch.int64, device="meta"))


def read_from(trace: minibert.Trace) -> list[torch.Tensor]:
    layer, graded, text = trace[1], trace.grad[1], trace.text(0)[1]
    read = [layer.statistics.entropy, layer.query, layer.scores, layer.probs, layer.head_out]
    read += [layer.mlp_post, text.head_out, trace.logits, trace.hidden, trace.rerun({}).logits]
    return [*read, graded.query, graded.probs, graded.resid_mid]


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_a_trace_with_gradients_is_made_read_and_differentiated_under_autocast(
    name: str, impl: str
) -> None:
    model, found = minibert.load(name, impl=impl), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            trace = model.trace("the horse ran away .", grad=True, statistics=("entropy",))
            trace.backward(trace.logits[0, -2, 7])
            found.append(read_from(trace))
        # Outside of autocast, or inside of another, the same numbers are read.
        for other in (torch.float16, None):
            with torch.autocast("cpu", dtype=other, enabled=other is not None):
                assert all(map(torch.equal, read_from(trace), found[-1]))
    for exact, cast in zip(*found, strict=True):
        # bfloat16 has eight bits; errors add up over four layers.
        assert difference(exact, cast) <= 0.1 * exact.abs().max()
    assert found[1][1].dtype == torch.bfloat16


def test_reading_what_enters_the_activation_does_not_change_it() -> None:
    block = minibert.load("tiny-bert").body.layers[0].mlp
    pre = torch.randn(2, 3, block.up.weight.shape[0])
    kept = pre.clone()
    block.post(pre)
    assert torch.equal(pre, kept)


def test_a_hook_on_the_gate_of_an_mlp_keeps_what_it_saw() -> None:
    trace = small_trace(7, **KINDS["gemma2"])
    model, seen = trace.model, []
    plain = model(trace.tokens)
    gate = model.body.layers[0].mlp.gate
    handle = gate.register_forward_hook(lambda module, given, out: seen.append(out))
    hooked = model(trace.tokens)
    handle.remove()
    assert hooked.equal(plain)
    # The product with mlp_pre is not written over it.
    torch.testing.assert_close(seen[0] * trace[0].mlp_pre, trace[0].mlp_post)
