"""Stacked weights: the model's own numbers by the names of the literature."""

import pytest
import torch

import minibert
from minibert.errors import CheckpointError
from minibert.layers.bodies import StackedWeights
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.model import Model

L, H, M, F, V = 3, 4, 11, 13, 41


def llama() -> Model:
    config = Config(
        "llama",
        "causal-lm",
        vocab_size=V,
        n_positions=7,
        n_layers=L,
        n_heads=H,
        n_kv_heads=2,
        d_head=6,
        d_model=M,
        d_mlp=F,
        causal=True,
        rotary=Rotary(6),
        activation="silu",
    )
    return Model.from_config(config).double()


def test_the_axes_of_grouped_heads_and_of_gated_mlps() -> None:
    weights = llama().weights
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    assert shapes == {
        "W_Q": (L, H, M, 6),
        "W_K": (L, 2, M, 6),
        "W_V": (L, 2, M, 6),
        "W_O": (L, H, 6, M),
        "W_in": (L, M, F),
        "W_gate": (L, M, F),
        "W_out": (L, F, M),
        "W_E": (V, M),
        "W_U": (M, V),
    }


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_a_trace_follows_from_the_weights(name: str) -> None:
    model = minibert.load(name)
    trace, weights = model.trace("the horse ran"), model.weights
    for n, layer in enumerate(model.body.layers):
        at = trace[n]
        x = layer.attention_input(at.resid_pre)[:, None]
        for letter, each in (("Q", at.query), ("K", at.key), ("V", at.value)):
            made = x @ weights[f"W_{letter}"][n] + weights[f"b_{letter}"][n][:, None]
            assert torch.allclose(made, each, atol=1e-4)
        assert torch.allclose(at.z @ weights["W_O"][n], at.head_out, atol=1e-4)
        assert torch.allclose(at.head_out.sum(1) + weights["b_O"][n], at.attn_out, atol=1e-4)
        inner = layer.mlp_input(at.resid_mid) @ weights["W_in"][n] + weights["b_in"][n]
        assert torch.allclose(inner, at.mlp_pre, atol=1e-4)
        out = at.mlp_post @ weights["W_out"][n] + weights["b_out"][n]
        assert torch.allclose(out, at.mlp_out, atol=1e-4)
    assert torch.equal(weights["W_E"], model.body.word.weight)
    if model.config.generates:
        assert torch.allclose(trace.hidden @ weights["W_U"], trace.logits, atol=1e-3)
        rows = weights["W_E"][trace.tokens.ids] + weights["W_pos"][: trace.tokens.ids.shape[1]]
        assert torch.allclose(rows, trace.embed, atol=1e-6)


def test_they_are_read_as_they_are_now_and_leave_the_model_as_it_is() -> None:
    model = llama()
    weights, before = model.weights, model.weights["W_O"]
    model.body.layers[1].attention.output.weight.zero_()
    assert not weights["W_O"][1].any()
    assert before[1].any()
    before.zero_()
    assert weights["W_O"][0].any()
    assert weights["W_E"].data_ptr() == model.body.word.weight.data_ptr()


def test_a_weight_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    weights = llama().weights
    assert isinstance(weights, StackedWeights)
    assert "b_Q" not in weights
    assert weights.get("W_pos") is None
    with pytest.raises(CheckpointError, match=r"'W_q' is no weight .* it has W_Q, W_K, W_V, W_O"):
        weights["W_q"]
    with pytest.raises(KeyError):
        weights["b_Q"]
