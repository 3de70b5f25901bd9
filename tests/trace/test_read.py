"""Every quantity of a trace is what its formula says, in every layer and head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from data import data_path
from safetensors.torch import load_file
from torch.nn import functional as F

import minibert
from minibert.loading import from_transformers
from minibert.quantities import QUANTITIES
from tests.families import Sizes, batch, hf_model

LAYER_NAMES = [name for name, quantity in QUANTITIES.items() if quantity.per_layer]
TEXTS = ["The strawberries were fresh, weren't they?", "No.", "leaves fall in autumn"]
Weights = Callable[[int, str], torch.Tensor]

BERT = {
    "output": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm_2": "output.LayerNorm",
}
GPT2 = {
    "output": "attn.c_proj",
    "norm_1": "ln_1",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm_2": "ln_2",
}


def bert_weights(tensors: dict[str, torch.Tensor]) -> Weights:
    def weight(layer: int, name: str) -> torch.Tensor:
        part, kind = name.split(".")
        return tensors[f"encoder.layer.{layer}.{BERT[part]}.{kind}"]

    return weight


def gpt2_weights(tensors: dict[str, torch.Tensor]) -> Weights:
    """GPT-2 stores its matrices as (in, out)."""

    def weight(layer: int, name: str) -> torch.Tensor:
        part, kind = name.split(".")
        tensor = tensors[f"transformer.h.{layer}.{GPT2[part]}.{kind}"]
        return tensor.T if tensor.dim() == 2 else tensor

    return weight


def minilm() -> tuple[Any, Any, Weights]:
    folder = data_path("models", "all-MiniLM-L6-v2")
    tensors = load_file(folder / "model.safetensors")
    model = minibert.load(folder)
    return model, model.tokenize(TEXTS, ["A second text."] * 3), bert_weights(tensors)


def sorter() -> tuple[Any, Any, Weights]:
    folder = data_path("models", "minigpt-nano-sort")
    tensors = load_file(folder / "model.safetensors")
    return minibert.load(folder), torch.randint(0, 3, (5, 11)), gpt2_weights(tensors)


def padded_gpt2(**sizes: Any) -> tuple[Any, Any, Weights]:
    theirs = hf_model("gpt2", "GPT2LMHeadModel", Sizes(**sizes))
    inputs = batch("gpt2")
    tokens = minibert.Tokens.from_ids(inputs["input_ids"], mask=inputs["attention_mask"].bool())
    return from_transformers(theirs), tokens, gpt2_weights(theirs.state_dict())


MODELS = {
    "MiniLM": minilm,
    "sorter": sorter,
    "padded GPT-2": padded_gpt2,
    "scaled by layer": lambda: padded_gpt2(scale_by_layer=True),
}


@pytest.fixture(scope="module", params=MODELS)
def traced(request: pytest.FixtureRequest) -> tuple[Any, Weights]:
    torch.manual_seed(0)
    model, tokens, weights = MODELS[request.param]()
    return model.trace(tokens), weights


@pytest.fixture(scope="module")
def gpt2() -> tuple[Any, Any]:
    return padded_gpt2()[:2]


def close(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    assert ours.shape == expected.shape
    size = max(1.0, expected.abs().max().item())
    return bool((ours - expected).abs().max() <= 1e-5 * size)


def norm(trace: Any, weight: Weights, layer: int, name: str, x: torch.Tensor) -> torch.Tensor:
    scale, shift = weight(layer, f"{name}.weight"), weight(layer, f"{name}.bias")
    return F.layer_norm(x, scale.shape, scale, shift, trace.config.norm_eps)


def test_scores_probs_and_z_follow_from_query_key_and_value(traced: tuple[Any, Weights]) -> None:
    trace, _ = traced
    for layer, at in enumerate(trace):
        divisor = trace.config.d_head**0.5
        divisor *= layer + 1 if trace.config.scale_by_layer else 1
        assert close(at.scores, torch.einsum("bhqd,bhkd->bhqk", at.query, at.key) / divisor)
        masked = at.scores.masked_fill(~trace.mask, -torch.inf)
        assert close(at.probs, masked.softmax(-1))
        assert (at.probs.masked_select(~trace.mask) == 0).all()
        assert close(at.probs.sum(-1), torch.ones_like(at.probs[..., 0]))
        assert close(at.z, torch.einsum("bhqk,bhkd->bhqd", at.probs, at.value))


def test_heads_add_up_to_the_stream(traced: tuple[Any, Weights]) -> None:
    trace, weight = traced
    before = trace.embed
    for layer, at in enumerate(trace):
        assert torch.equal(at.resid_pre, before)
        assert close(at.attn_out, at.head_out.sum(1) + weight(layer, "output.bias"))
        merged = at.z.transpose(1, 2).flatten(2)
        output = F.linear(merged, weight(layer, "output.weight"), weight(layer, "output.bias"))
        assert close(at.attn_out, output)
        added = at.resid_pre + at.attn_out
        pre_norm = trace.config.pre_norm
        assert close(
            at.resid_mid, added if pre_norm else norm(trace, weight, layer, "norm_1", added)
        )
        before = at.resid_post


def test_the_mlp_adds_up_to_the_stream(traced: tuple[Any, Weights]) -> None:
    trace, weight = traced
    for layer, at in enumerate(trace):
        pre_norm = trace.config.pre_norm
        x = norm(trace, weight, layer, "norm_2", at.resid_mid) if pre_norm else at.resid_mid
        pre = F.linear(x, weight(layer, "up.weight"), weight(layer, "up.bias"))
        approximate = {"gelu": "none", "gelu_tanh": "tanh"}[trace.config.activation]
        post = F.gelu(pre, approximate=approximate)
        out = F.linear(post, weight(layer, "down.weight"), weight(layer, "down.bias"))
        assert close(at.mlp_pre, pre)
        assert close(at.mlp_post, post)
        assert close(at.mlp_out, out)
        added = at.resid_mid + at.mlp_out
        assert close(
            at.resid_post, added if pre_norm else norm(trace, weight, layer, "norm_2", added)
        )


def test_a_head_is_its_slice_of_the_layer(traced: tuple[Any, Weights]) -> None:
    trace, _ = traced
    for name in LAYER_NAMES:
        stacked = trace.stack(name)
        assert len(stacked) == len(trace) == trace.config.n_layers
        for layer in (0, trace.config.n_layers - 1):
            whole = getattr(trace[layer], name)
            assert torch.equal(stacked[layer], whole)
            axes = dict(zip(QUANTITIES[name].axes, whole.shape, strict=True))
            assert axes["batch"] == len(trace.tokens)
            assert axes.get("head", trace.config.n_heads) == trace.config.n_heads
            for head in range(trace.config.n_heads):
                part = whole[:, head] if "head" in axes else whole
                assert close(getattr(trace[layer, head], name), part)


def test_products_sum_up_to_the_scores(traced: tuple[Any, Weights]) -> None:
    trace, _ = traced
    for layer in range(trace.config.n_layers):
        scale = trace.config.d_head**-0.5 / (layer + 1 if trace.config.scale_by_layer else 1)
        for query in (0, 3, -1):
            whole = trace[layer].product(query)
            assert close(whole.sum(-1) * scale, trace[layer].scores[:, :, query])
            for head in range(trace.config.n_heads):
                assert close(trace[layer, head].product(query), whole[:, head])


WINDOWS = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(3, 7)),
    (slice(-3, None), slice(None, -2)),
    (slice(1, 9, 3), slice(None, None, 2)),
    (slice(4, 4), slice(None)),
]


@pytest.mark.parametrize("keep", [(), ("scores", "probs")])
def test_a_window_is_a_part_of_the_whole(gpt2: tuple[Any, Any], keep: tuple[str, ...]) -> None:
    model, tokens = gpt2
    trace = model.trace(tokens, keep=keep)
    for name in ("scores", "probs"):
        for queries, keys in WINDOWS:
            expected = getattr(trace[1], name)[:, :, queries, keys]
            got = trace[1].window(name, queries=queries, keys=keys)
            assert got.shape == expected.shape
            assert torch.allclose(got, expected, atol=1e-6)
            head = trace[1, 1].window(name, queries=queries, keys=keys)
            assert torch.allclose(head, expected[:, 1], atol=1e-6)


def test_negative_numbers_count_from_the_end(gpt2: tuple[Any, Any]) -> None:
    model, tokens = gpt2
    trace = model.trace(tokens)
    n_layers, n_heads = trace.config.n_layers, trace.config.n_heads
    assert torch.equal(trace[-1].z, trace[n_layers - 1].z)
    assert torch.equal(trace[-n_layers, -n_heads].probs, trace[0, 0].probs)
    assert torch.equal(trace[0, -1].product(-2), trace[0, n_heads - 1].product(11))


def test_what_is_kept_is_what_is_computed_when_asked(traced: tuple[Any, Weights]) -> None:
    lazy, _ = traced
    kept = lazy.model.trace(lazy.inputs.as_tokens(None), keep=("scores", "probs"))
    only = lazy.model.trace(lazy.inputs.as_tokens(None), keep=("probs",))
    for name in LAYER_NAMES:
        for layer in range(len(lazy)):
            expected = getattr(lazy[layer], name)
            assert close(getattr(kept[layer], name), expected)
            assert close(getattr(only[layer], name), expected)
    assert close(kept.logits, lazy.logits)
