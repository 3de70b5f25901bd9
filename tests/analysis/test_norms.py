"""Norms of what attention moves, against every vector of width d_model written out in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.analysis.stream import block_norms, head_norms, summed_norms
from minibert.errors import TraceError
from minibert.trace.read import Trace
from tests.circuit_models import (
    FAMILIES,
    ROTARY,
    Array,
    model_pair,
    rotary_pair,
    their_layer,
    their_rotary_layer,
)
from tests.families import Sizes, as_tokens, batch, run_transformers, sizes
from tests.rotary import theirs as rotary

ATOL = 1e-10


def traced(family: str, chosen: Sizes, seed: int) -> tuple[Trace, Any, Any]:
    """A trace, the transformers model, and what that gives for the same batch."""
    theirs, model = model_pair(family, chosen)
    inputs = batch(family, chosen.segments, seed)
    return model.trace(as_tokens(inputs)), theirs, run_transformers(theirs, inputs)


def every_vector(theirs: Any, output: Any, family: str, layer: int, chosen: Sizes) -> Array:
    """α_ij·f(x_j) as (batch, head, query, key, d_model), from transformers' weights and states."""
    weights = their_layer(theirs, family, layer)
    x = output.hidden_states[layer].numpy()
    if family == "gpt2":
        x = theirs.transformer.h[layer].ln_1(output.hidden_states[layer]).detach().numpy()
    B, N, _ = x.shape
    value = (x @ weights["value"][0] + weights["value"][1]).reshape(B, N, chosen.heads, -1)
    per_head = weights["output"][0].reshape(chosen.heads, chosen.d_head, -1)
    moved = np.einsum("bkhd,hdm->bhkm", value, per_head)
    return output.attentions[layer].numpy()[..., None] * moved[:, :, None]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(chosen=sizes, seed=st.integers(0, 2**20), data=st.data())
def test_norms_are_those_of_the_vectors_written_out(
    family: str, chosen: Sizes, seed: int, data: st.DataObject
) -> None:
    trace, theirs, output = traced(family, chosen, seed)
    layer = data.draw(st.integers(0, chosen.layers - 1))
    vectors = every_vector(theirs, output, family, layer, chosen)
    heads = head_norms(trace, layer)
    np.testing.assert_allclose(heads.values, np.linalg.norm(vectors, axis=-1), atol=ATOL)
    probs = trace[layer].probs
    torch.testing.assert_close(heads.values, probs * heads.vectors[:, :, None], atol=ATOL, rtol=0)
    summed = summed_norms(trace, layer)
    expected = np.linalg.norm(vectors.sum(1), axis=-1)
    np.testing.assert_allclose(summed.values, expected, atol=ATOL)
    assert heads.title.endswith(f", layer {layer}")
    assert summed.title.endswith(f", layer {layer}")
    assert heads.tokens == summed.tokens == trace.tokens.strings


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(chosen=sizes, seed=st.integers(0, 2**20), data=st.data())
def test_block_norms_put_every_vector_through_the_norm_of_the_block(
    family: str, chosen: Sizes, seed: int, data: st.DataObject
) -> None:
    trace, theirs, output = traced(family, chosen, seed)
    layer = data.draw(st.integers(0, chosen.layers - 1))
    parts = every_vector(theirs, output, family, layer, chosen).sum(1)
    weights = their_layer(theirs, family, layer)
    x, N = trace[layer].resid_pre.numpy(), trace.allowed.position
    parts[:, range(N), range(N)] += x
    if family != "gpt2":
        total = parts.sum(2) + weights["output"][1]
        deviation = np.sqrt(total.var(-1) + trace.config.norm_eps)
        parts = (parts - parts.mean(-1, keepdims=True)) / deviation[:, :, None, None]
        parts = parts * weights["attention_norm"][0]
    found = block_norms(trace, layer)
    np.testing.assert_allclose(found.values, np.linalg.norm(parts, axis=-1), atol=1e-8)
    stays = parts[:, range(N), range(N)]
    comes = np.linalg.norm(parts.sum(2) - stays, axis=-1)
    expected = comes / (comes + np.linalg.norm(stays, axis=-1))
    np.testing.assert_allclose(found.mixing, expected, atol=1e-8)


