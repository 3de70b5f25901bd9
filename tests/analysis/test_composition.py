"""Composition scores of all pairs against full matrices, planted heads and TransformerLens."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_heads import planted_gpt2

from minibert.analysis.circuits import COMPOSITIONS, CompositionScores, composition_scores
from minibert.errors import TraceError
from minibert.loading import from_transformers
from tests.circuit_models import (
    FAMILIES,
    ROTARY,
    SIZES,
    Array,
    centring,
    head_of,
    model_pair,
    rotary_pair,
    their_layer,
    their_rotary_layer,
)
from tests.families import Sizes, hf_model, sizes


def full_scores(
    layers: list[dict[str, tuple[Array, Array]]], kind: str, chosen: Sizes, *, fold: str = ""
) -> Array:
    """Every score from d_model x d_model matrices. `fold` is "before", "behind" or nothing."""
    d, size = chosen.d_head, (chosen.layers, chosen.heads)
    centre = centring(d * chosen.heads)

    def matrices(layer: int, head: int) -> tuple[Array, Array]:
        weights = layers[layer]
        query, key, value = (head_of(weights[n], head, d)[0] for n in ("query", "key", "value"))
        output = weights["output"][0][head * d : (head + 1) * d]
        if fold == "before":
            norm = centre @ np.diag(weights["attention_norm"][0])
            query, key, value = (norm @ part for part in (query, key, value))
            output = output @ centre
        qk = query @ key.T
        ov = value @ output
        return ov, {"Q": qk, "K": qk.T, "V": ov}[kind]

    scores = np.zeros(size + size)
    for a, h, b, g in np.ndindex(*scores.shape):
        if a < b:
            write, read = matrices(a, h)[0], matrices(b, g)[1]
            for layer in range(a, b) if fold == "behind" else ():
                for name in ("attention_norm", "mlp_norm"):
                    write = write @ centre @ np.diag(layers[layer][name][0])
            norms = np.linalg.norm(write) * np.linalg.norm(read)
            scores[a, h, b, g] = np.linalg.norm(write @ read) / norms
    return scores


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(chosen=sizes, kind=st.sampled_from(COMPOSITIONS), fold_norm=st.booleans())
def test_every_pair_scores_what_full_matrices_give(
    family: str, chosen: Sizes, kind: str, fold_norm: bool
) -> None:
    theirs, model = model_pair(family, chosen)
    layers = [their_layer(theirs, family, layer) for layer in range(chosen.layers)]
    fold = ("before" if family == "gpt2" else "behind") if fold_norm else ""
    expected = full_scores(layers, kind, chosen, fold=fold)
    found = composition_scores(model, kind, fold_norm=fold_norm)
    np.testing.assert_allclose(found.values, expected, atol=1e-12)
    assert found.title == f"{kind}-composition"


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize("kind", COMPOSITIONS)
@pytest.mark.parametrize("fold_norm", [False, True])
def test_heads_that_share_keys_score_what_full_matrices_give(
    family: str, kind: str, fold_norm: bool
) -> None:
    theirs, model = rotary_pair(family)
    # RMSNorm takes no mean away: its weight is all that is folded.
    one, two = (their_rotary_layer(theirs, layer) for layer in (0, 1))
    norm, behind = (
        (np.diag(two["attention_norm"]), np.diag(one.get("output_norm", np.ones(24))))
        if fold_norm
        else (np.eye(24), np.eye(24))
    )
    first = np.diag(one["attention_norm"]) if fold_norm else np.eye(24)
    last = np.diag(two.get("output_norm", np.ones(24))) if fold_norm else np.eye(24)
    distance = None if kind == "V" else 0
    found = composition_scores(model, kind, fold_norm=fold_norm, distance=distance)
    for a, b in np.ndindex(4, 4):
        mine, yours = slice(8 * a, 8 * a + 8), slice(8 * b, 8 * b + 8)
        write = first @ one["value"][:, mine] @ one["output"][mine] @ behind
        query, key, value = (norm @ two[name][:, yours] for name in ("query", "key", "value"))
        qk = query @ key.T
        read = {"Q": qk, "K": qk.T, "V": value @ two["output"][yours] @ last}[kind]
        expected = np.linalg.norm(write @ read) / np.linalg.norm(write) / np.linalg.norm(read)
        np.testing.assert_allclose(found.values[0, a, 1, b], expected, atol=1e-12)


def test_what_positions_turn_needs_a_distance_and_values_have_none() -> None:
    _, model = rotary_pair("llama")
    far = composition_scores(model, "Q", distance=5).values
    assert not torch.allclose(far, composition_scores(model, "Q", distance=0).values)
    with pytest.raises(TraceError, match="give distance="):
        composition_scores(model, "K")
    with pytest.raises(TraceError, match="V-composition is about values"):
        composition_scores(model, "V", distance=1)


def test_the_planted_induction_head_reads_the_previous_token_head_in_its_keys_alone() -> None:
    model = planted_gpt2()
    keys = composition_scores(model, "K")
    (earlier, later, score), *others = keys.best(4)
    assert (earlier, later) == ((0, 0), (1, 1))
    assert score > 0.05
    assert all(other == 0 for _, _, other in others)
    for kind in ("Q", "V"):
        assert not composition_scores(model, kind).values.any()
    (earlier, later, score), (_, _, second), *_ = composition_scores(
        model, "K", fold_norm=True
    ).best(2)
    assert (earlier, later) == ((0, 0), (1, 1))
    assert score > 3 * second


@pytest.mark.parametrize("processed", [False, True])
def test_scores_are_those_of_transformer_lens(processed: bool, tmp_path: Path) -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    theirs = hf_model("gpt2", "GPT2LMHeadModel", SIZES)
    model = from_transformers(theirs)
    found = {kind: composition_scores(model, kind, fold_norm=processed) for kind in COMPOSITIONS}
    theirs.save_pretrained(tmp_path)
    bridge = bridges.TransformerBridge.boot_transformers(
        str(tmp_path), hf_model=theirs, device="cpu"
    )
    if processed:
        # Folds and centres as HookedTransformer.from_pretrained does, in their weights.
        bridge.enable_compatibility_mode()
    for kind in COMPOSITIONS:
        expected = bridge.all_composition_scores(kind).values.detach()
        torch.testing.assert_close(found[kind].values, expected, atol=1e-6, rtol=0)


def small_scores() -> CompositionScores:
    return composition_scores(model_pair("gpt2")[1], "Q")


def test_one_pair_is_read_by_name_and_the_best_come_first() -> None:
    found = small_scores()
    assert found.between((0, 1), (2, -1)) == found.values[0, 1, 2, 2].item()
    ranking = found.best(1000)
    assert len(ranking) == 3 * 9
    assert [score for *_, score in ranking] == sorted((s for *_, s in ranking), reverse=True)
    earlier, later, score = ranking[0]
    assert found.values[earlier][later].item() == score == found.values.max().item()
    assert found.largest(1) == [(*earlier, *later, score)]
    first = f"{earlier[0]}-{earlier[1]}, {later[0]}-{later[1]}"
    assert str(found).splitlines()[1].split() == [*first.split(), f"{score:+.3f}"]


@pytest.mark.parametrize("later", [(1, 0), (0, 2)])
def test_a_pair_in_the_wrong_order_is_refused(later: tuple[int, int]) -> None:
    with pytest.raises(TraceError, match="expected the head of the earlier layer first"):
        small_scores().between((1, 2), later)


def test_heads_and_kinds_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TraceError, match="There is no head 3; expected 0 to 2"):
        small_scores().between((0, 3), (1, 0))
    with pytest.raises(TraceError, match="kind='q': expected one of 'Q', 'K', 'V'"):
        composition_scores(model_pair("bert")[1], "q")
    with pytest.raises(TraceError, match="count=0: expected a whole number from 1"):
        small_scores().best(0)


def test_a_model_of_one_layer_has_no_pair() -> None:
    found = composition_scores(model_pair("gpt2", Sizes(layers=1))[1], "K")
    assert not found.best()
    with pytest.raises(TraceError, match="one layer has no head that reads another"):
        found.plot()


def test_a_head_whose_matrix_is_zero_scores_zero_and_a_broken_one_nan() -> None:
    _, model = model_pair("gpt2")
    attention = model.body.layers[0].attention
    attention.value.weight[:5] = 0
    attention.value.weight[7, 3] = torch.nan
    found = composition_scores(model, "V")
    assert not found.values[0, 0].any()
    assert found.values[0, 1, 1:].isnan().all()
    assert found.values[0, 2, 1:].gt(0).all()
    assert found.best()[0][2] > 0
