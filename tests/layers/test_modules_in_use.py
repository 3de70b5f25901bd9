"""A model in other people's hands: hooks, replaced parts, gradients, inference mode, autocast."""

from pathlib import Path

import pytest
import torch
import torch.nn.utils.prune

import minibert
from minibert.layers import linear_backends as backends
from minibert.loading import from_transformers
from minibert.text.tokens import Tokens
from tests.families import batch, hf_model


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours - theirs).abs().max().item()


def test_a_hook_on_query_runs_and_may_change_it() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    ids = torch.tensor([[5, 7, 11]])
    before = model.trace(ids)
    handle = model.body.layers[0].attention.query.register_forward_hook(
        lambda module, arguments, out: out * 2
    )
    assert torch.allclose(model.trace(ids)[0].query, 2 * before[0].query)
    handle.remove()
    assert torch.equal(model.trace(ids)[0].query, before[0].query)


def test_a_module_in_the_place_of_query_is_used() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    ids = torch.tensor([[5, 7, 11]])
    attention = model.body.layers[1].attention
    attention.query = torch.nn.Linear(15, 15)
    trace = model.trace(ids)
    expected = attention.query(trace[1].resid_pre)
    assert torch.allclose(trace[1].query.transpose(1, 2).flatten(2), expected)
    assert torch.allclose(model.trace(ids, until=1)[1, 2].query, trace[1, 2].query)


def test_a_pruned_weight_is_pruned() -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    query = model.body.layers[0].attention.query
    torch.nn.utils.prune.l1_unstructured(query, "weight", amount=0.5)
    trace = model.trace(torch.tensor([[5, 7, 11]]))
    expected = torch.nn.functional.linear(trace[0].resid_pre, query.weight, query.bias)
    assert int((query.weight == 0).sum()) >= query.weight.numel() // 2
    assert torch.allclose(trace[0].query.transpose(1, 2).flatten(2), expected, atol=1e-6)


def test_a_layer_that_is_replaced_is_replaced() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel"))
    ids = torch.tensor([[5, 7, 11]])
    before = model(ids)
    model.body.groups[1] = model.body.groups[0]
    assert difference(model(ids), before) > 1e-3


def test_gradients_reach_what_the_pass_used() -> None:
    model = from_transformers(hf_model("gpt2", "GPT2LMHeadModel", dtype=torch.float64))
    model.requires_grad_()
    trace = model.trace(batch("gpt2")["input_ids"], keep=("probs",))
    wanted = [trace[1].query, trace[1].z, trace[1].probs]
    for gradient in torch.autograd.grad(trace.logits.square().sum(), wanted):
        assert gradient.abs().max() > 0


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


@pytest.mark.parametrize("backend", ["torch", "onednn"])
def test_autocast_runs_whatever_the_back_end(backend: str) -> None:
    model = from_transformers(hf_model("bert", "BertModel"))
    ids = torch.tensor([[5, 7, 11]])
    backends.use(backend)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(ids)
    finally:
        backends.use(None)
    assert difference(out.float(), model(ids)) < 0.1
