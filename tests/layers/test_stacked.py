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
from minibert.model import Model, from_transformers
from minibert.transformer_lens import HookedTransformer
from tests.families import hf_model, sizes
from tests.rotary import theirs as rotary
from tests.rotary.classes import FAMILIES as ROTARY
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import drawn, plain
from tests.trace.editing import FAMILIES as ENCODERS

LIVE = ("granite", "gemma2", "gemma3_text", "olmo2")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert", "tiny-llama", *LIVE])
def test_a_trace_follows_from_the_weights(name: str) -> None:
    """Those of Granite have its multipliers in them; three families norm what attention adds."""
    model = minibert.load(
        rotary.model_of(plain(name), LANGUAGE[name]) if name in LANGUAGE else name
    )
    trace, weights = model.trace([[5, 11, 7, 3]]), model.weights
    turned = model.config.rotary is not None

    def product(x: Tensor, letter: str, layer: int) -> Tensor:
        made = x @ weights[f"W_{letter}"][layer]
        bias = weights.get(f"b_{letter}")
        return made if bias is None else made + bias[layer][..., None, :]

    for n, layer in enumerate(model.body.layers):
        at = trace[n]
        query, key = (at.query_unrotated, at.key_unrotated) if turned else (at.query, at.key)
        x = layer.attention_input(at.resid_pre)
        for letter, each in (("Q", query), ("K", key), ("V", at.value)):
            if letter == "V" or model.config.query_key_norm == "none":
                assert torch.allclose(product(x[:, None], letter, n), each, atol=1e-4)
        keys = at.key.repeat_interleave(at.query.shape[1] // at.key.shape[1], 1)
        scores = at.query @ keys.mT * model.config.attention_scale(n)
        assert torch.allclose(scores, at.scores, atol=1e-4)
        assert torch.allclose(at.z @ weights["W_O"][n], at.head_out, atol=1e-4)
        bias = weights.get("b_O")
        summed = at.head_out.sum(1) if bias is None else at.head_out.sum(1) + bias[n]
        assert torch.allclose(summed, at.attn_out, atol=1e-4)
        x = layer.mlp_input(at.resid_mid)
        assert torch.allclose(product(x, "in", n), at.mlp_pre, atol=1e-4)
        if model.config.gated:
            assert torch.allclose(product(x, "gate", n), at.mlp_gate, atol=1e-4)
        assert torch.allclose(product(at.mlp_post, "out", n), at.mlp_out, atol=1e-4)
    if not model.config.generates:
        assert torch.equal(weights["W_E"], model.body.word.weight)
    else:
        logits = trace.hidden @ weights["W_U"]
        if cap := model.config.logit_soft_cap:
            logits = cap * (logits / cap).tanh()
        assert torch.allclose(logits, trace.logits, atol=1e-3)
        rows = weights["W_E"][trace.tokens.ids]
        if "W_pos" in weights:
            rows = rows + weights["W_pos"][: rows.shape[1]]
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
    weights = minibert.load("tiny-llama").weights
    assert isinstance(weights, StackedWeights)
    assert "b_Q" not in weights
    assert weights.get("W_pos") is None
    with pytest.raises(CheckpointError, match=r"no weight 'W_q'; there are W_Q, W_K, W_V, W_O"):
        weights["W_q"]
    with pytest.raises(KeyError):
        weights["b_Q"]
