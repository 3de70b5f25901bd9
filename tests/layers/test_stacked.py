"""Stacked weights: the model's own numbers by the names of the literature."""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import minibert
from minibert.errors import CheckpointError
from minibert.layers.bodies import StackedWeights
from minibert.layers.config import Config
from minibert.layers.rotary import Rotary
from minibert.loading import from_transformers
from minibert.model import Model
from minibert.transformer_lens import HookedTransformer
from tests.families import hf_model, sizes
from tests.rotary import theirs as rotary
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import drawn, plain
from tests.trace.editing import FAMILIES as ENCODERS

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


WRITES: list[Callable[[Tensor, float], object]] = [
    lambda weight, x: weight.add_(x),
    lambda weight, x: weight.__setitem__(0, x),
    lambda weight, x: weight[0].fill_(x),
    lambda weight, x: weight[..., :1].add_(x),
    lambda weight, x: weight.data.sub_(x),
    lambda weight, x: weight.detach().mT.fill_(x) if weight.dim() > 1 else weight.fill_(x),
    lambda weight, x: torch.add(weight, x, out=weight),
    lambda weight, x: torch._foreach_add_([weight], x),
    lambda weight, x: torch.ops.aten.add_.Scalar(weight, x),
    lambda weight, x: nn.init.constant_(next(iter(weight)), x),
    lambda weight, x: np.add(array := weight.detach().numpy(), x, out=array),
    lambda weight, x: torch.from_dlpack(weight.detach()).add_(x),
]
LAYER = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
MLP = ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out")


def readers(model: Model) -> Iterator[Callable[[], Tensor | None]]:
    """Everything that hands out a weight by its name."""
    yield from (partial(model.weights.__getitem__, name) for name in model.weights)
    yield from (partial(getattr, model, name) for name in ("W_E", "W_pos", "W_U", "b_U"))
    layer = model.body.layers[-1]
    yield from (partial(getattr, layer.attention, name) for name in LAYER)
    yield from (partial(getattr, layer.mlp, name) for name in MLP)
    if model.config.generates and model.config.norm_place == "before":
        hooked = HookedTransformer(model)
        block: Any = hooked.blocks[-1]
        yield from (partial(getattr, hooked, name) for name in ("W_E", "W_U", "b_U", *LAYER))
        yield from (partial(getattr, block.attn, name) for name in LAYER)
        yield from (partial(getattr, block.mlp, n) for n in MLP if n in block.mlp.weights)


@pytest.mark.parametrize("family", [*ENCODERS, *ROTARY])
# Not made smaller where it fails: that takes minutes.
@settings(max_examples=2, phases=[Phase.generate])
@given(data=st.data())
@torch.no_grad()
def test_what_is_written_into_a_weight_is_in_the_model_or_refused(
    family: str, data: st.DataObject
) -> None:
    if family in ROTARY:
        chosen = data.draw(st.just(plain(family)) | drawn(family))
        model = minibert.load(rotary.model_of(chosen, LANGUAGE[family]))
    else:
        size = data.draw(sizes)
        model = from_transformers(hf_model(family, ENCODERS[family], size, torch.float64))
    for number, read in enumerate(readers(model), 61):
        weight = read()
        if weight is None:
            continue
        before, as_read = deepcopy(model.state_dict()), weight.clone()
        write = data.draw(st.sampled_from(WRITES))
        if refused(partial(write, weight, float(number))):
            assert same_state(model, before)
        else:
            again = read()
            assert again is not None
            assert torch.equal(again, weight)
            assert not torch.equal(again, as_read)
            assert not same_state(model, before)


def refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except (CheckpointError, ValueError) as error:
        return bool(re.search("would not reach the model|read-only", str(error)))
    return False


def same_state(model: Model, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_weight_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    weights = llama().weights
    assert isinstance(weights, StackedWeights)
    assert "b_Q" not in weights
    assert weights.get("W_pos") is None
    with pytest.raises(CheckpointError, match=r"'W_q' is no weight .* it has W_Q, W_K, W_V, W_O"):
        weights["W_q"]
    with pytest.raises(KeyError):
        weights["b_Q"]
