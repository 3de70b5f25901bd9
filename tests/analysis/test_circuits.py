"""QK and OV circuits of one head against full matrices, and against what the model computes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import prune
from vocabulary_models import both

from minibert.analysis.circuits import at_distance, head_weights, ov_circuit, qk_circuit
from minibert.errors import TraceError
from minibert.layers import linear_backends as backends
from tests.circuit_models import (
    FAMILIES,
    ROTARY,
    SIZES,
    centring,
    head_of,
    model_pair,
    rotary_pair,
    their_layer,
    their_rotary_layer,
)
from tests.families import Sizes, batch, sizes
from tests.rotary.classes import LANGUAGE

heads = pytest.mark.parametrize(("layer", "head"), [(0, 0), (2, 1), (-1, -1)])


def layer_input(trace: Any, layer: int) -> torch.Tensor:
    return trace.model.body.layers[layer].attention_input(trace[layer].resid_pre)[0]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(chosen=sizes, data=st.data())
def test_the_factors_are_the_weights_that_transformers_holds(
    family: str, chosen: Sizes, data: st.DataObject
) -> None:
    theirs, model = model_pair(family, chosen)
    layer = data.draw(st.integers(0, chosen.layers - 1))
    head = data.draw(st.integers(0, chosen.heads - 1))
    weights = their_layer(theirs, family, layer)
    query, key, value = (
        head_of(weights[n], head, chosen.d_head) for n in ("query", "key", "value")
    )
    output = weights["output"][0][head * chosen.d_head : (head + 1) * chosen.d_head]
    qk, ov = qk_circuit(model, layer, head), ov_circuit(model, layer, head)
    np.testing.assert_allclose(qk.matrix(), query[0] @ key[0].T, atol=1e-12)
    np.testing.assert_allclose(qk.key_direction, key[0] @ query[1], atol=1e-12)
    np.testing.assert_allclose(qk.query_direction, query[0] @ key[1], atol=1e-12)
    np.testing.assert_allclose(ov.matrix(), value[0] @ output, atol=1e-12)
    np.testing.assert_allclose(ov.bias, value[1] @ output, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@heads
def test_scores_and_moves_are_what_the_model_computes(family: str, layer: int, head: int) -> None:
    _, model = model_pair(family)
    trace = model.trace(batch(family)["input_ids"][:1])
    x = layer_input(trace, layer)
    scores = qk_circuit(model, layer, head).scores(x, x)
    torch.testing.assert_close(scores, trace[layer, head].scores[0], atol=1e-12, rtol=0)
    moved = trace[layer, head].probs[0] @ ov_circuit(model, layer, head).moves(x)
    torch.testing.assert_close(moved, trace[layer, head].head_out[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gemma2", "modernbert"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("fold_norm", [False, True])
def test_of_a_rotary_model_there_is_a_circuit_for_each_distance(
    family: str, layer: int, fold_norm: bool
) -> None:
    _, model, _, tokens = both(family, LANGUAGE[family])
    trace, head = model.trace(tokens[0]), 2
    x, stream = layer_input(trace, layer), trace[layer].resid_pre[0]
    if fold_norm and model.body.layers[layer].attention_norm is not None:
        centred = stream if model.config.norm == "rms" else stream - stream.mean(-1, keepdim=True)
        size = (centred.square().mean(-1, keepdim=True) + model.config.norm_eps).sqrt()
        # Raw and not centred: folded weights take the mean away themselves.
        x = stream / size
    scores = trace[layer, head].scores[0]
    for distance in (-3, 0, 1, 5, 12):
        circuit = qk_circuit(model, layer, head, distance=distance, fold_norm=fold_norm)
        found = circuit.scores(x, x).diagonal(-distance)
        torch.testing.assert_close(found, scores.diagonal(-distance), atol=1e-12, rtol=0)
        assert circuit.distance == distance
    moves = ov_circuit(model, layer, head).moves(layer_input(trace, layer))
    moved = trace[layer, head].probs[0] @ moves
    torch.testing.assert_close(moved, trace[layer, head].head_out[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize("fold_norm", [False, True])
def test_heads_that_share_keys_have_the_weights_that_transformers_holds(
    family: str, fold_norm: bool
) -> None:
    theirs, model = rotary_pair(family)
    weights, head = their_rotary_layer(theirs, 1), 3
    columns = slice(8 * head, 8 * head + 8)
    query, key, value = (weights[n][:, columns] for n in ("query", "key", "value"))
    output = weights["output"][columns]
    if fold_norm:
        scale = np.diag(weights["attention_norm"])
        query, key, value = (scale @ part for part in (query, key, value))
        output = output @ np.diag(weights.get("output_norm", np.ones(24)))
    # At distance 0 nothing is turned.
    qk = qk_circuit(model, 1, head, distance=0, fold_norm=fold_norm)
    np.testing.assert_allclose(qk.matrix(), query @ key.T, atol=1e-12)
    ov = ov_circuit(model, 1, head, fold_norm=fold_norm)
    np.testing.assert_allclose(ov.matrix(), value @ output, atol=1e-12)


def test_a_distance_is_asked_for_where_there_is_rotation_and_refused_elsewhere() -> None:
    _, model = rotary_pair("llama")
    with pytest.raises(TraceError, match=r"one QK circuit for each distance: give distance="):
        qk_circuit(model, 0, 0)
    for wrong in (31, -31, True):
        with pytest.raises(TraceError, match=r"smaller than the 31 positions"):
            at_distance(model, 0, head_weights(model, 0), wrong)
    with pytest.raises(TraceError, match="has no rotary positions"):
        qk_circuit(model_pair("gpt2")[1], 0, 0, distance=1)
    for family in ("olmo2", "qwen3"):
        _, model = rotary_pair(family)
        with pytest.raises(TraceError, match="through a norm, whose divisor differs"):
            qk_circuit(model, 0, 0, distance=1)


@settings(max_examples=8)
@given(chosen=sizes, kind=st.sampled_from([qk_circuit, ov_circuit]))
def test_singular_values_vectors_eigenvalues_and_norm_are_those_of_the_full_matrix(
    chosen: Sizes, kind: Any
) -> None:
    _, model = model_pair("gpt2", chosen)
    circuit = kind(model, 0, 0)
    full = circuit.matrix().numpy()
    found = circuit.singular_vectors()
    expected = np.linalg.svd(full, compute_uv=False)
    np.testing.assert_allclose(found.values, expected[: chosen.d_head], atol=1e-12)
    rebuilt = found.left @ found.values.diag() @ found.right.T
    np.testing.assert_allclose(rebuilt, full, atol=1e-12)
    for vectors in (found.left, found.right):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(chosen.d_head), atol=1e-12)
    np.testing.assert_allclose(circuit.norm(), np.linalg.norm(full), atol=1e-12)
    eigenvalues = circuit.eigenvalues().numpy()
    assert (np.diff(np.abs(eigenvalues)) <= 1e-12).all()
    theirs = np.linalg.eigvals(full)
    for value in eigenvalues:
        assert np.abs(theirs - value).min() < 1e-7
    np.testing.assert_allclose(eigenvalues.sum(), np.trace(full), atol=1e-10)


@heads
def test_folded_weights_read_what_stands_before_the_norms_weight_and_bias(
    layer: int, head: int
) -> None:
    theirs, model = model_pair("gpt2")
    trace = model.trace(batch("gpt2")["input_ids"][:1])
    stream = trace[layer].resid_pre[0]
    deviation = (stream.var(-1, correction=0, keepdim=True) + model.config.norm_eps).sqrt()
    folded = qk_circuit(model, layer, head, fold_norm=True)
    # Raw and not centred: the folded weights take the mean away themselves.
    scores = folded.scores(stream / deviation, stream / deviation)
    torch.testing.assert_close(scores, trace[layer, head].scores[0], atol=1e-12, rtol=0)
    output = their_layer(theirs, "gpt2", layer % 3)["output"][0]
    rows = slice((head % 3) * SIZES.d_head, (head % 3 + 1) * SIZES.d_head)
    written = ov_circuit(model, layer, head, fold_norm=True).right
    np.testing.assert_allclose(written, output[rows] @ centring(15), atol=1e-12)


def test_half_precision_weights_are_read_in_float32() -> None:
    _, model = model_pair("bert", dtype=torch.bfloat16)
    circuit = ov_circuit(model, 1, 2)
    assert circuit.left.dtype == torch.float32
    assert circuit.moves(torch.ones(2, 15, dtype=torch.bfloat16)).dtype == torch.float32
    assert circuit.singular_vectors().values.dtype == torch.float32


def test_what_is_given_out_is_a_copy_and_needs_no_gradient() -> None:
    _, model = model_pair("bert")
    model.requires_grad_()
    ids = batch("bert")["input_ids"]
    before = model(ids)
    weights = head_weights(model, 1)
    for tensor in vars(weights).values():
        assert not tensor.requires_grad
        tensor.fill_(torch.nan)
    assert torch.equal(model(ids), before)


def test_reading_weights_does_not_unpack_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = model_pair("gpt2")
    model.float()
    monkeypatch.setattr(backends, "PACK_FROM", 1)
    backends.use("onednn-packed")
    model.pack()
    backends.use(None)
    assert model.is_packed == (torch.float32 in backends.processor().onednn_dtypes)
    classes = [type(parameter) for parameter in model.parameters()]
    head_weights(model, 0)
    head_weights(model, 0, fold_norm=True)
    assert [type(parameter) for parameter in model.parameters()] == classes


def test_a_pruned_or_replaced_linear_layer_is_read_as_it_acts() -> None:
    _, model = model_pair("bert")
    expected = ov_circuit(model, 0, 1)
    attention = model.body.layers[0].attention
    pruned = prune.custom_from_mask(
        attention.output, "weight", torch.zeros_like(attention.output.weight)
    )
    assert not ov_circuit(model, 0, 1).right.any()
    assert pruned is attention.output
    replaced = torch.nn.Linear(15, 15, bias=False, dtype=torch.float64)
    attention.value = replaced
    circuit = ov_circuit(model, 0, 1)
    assert torch.equal(circuit.left, replaced.weight[5:10].T)
    assert not circuit.value_bias.any()
    assert not torch.equal(circuit.left, expected.left)


class Adapted(torch.nn.Module):
    """A linear layer and an adapter beside it, whose `weight` is the layer's alone."""

    def __init__(self, linear: torch.nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.beside = torch.nn.Linear(15, 15, dtype=torch.float64)

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.beside(x)


def test_an_adapter_beside_a_weight_is_part_of_the_circuit() -> None:
    _, model = model_pair("bert")
    attention = model.body.layers[1].attention
    attention.query, attention.value = Adapted(attention.query), Adapted(attention.value)
    trace = model.trace(batch("bert")["input_ids"][:1])
    x = layer_input(trace, 1)
    scores = qk_circuit(model, 1, 2).scores(x, x)
    torch.testing.assert_close(scores, trace[1, 2].scores[0], atol=1e-12, rtol=0)
    moved = trace[1, 2].probs[0] @ ov_circuit(model, 1, 2).moves(x)
    torch.testing.assert_close(moved, trace[1, 2].head_out[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("circuit", [qk_circuit, ov_circuit])
def test_places_that_do_not_exist_are_refused(circuit: Any) -> None:
    _, model = model_pair("bert")
    with pytest.raises(TraceError, match="There is no layer 3; expected 0 to 2"):
        circuit(model, 3, 0)
    with pytest.raises(TraceError, match="There is no head -4; expected 0 to 2"):
        circuit(model, 0, -4)
    with pytest.raises(TraceError, match="LayerNorm stands behind each layer"):
        circuit(model, 0, 0, fold_norm=True)


def test_broken_weights_have_no_singular_values() -> None:
    _, model = model_pair("gpt2")
    model.body.layers[1].attention.query.weight[7, 0] = torch.nan
    for ask in ("singular_vectors", "eigenvalues"):
        getattr(qk_circuit(model, 1, 0), ask)()
        with pytest.raises(TraceError, match="head 1-1 are not all finite"):
            getattr(qk_circuit(model, 1, 1), ask)()
