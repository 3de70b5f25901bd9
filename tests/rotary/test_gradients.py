"""Gradients of a logit: those of small steps, and those that autograd finds in transformers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.layers.layer import layer_quantities
from tests.rotary.classes import FAMILIES, LANGUAGE
from tests.rotary.drawn import Drawn, drawn, plain
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of

STEP = 1e-6


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=2)
@given(data=st.data())
def test_a_gradient_is_what_a_small_step_changes(family: str, data: st.DataObject) -> None:
    """Along a random direction, by a central difference of two edited passes."""
    # relu has no derivative at 0, and two sides beside it.
    chosen = data.draw(drawn(family).filter(_is_smooth))
    model = minibert.load(model_of(chosen, LANGUAGE[family]))
    tokens = as_tokens(batch((7, 3)))
    # The last real token of the second text, and one in the first.
    trace = model.trace(tokens, grad=True)
    trace.backward(trace.logits[0, 5, 3] + trace.logits[1, 2, 7])
    for name in layer_quantities(model.config):
        first = min(n for n in range(len(trace)) if name not in model.config.absent_in(n))
        layer = data.draw(st.integers(first, len(trace) - 1))
        value = getattr(trace[layer], name).detach()
        direction = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(value)
        if name in ("scores", "probs"):
            direction = direction * trace.mask
        ends = [
            _number(trace.rerun({(name, layer): value + sign * STEP * direction}).logits)
            for sign in (1, -1)
        ]
        step = (ends[0] - ends[1]) / (2 * STEP)
        along = float((getattr(trace.grad[layer], name) * direction).sum())
        assert abs(along - step) <= 1e-6 * max(1.0, abs(step)), (name, layer, along, step)


def _is_smooth(chosen: Drawn) -> bool:
    return "relu" not in chosen.options.values()


def _number(logits: Tensor) -> float:
    return float(logits[0, 5, 3] + logits[1, 2, 7])


# What transformers' modules give, by our name.
MODULES = {
    "llama": {
        "query_unrotated": "self_attn.q_proj",
        "key_unrotated": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "mlp_gate": "mlp.gate_proj",
        "mlp_pre": "mlp.up_proj",
        "mlp_out": "mlp.down_proj",
        "attn_out": "self_attn.o_proj",
    },
}
for _family in ("mistral", "qwen2", "gemma", "gemma2"):
    MODULES[_family] = MODULES["llama"]
for _family in ("qwen3", "gemma3_text", "olmo2"):
    MODULES[_family] = MODULES["llama"] | {
        "query_unrotated": "self_attn.q_norm",
        "key_unrotated": "self_attn.k_norm",
    }


@pytest.mark.parametrize("family", MODULES)
def test_gradients_are_those_of_autograd_in_transformers(family: str) -> None:
    theirs, inputs = model_of(plain(family), LANGUAGE[family]), batch((13,))
    held: dict[tuple[str, int], Tensor] = {}

    def keep(name: str, layer: int) -> Any:
        def hook(module: Any, given: Any, out: Tensor) -> None:
            out.retain_grad()
            held[name, layer] = out

        return hook

    for layer, each in enumerate(theirs.model.layers):
        for name, path in MODULES[family].items():
            each.get_submodule(path).register_forward_hook(keep(name, layer))
    theirs.requires_grad_()
    with computing(theirs):
        forget(theirs)
        theirs(**inputs, use_cache=False).logits[0, 9, 3].backward()
    trace = minibert.load(model_of(plain(family), LANGUAGE[family])).trace(
        as_tokens(inputs), grad=True
    )
    trace.backward(trace.logits[0, 9, 3])
    for (name, layer), out in held.items():
        found, expected = getattr(trace.grad[layer], name), out.grad
        assert expected is not None
        if expected.shape != found.shape:
            # These modules give positions before heads, apart or side by side.
            width = found.shape[-1]
            expected = expected.reshape(*found.transpose(1, 2).shape[:2], -1, width)
            found = found.transpose(1, 2)
        assert (found - expected).abs().max() <= 1e-10 * max(1.0, float(expected.abs().max()))
        assert expected.abs().max() > 1e-6