@pytest.mark.parametrize("family", ROTARY)
def test_heads_that_share_values_move_them_through_the_norm_of_the_output(family: str) -> None:
    theirs, model = rotary_pair(family)
    inputs = rotary.batch()
    trace, out = model.trace(rotary.as_tokens(inputs)), rotary.run(theirs, inputs)
    weights, x = their_rotary_layer(theirs, 1), out["stream 1"].numpy()
    eps = theirs.config.rms_norm_eps
    read = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weights["attention_norm"]
    value = (read @ weights["value"]).reshape(*x.shape[:2], 4, 8)
    moved = np.einsum("bkhd,hdm->bhkm", value, weights["output"].reshape(4, 8, -1))
    vectors = out["probs 1"].numpy()[..., None] * moved[:, :, None]
    real = inputs["attention_mask"].bool().numpy()
    rows = real[:, :, None] & real[:, None]
    heads = np.moveaxis(np.linalg.norm(vectors, axis=-1), 1, -1)
    found = head_norms(trace, 1).values.movedim(1, -1)
    np.testing.assert_allclose(found[rows], heads[rows], atol=ATOL)
    parts = vectors.sum(1)
    summed = np.linalg.norm(parts, axis=-1)
    np.testing.assert_allclose(summed_norms(trace, 1).values[rows], summed[rows], atol=ATOL)
    if "output_norm" in weights:
        size = np.sqrt((parts.sum(2) ** 2).mean(-1) + eps)
        parts = parts / size[:, :, None, None] * weights["output_norm"]
    diagonal = range(x.shape[1])
    parts[:, diagonal, diagonal] += x
    found = block_norms(trace, 1)
    expected = np.linalg.norm(parts, axis=-1)
    np.testing.assert_allclose(found.values[rows], expected[rows], atol=1e-8)
    stays = parts[:, diagonal, diagonal]
    comes = np.linalg.norm(parts.sum(2) - stays, axis=-1)
    mixing = comes / (comes + np.linalg.norm(stays, axis=-1))
    np.testing.assert_allclose(found.mixing[real], mixing[real], atol=1e-8)


def test_heads_that_cancel_move_nothing_together() -> None:
    _, model = model_pair("bert", Sizes(heads=2, d_head=7))
    attention = model.body.layers[0].attention
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[7:], linear.bias[7:] = linear.weight[:7], linear.bias[:7]
    attention.output.weight[:, 7:] = -attention.output.weight[:, :7]
    trace = model.trace([[3, 5, 7, 11, 13]])
    assert head_norms(trace, 0).values.min() > 1e-4
    assert summed_norms(trace, 0).values.max() < 1e-12


def test_no_tensor_of_query_by_key_by_width_is_made() -> None:
    _, model = model_pair("gpt2", Sizes(layers=1, heads=3, d_head=11), torch.float32)
    trace = model.trace(batch("gpt2")["input_ids"][:1].repeat(1, 2))
    N, width = trace.allowed.position, 33
    largest = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest.append(result.numel())
            return result

    with Watch():
        for norms in (head_norms, summed_norms, block_norms):
            norms(trace, 0)
    assert largest
    assert max(largest) < N * N * width


def test_half_precision_is_measured_in_float32_without_a_graph() -> None:
    _, model = model_pair("bert", dtype=torch.bfloat16)
    model.requires_grad_()
    trace = model.trace([[3, 5, 7]])
    for norms in (head_norms, summed_norms, block_norms):
        found = norms(trace, -1)
        assert found.values.dtype == torch.float32
        assert not found.values.requires_grad
        assert found.title.endswith(", layer 2")


@pytest.mark.parametrize("norms", [head_norms, summed_norms, block_norms])
def test_a_layer_that_is_not_there_is_refused(norms: Any) -> None:
    _, model = model_pair("bert")
    with pytest.raises(TraceError, match="There is no layer 3"):
        norms(model.trace([[3]]), 3)
    with pytest.raises(TraceError, match="Layer 2 was not computed"):
        norms(model.trace([[3]], until=1), 2)
    assert norms(model.trace([[3]], until=1), 1).title.endswith(", layer 1")
