"""Pages of grouped, rotary, windowed and capped models in a browser: the numbers that they show."""

import numpy as np
import pytest
from browser.head_view import Open
from browser.test_arithmetic_view import answer, value
from browser.test_neuron_view import numbers
from playwright.sync_api import expect
from small_traces import other_trace

from minibert.trace.read import Trace
from minibert.viz import view

pytestmark = pytest.mark.browser
NEURON = ".neuron-view[data-drawn]"
CAPS = {"gemma2": 3.0}


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return other_trace(request.param)


def test_the_neuron_view_shows_the_models_scores_and_weights(open_page: Open, trace: Trace) -> None:
    kind = trace.config.family
    page = open_page(view(trace).html, "view=neuron&layer=1&heads=3&query=8", ready=NEURON)
    for layer in (1, 2):
        scores, probs = (
            getattr(trace[layer, 3], name)[0, 8].numpy() for name in ("scores", "probs")
        )
        seen = probs > 0
        found = numbers(page, "score")
        np.testing.assert_array_equal(np.isfinite(found), seen)
        np.testing.assert_allclose(found[seen], scores[seen], rtol=2e-2, atol=2e-2)
        # The weights are the softmax of the scores that stand beside them.
        cap = CAPS.get(kind)
        capped = cap * np.tanh(found / cap) if cap else found
        exps = np.where(seen, np.exp(capped - capped[seen].max()), 0)
        np.testing.assert_allclose(numbers(page, "weight"), exps / exps.sum(), rtol=1e-12)
        np.testing.assert_allclose(numbers(page, "weight"), probs, atol=1.2e-3)
        if layer == 1:
            note = page.locator(".neuron-note")
            shares = {"llama": "Heads 2 and 3 share key-value head 1.", "gemma2": "All 4 heads"}
            expect(note).to_contain_text(shares[kind])
            expect(note).to_contain_text("after rotation")
            page.get_by_label("Next layer").click()
            expect(page.locator(".neuron-view")).to_have_attribute("data-layer", "2")


def test_arithmetic_has_the_steps_of_the_model(open_page: Open, trace: Trace) -> None:
    place = "view=arithmetic&layer=2&heads=3&query=8&key=6"
    html = view(trace, exact=True).html
    page = open_page(html, place, ready=".sum-view[data-drawn]")
    at, cap = trace[2, 3], CAPS.get(trace.config.family)
    score = float(at.scores[0, 8, 6])
    assert value(page, "scale") == pytest.approx(score, rel=1e-4)
    steps = page.locator(".sum-step").evaluate_all("all => all.map(s => s.dataset.step)")
    assert ("cap" in steps) == (cap is not None)
    if cap:
        assert value(page, "cap") == pytest.approx(cap * np.tanh(score / cap), rel=1e-4)
    assert answer(page) == pytest.approx(float(at.probs[0, 8, 6]), rel=1e-4)
    unturned = float((at.query_unrotated[0, 8] * at.key_unrotated[0, 6]).sum())
    turned = float((at.query[0, 8] * at.key[0, 6]).sum())
    assert value(page, "turn") == pytest.approx(turned, rel=1e-4, abs=1e-4)
    lines = page.locator("[data-step=turn] .sum-formula").all()
    found = {
        line.inner_text().split(":")[0]: line.locator("data").get_attribute("value")
        for line in lines
    }
    assert float(found["not turned"] or "nan") == pytest.approx(unturned, rel=1e-4, abs=1e-4)
    assert float(found["2 apart, as here"] or "nan") == pytest.approx(turned, rel=1e-4, abs=1e-4)
    # Where the same two tokens stood next to one another, the product would be this one.
    assert float(found["0 apart"] or "nan") == pytest.approx(unturned, rel=1e-4, abs=1e-4)
