"""Circuits on tokens against models that read single tokens, and against vocabulary² matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabulary_models import both

from minibert.analysis.circuits import copying_scores, ov_on_tokens, qk_on_tokens
from minibert.errors import TokenizationError, TraceError
from minibert.loading import from_transformers, load
from minibert.model import Model
from tests.circuit_models import (
    FAMILIES,
    ROTARY,
    SIZES,
    centring,
    head_of,
    model_pair,
    rms_weight,
    rotary_pair,
    their_layer,
    their_rotary_layer,
)
from tests.families import VOCABULARY, Sizes, hf_model, sizes
from tests.rotary.classes import LANGUAGE

IDS, OTHERS = [5, 2, 40, 7, 11], [3, 5, 19]


def without_places(family: str) -> Model:
    """A model in which a token's embedding is all that a position holds."""
    _, model = model_pair(family)
    model.body.position.weight.zero_()
    if getattr(model.body, "segment", None) is not None:
        model.body.segment.weight.zero_()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_token_scores_are_those_of_the_first_layer_where_positions_are_nothing(family: str) -> None:
    model = without_places(family)
    scores = model.trace([IDS])[0, 1].scores[0]
    table = qk_on_tokens(model, 0, 1, queries=torch.tensor(IDS), keys=IDS)
    torch.testing.assert_close(table.values, scores, atol=1e-12, rtol=0)
    some = qk_on_tokens(model, 0, 1, queries=IDS[:2], keys=IDS[1:4])
    torch.testing.assert_close(some.values, scores[:2, 1:4], atol=1e-12, rtol=0)
    assert some.labels["query"] == ("5", "2")
    assert some.labels["key"] == ("2", "40", "7")


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gemma2", "modernbert"])
def test_of_a_rotary_model_token_scores_are_those_at_their_distance(family: str) -> None:
    _, model, _, _ = both(family, LANGUAGE[family])
    scores = model.trace([IDS])[0, 1].scores[0]
    for distance in (-2, 0, 3):
        table = qk_on_tokens(model, 0, 1, queries=IDS, keys=IDS, distance=distance).values
        torch.testing.assert_close(
            table.diagonal(-distance), scores.diagonal(-distance), atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("family", ROTARY)
def test_what_a_rotary_head_moves_passes_the_norms_behind_it(family: str) -> None:
    theirs, model = rotary_pair(family)
    weights, head = their_rotary_layer(theirs, 0), slice(16, 24)
    # A token that stands alone is looked at alone.
    moved = model.trace([[11]])[0, 2].head_out[0, 0].numpy()
    moved = moved * weights.get("output_norm", 1.0)
    final = rms_weight(theirs, theirs.model.norm)
    decoder = theirs.lm_head.weight.detach().numpy()
    table = ov_on_tokens(model, 0, 2, sources=[11], targets=OTHERS)
    np.testing.assert_allclose(table.values[0], (moved * final) @ decoder[OTHERS].T, atol=1e-12)
    embed = model.body.word.weight.numpy() * (24**0.5 if family == "gemma2" else 1.0)
    full = embed @ np.diag(weights["attention_norm"]) @ weights["value"][:, head]
    full = full @ weights["output"][head] * weights.get("output_norm", 1.0) * final @ decoder.T
    found = copying_scores(model, fold_norm=True)
    np.testing.assert_allclose(found.eigenvalues[0, 2].sum(), np.trace(full), atol=1e-8)


@pytest.mark.parametrize("layer", [0, 2])
def test_what_a_gpt2_head_moves_is_read_by_the_last_norm_and_the_decoder(layer: int) -> None:
    theirs, model = model_pair("gpt2")
    # A token that stands alone is looked at alone.
    expected = []
    for source in IDS:
        row = model.body.word.weight[source]
        block = model.body.layers[layer]
        x = block.attention_norm(row)[None, None]
        value = block.attention.project("value", x)
        moved = block.attention.head_out(value)[0, 1, 0].numpy()
        norm = theirs.transformer.ln_f.weight.detach().numpy()
        decoder = theirs.lm_head.weight.detach().numpy()
        expected.append(((moved - moved.mean()) * norm) @ decoder[OTHERS].T)
    table = ov_on_tokens(model, layer, 1, sources=IDS, targets=OTHERS)
    np.testing.assert_allclose(table.values, expected, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_what_a_bert_head_moves_is_read_by_the_decoder_or_the_embedding(family: str) -> None:
    model = without_places(family)
    # A token that stands alone is looked at alone.
    moved = model.trace([[11]])[0, 2].head_out[0]
    rows = model.head.decoder.weight if family == "bert" else model.body.word.weight
    table = ov_on_tokens(model, 0, 2, sources=[11], targets=OTHERS)
    torch.testing.assert_close(table.values, moved @ rows[OTHERS].T, atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@settings(max_examples=4)
@given(chosen=sizes, data=st.data())
def test_copying_scores_come_from_the_eigenvalues_of_the_full_circuit(
    family: str, chosen: Sizes, data: st.DataObject
) -> None:
    theirs, model = model_pair(family, chosen)
    fold = family == "gpt2" and data.draw(st.booleans())
    layer = data.draw(st.integers(0, chosen.layers - 1))
    head = data.draw(st.integers(0, chosen.heads - 1))
    weights, d = their_layer(theirs, family, layer), chosen.d_head
    value = head_of(weights["value"], head, d)[0]
    output = weights["output"][0][head * d : (head + 1) * d]
    embed = theirs.get_input_embeddings().weight.detach().numpy()
    unembed = theirs.get_output_embeddings().weight.detach().numpy()
    if fold:
        centre = centring(chosen.heads * d)
        value = centre @ np.diag(weights["attention_norm"][0]) @ value
        final = np.diag(theirs.transformer.ln_f.weight.detach().numpy())
        output = output @ centre @ final
    full = embed @ value @ output @ unembed.T
    found = copying_scores(model, fold_norm=fold)
    eigenvalues = np.linalg.eigvals(full)
    expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
    np.testing.assert_allclose(found.values[layer, head], expected, atol=1e-6)
    np.testing.assert_allclose(found.eigenvalues[layer, head].sum(), np.trace(full), atol=1e-8)
    assert found.eigenvalues.shape == (chosen.layers, chosen.heads, d)


def test_a_head_that_writes_what_it_reads_copies_and_its_opposite_does_not() -> None:
    _, model = model_pair("gpt2")
    attention = model.body.layers[1].attention
    for head, sign in ((0, 1.0), (1, -1.0), (2, 0.0)):
        rows = slice(5 * head, 5 * head + 5)
        attention.output.weight[:, rows] = sign * attention.value.weight[rows].T
    model.head.decoder.weight = model.body.word.weight
    scores = copying_scores(model).values[1]
    torch.testing.assert_close(scores, torch.tensor([1.0, -1.0, 0.0], dtype=scores.dtype))


def test_tokens_are_named_by_the_tokenizer() -> None:
    model = load()
    ids = model.tokenizer.encode("autumn leaves")
    table = qk_on_tokens(model, 1, 3, queries=ids, keys=ids[:1])
    assert table.labels["query"] == tuple(model.tokenizer.string(i) for i in ids)
    assert table.values.shape == (len(ids), 1)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([VOCABULARY], "Token id 41 is outside the vocabulary"),
        ([3, -1], "Token id -1 is outside the vocabulary"),
        ([], "expected a row of at least"),
    ],
)
def test_ids_that_no_token_has_are_refused(ids: Any, message: str) -> None:
    _, model = model_pair("gpt2")
    with pytest.raises(TokenizationError, match=message):
        qk_on_tokens(model, 0, 0, queries=[1], keys=ids)
    with pytest.raises(TokenizationError, match=message):
        ov_on_tokens(model, 0, 0, sources=ids, targets=[1])


def test_places_models_and_weights_that_do_not_fit_are_refused() -> None:
    _, model = model_pair("gpt2")
    with pytest.raises(TraceError, match="There is no head 3"):
        qk_on_tokens(model, 0, 3, queries=[1], keys=[1])
    narrow = from_transformers(hf_model("electra", "ElectraForMaskedLM", SIZES))
    for ask in (
        lambda: copying_scores(narrow),
        lambda: ov_on_tokens(narrow, 0, 0, sources=[1], targets=[1]),
    ):
        with pytest.raises(TraceError, match="11 wide and its stream 15"):
            ask()
    with pytest.raises(TraceError, match="LayerNorm stands behind each layer"):
        copying_scores(model_pair("bert")[1], fold_norm=True)
    model.body.layers[2].attention.value.weight[0, 0] = torch.inf
    with pytest.raises(TraceError, match="layer 2 or the embeddings are not all finite"):
        copying_scores(model)


def test_rows_and_columns_may_be_tensors_of_different_lengths() -> None:
    _, model = model_pair("gpt2")
    queries, keys = torch.tensor(IDS), torch.tensor(OTHERS, dtype=torch.int32)
    table = qk_on_tokens(model, 1, 0, queries=queries, keys=keys)
    expected = qk_on_tokens(model, 1, 0, queries=IDS, keys=OTHERS).values
    assert torch.equal(table.values, expected)
    assert table.values.shape == (5, 3)
