"""The arithmetic view: each step of one weight against NumPy in double precision."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import state
from browser.vector_page import Vectors, some_vectors, vector_page
from playwright.sync_api import Page, expect
from small_traces import other_trace

from minibert.viz import view

pytestmark = pytest.mark.browser
READY = ".sum-view[data-drawn]"
PAIR = "view=arithmetic&layer=1&heads=2&query=4&key=2"
STEPS = {"multiply": "sum", "scale": "score", "mask": "score", "softmax": "weight"}


def value(page: Page, step: str) -> float:
    """What a step comes to."""
    written = page.locator(f".sum-steps [data-step={step}]").get_attribute("data-value") or "nan"
    return float(written.replace("Infinity", "inf"))


def numbers(page: Page, step: str) -> list[float]:
    """The numbers of a step's formulas."""
    found = page.locator(f"[data-step={step}] data")
    return [float(one) for one in found.evaluate_all("all => all.map((one) => one.value)")]


def answer(page: Page) -> float:
    return float(page.locator("[data-name=answer]").get_attribute("value") or "nan")


def table(page: Page, rows: str) -> np.ndarray:
    """The numbers of a table, a row each."""
    found = page.locator(rows).evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((td) => +td.dataset.value))"
    )
    return np.array(found)


def by_numpy(vectors: Vectors, query: int, key: int) -> dict[str, Any]:
    """Every step for layer 1, head 2, of vectors as they are given."""
    parts = (vectors.query, vectors.key, vectors.value)
    q, k, v = (part[1, 2].astype(np.float64) for part in parts)
    products = q[query] * k[key]
    scores = k @ q[query] * vectors.scale
    allowed = scores[: query + 1] if vectors.causal else scores
    exps = np.exp(allowed - allowed.max())
    weights = np.zeros(len(scores))
    weights[: len(exps)] = exps / exps.sum()
    return {
        "q": q[query],
        "k": k[key],
        "products": products,
        "sum": products.sum(),
        "above": products[products > 0].sum(),
        "below": products[products < 0].sum(),
        "score": products.sum() * vectors.scale,
        "scores": scores,
        "largest": allowed.max(),
        "exp": np.exp(scores[key] - allowed.max()) if key < len(exps) else 0.0,
        "denominator": exps.sum(),
        "weights": weights,
        "weight": weights[key],
        "v": v[key],
        "z": weights @ v,
    }


@pytest.mark.parametrize(("causal", "exact"), [(False, True), (True, False)])
def test_every_step_is_what_numpy_computes(open_page, causal, exact):
    vectors = some_vectors(causal=causal)
    page = open_page(vector_page(vectors, exact=(1, 2) if exact else None), PAIR, ready=READY)
    expected = by_numpy(vectors if exact else vectors.rounded, 4, 2)
    for step, name in STEPS.items():
        assert value(page, step) == pytest.approx(expected[name], rel=1e-11), step
    assert answer(page) == pytest.approx(expected["weight"], rel=1e-11)
    assert answer(page) == pytest.approx(vectors.probs(1, 2)[4, 2], abs=1.2e-3)
    softmax = [
        expected[name] for name in ("score", "largest", "exp", "exp", "denominator", "weight")
    ]
    assert numbers(page, "softmax") == pytest.approx(softmax, rel=1e-11)
    page.locator("[data-step=multiply] summary").click()
    page.wait_for_selector("[data-step=multiply] details table")
    columns = [expected["q"], expected["k"], expected["products"]]
    shown = table(page, "[data-step=multiply] details tbody tr")[:, :3]
    np.testing.assert_allclose(shown, np.stack(columns, 1), rtol=1e-12)
    expect(page.locator(".sum-precision")).to_contain_text("Exact" if exact else "Rounded")


def test_a_bar_leads_to_its_weight_and_on_to_the_arithmetic(open_page):
    page = open_page(vector_page(some_vectors(causal=False)), "view=head&layer=1&query=4")
    bars = page.locator(".details .bar:not(.rest)")
    mean = float(bars.nth(1).locator("data").get_attribute("value") or "nan")
    bars.nth(1).get_by_role("button").press("Enter")
    of_heads = [float(bar.get_attribute("value") or "nan") for bar in bars.locator("data").all()]
    assert np.mean(of_heads) == pytest.approx(mean)
    expect(bars.first.get_by_role("button")).to_be_focused()
    page.get_by_role("button", name="Why does it look there?").click()
    page.wait_for_selector(READY)
    chosen = state(page)
    assert (chosen["query"], chosen["heads"]) == ("4", str(np.argmax(of_heads)))
    # The head view's weights are codes, a byte each.
    assert answer(page) == pytest.approx(max(of_heads), abs=4e-3)


def test_a_masked_key_has_no_weight_and_says_why(open_page):
    vectors = some_vectors(causal=True)
    page = open_page(vector_page(vectors), PAIR.replace("key=2", "key=6"), ready=READY)
    expect(page.locator("[data-step=mask]")).to_contain_text("“[SEP]” comes after “rain”: masked")
    assert value(page, "mask") == -np.inf
    said = page.locator("[data-step=mask] data").last.get_attribute("value") or "nan"
    assert float(said) == pytest.approx(by_numpy(vectors.rounded, 4, 6)["score"])
    assert answer(page) == 0
    expect(page.locator(".sum-title")).to_have_text("rain looks at [SEP] with 0\u202f%")
    assert len(table(page, "[data-step=softmax] tbody tr")) == 5


CAPS = {"gemma2": 3.0}


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_it_has_the_steps_of_other_models(open_page, kind):
    trace = other_trace(kind)
    place = "view=arithmetic&layer=2&heads=3&query=8&key=6"
    html = view(trace, exact=True).html
    page = open_page(html, place, ready=".sum-view[data-drawn]")
    at, cap = trace[2, 3], CAPS.get(kind)
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
    assert float(found["2 apart, as here"] or "nan") == pytest.approx(turned, rel=1e-4, abs=1e-4)
    # Where the same two tokens stood next to one another, the product would be this one.
    assert float(found["0 apart"] or "nan") == pytest.approx(unturned, rel=1e-4, abs=1e-4)
