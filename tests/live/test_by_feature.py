"""Scores that a page splits by features are those that `trace.why(features=)` splits."""

from dataclasses import replace

import pytest
import torch
from live.engines import opened

import minibert
from minibert.checkpoint.dictionary import Spot
from minibert.errors import MinibertError
from minibert.features import Features
from minibert.viz.live import live_page
from minibert.viz.serve.engine import Engine

TEXT = "The horse pulled the cart up the hill."


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("point", ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"])
def test_the_pairs_by_feature_are_those_of_python(point, served):
    """tiny-gpt2's own features, and drawn ones of every place, with thresholds or centred."""
    model, own = minibert.load("tiny-gpt2"), minibert.features.load("tiny-gpt2")
    place, dictionary = Spot(point, 0), replace(own.dictionary, centres=True, model_weights="")
    if point != "resid_pre":
        jumps = {"activation": "jumprelu", "threshold": torch.rand(1024), "subtracts": False}
        dictionary = replace(dictionary, centres=False, b_dec=torch.randn(128), **jumps)
    drawn = own if point == "resid_post" else Features(dictionary, place, place)
    texts, asked = [TEXT], {"layer": 2, "head": 1, "query": 6, "key": 3}
    expected = model.trace(TEXT).why(**asked, features=drawn, strongest=1024)
    with opened(model, drawn, served=served) as engine:
        given = {"texts": texts, "edits": []}
        found = engine.answer("why", request=given, asked=asked, features=True)
    theirs = {(query, key): score for query, key, score in found["pairs"]}
    limit = 1e-3 * float(expected.values.abs().max())
    parts = {(a, b): v for a, b, v in expected.top(expected.values.numel()) if abs(v) > limit}
    assert any("feature 0-" in a or "feature 1-" in a for a, _ in parts)
    assert all(abs(theirs[pair] - value) <= limit for pair, value in parts.items())
    assert sum(theirs.values()) == pytest.approx(expected.score, abs=limit)


@pytest.mark.parametrize("changes", [{"activation": "gated"}, {"normalizes": "layer_norm"}])
def test_features_that_a_file_does_not_compute_are_refused(changes):
    own = minibert.features.load("tiny-gpt2")
    other = replace(own, dictionary=replace(own.dictionary, **changes))
    with pytest.raises(MinibertError, match="left to `minibert serve`"):
        live_page(minibert.load("tiny-gpt2"), features=other)


def test_features_of_another_model_are_refused_by_every_page():
    features, model = minibert.features.load("tiny-gpt2"), minibert.load("tiny-llama")
    pages = (
        lambda: live_page(model, features=features),
        lambda: Engine(model, features),
        lambda: model.trace("the horse").view(features=features),
    )
    for page in pages:
        with pytest.raises(MinibertError, match="of another model: the weights of tiny-llama"):
            page()
    for page in (model.live, model.trace("the horse").view):
        with pytest.raises(MinibertError, match="expected what minibert"):
            page(features="tiny-gpt2")
