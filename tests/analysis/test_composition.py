"""Composition of heads: against full matrices, the model's own scores and TransformerLens."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabulary_models import both

from minibert.analysis import composition_scores
from minibert.analysis.composition import COMPOSITIONS, head_weights
from minibert.errors import MinibertError
from minibert.model import Model
from tests.circuit_models import FAMILIES, ROTARY, SIZES, Array, Weights, model_pair, their_layer
from tests.families import Sizes, batch, sizes
from tests.rotary.classes import LANGUAGE

every_family = pytest.mark.parametrize("family", [*FAMILIES, *ROTARY])


def layers_of(theirs: Any, family: str) -> list[Weights]:
    count = theirs.config.num_hidden_layers
    return [their_layer(theirs, family, layer) for layer in range(count)]


def ours(family: str, chosen: Sizes = SIZES) -> Model:
    return model_pair(family, chosen)[1]


def same(found: Any, expected: Any, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, expected, atol=atol)


# Rotary families whose queries and keys have no bias.
@pytest.mark.parametrize("family", ["llama", "gemma2", "modernbert"])
def test_the_weights_give_the_score_of_a_token_with_itself(family: str) -> None:
    _, model, _, tokens = both(family, LANGUAGE[family])
    trace, layer = model.trace(tokens[0]), 1
    x = model.body.layers[layer].attention_input(trace[layer].resid_pre)[0]
    weights = head_weights(model, layer)
    query, key = x @ weights.query, x @ weights.key
    scores = model.config.attention_scale(layer) * query @ key.mT
    # Both are turned alike there.
    same(scores.diagonal(0, -2, -1), trace[layer].scores[0].diagonal(0, -2, -1))


def full_scores(layers: list[Weights], kind: str, fold: str) -> Array:
    """Every score from d_model x d_model matrices. `fold` is "before", "behind" or nothing."""
    W = [each.folded() if fold == "before" else each.W for each in layers]
    size = (len(layers), len(W[0]["query"]))
    scores = np.zeros(size + size)
    for a, h, b, g in np.ndindex(*scores.shape):
        if a >= b:
            continue
        write = W[a]["value"][h] @ W[a]["output"][h]
        for between in layers[a:b] if fold == "behind" else ():
            for name in ("attention_norm", "mlp_norm"):
                write = write @ between.centre @ np.diag(between.norms[name])
        query, key, value, output = (W[b][n][g] for n in ("query", "key", "value", "output"))
        read = {"Q": query @ key.T, "K": key @ query.T, "V": value @ output}[kind]
        norms = np.linalg.norm(write) * np.linalg.norm(read)
        scores[a, h, b, g] = np.linalg.norm(write @ read) / norms
    return scores


@every_family
@settings(max_examples=4)
@given(chosen=sizes, kind=st.sampled_from(COMPOSITIONS), fold_norm=st.booleans())
def test_every_pair_scores_what_full_matrices_give(
    family: str, chosen: Sizes, kind: str, fold_norm: bool
) -> None:
    theirs, model = model_pair(family, chosen)
    fold = ("before" if model.config.pre_norm else "behind") if fold_norm else ""
    found = composition_scores(model, kind, fold_norm=fold_norm)
    same(found.values, full_scores(layers_of(theirs, family), kind, fold))
    assert found.title == f"{kind}-composition"


def test_pairs_are_read_by_name_and_the_best_come_first() -> None:
    found = composition_scores(ours("gpt2"), "Q")
    ranking = found.largest(27)
    assert [score for *_, score in ranking] == sorted((s for *_, s in ranking), reverse=True)
    *place, score = ranking[0]
    assert found.values[tuple(place)].item() == score == found.values.max().item()
    alone = composition_scores(ours("gpt2", Sizes(layers=1)), "K")
    with pytest.raises(MinibertError, match="one layer has no head that reads another"):
        alone.plot()


def test_a_head_whose_matrix_is_zero_scores_zero_and_a_broken_one_nan() -> None:
    _, model = model_pair("gpt2")
    value = model.body.layers[0].attention.value.weight
    value[:5], value[7, 3] = 0, torch.nan
    found = composition_scores(model, "V")
    assert not found.values[0, 0].any()
    assert found.values[0, 1, 1:].isnan().all()
    assert found.values[0, 2, 1:].gt(0).all()


def test_what_is_given_out_is_a_copy_in_float32_at_least_and_needs_no_gradient() -> None:
    _, model = model_pair("bert", dtype=torch.bfloat16)
    model.requires_grad_()
    ids = batch("bert")["input_ids"]
    before = model(ids)
    for tensor in vars(head_weights(model, 1)).values():
        assert (tensor.dtype, tensor.requires_grad) == (torch.float32, False)
        tensor.fill_(torch.nan)
    assert torch.equal(model(ids), before)


REFUSED: dict[str, Any] = {
    "whose divisor differs": lambda: composition_scores(ours("olmo2"), "K"),
    "kind='q'.*: expected one of 'Q', 'K', 'V'": lambda: composition_scores(ours("bert"), "q"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_exist_or_fit_is_refused(words: str) -> None:
    with pytest.raises(MinibertError, match=words):
        REFUSED[words]()
