"""Every family with rotary positions gives what transformers gives, gradients included."""

import statistics
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import minibert
from minibert.layers import linear_backends as backends
from tests.rotary.classes import ARCHITECTURES, FAMILIES, LANGUAGE
from tests.rotary.drawn import Drawn, drawn, plain
from tests.rotary.ours import assert_equal, inputs_of, named, squared_differences
from tests.rotary.theirs import as_tokens, batch, computing, forget, model_of, run

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("family", "name"), ARCHITECTURES, ids=[name for _, name in ARCHITECTURES])
@settings(max_examples=3)
@given(data=st.data())
def test_streams_attention_and_logits_are_those_of_transformers(
    family: str, name: str, data: st.DataObject
) -> None:
    chosen = data.draw(drawn(family))
    theirs = model_of(chosen, name)
    model = minibert.load(theirs)
    for inputs in inputs_of(chosen):
        tokens = as_tokens(inputs)
        assert_equal(named(model.trace(tokens)), run(theirs, inputs), tokens)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3)
@given(data=st.data())
def test_float32_errs_at_most_twice_what_it_does_in_transformers(
    family: str, data: st.DataObject
) -> None:
    """The geometric mean over six configurations; one rounding of a small model is chance."""
    ratios: dict[str, list[float]] = defaultdict(list)
    # The same matrix products on both sides: what is left is what our code adds.
    backends.use("torch")
    try:
        for place in range(6):
            chosen = data.draw(drawn(family))
            # The first example is the simplest, six times: of other weights each.
            chosen = replace(chosen, seed=chosen.seed + place)
            for kind, (mine, its) in errors_of(chosen).items():
                ratios[kind].append(max(mine, EPS / 8) / max(its, EPS / 8))
    finally:
        backends.use(None)
    means = {kind: statistics.geometric_mean(each) for kind, each in ratios.items()}
    assert all(mean <= 2 for mean in means.values()), means


def errors_of(chosen: Drawn) -> dict[str, tuple[float, float]]:
    """The root mean square of our float32 error and of transformers', by kind of quantity."""
    ours: dict[str, list[Tensor]] = defaultdict(list)
    theirs: dict[str, list[Tensor]] = defaultdict(list)
    exact, single = (
        model_of(chosen, LANGUAGE[chosen.family], dtype) for dtype in (torch.float64, torch.float32)
    )
    model = minibert.load(single)
    for inputs in inputs_of(chosen):
        tokens, truth = as_tokens(inputs), run(exact, inputs)
        pairs = ((ours, named(model.trace(tokens))), (theirs, run(single, inputs)))
        for kept, found in pairs:
            for name, squares in squared_differences(found, truth, tokens).items():
                kept[name.rstrip("0123456789 ")].append(squares.flatten())

    def error(squares: list[Tensor]) -> float:
        return torch.cat(squares).mean().sqrt().item()

    return {kind: (error(ours[kind]), error(theirs[kind])) for kind in ours}


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
