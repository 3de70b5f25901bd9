"""Gradients of every quantity of the Llama-like families are those of transformers.

tests/test_verification.py compares the quantities themselves, of all families.
"""

from typing import Any

import pytest
from torch import Tensor

import minibert
from tests.rotary.classes import LANGUAGE
from tests.rotary.drawn import plain
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of

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
