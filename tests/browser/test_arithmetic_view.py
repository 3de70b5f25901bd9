"""The arithmetic view: each step of one weight against NumPy in double precision."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import Open, state
from browser.vector_page import WIDTH, Vectors, some_vectors, vector_page
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
READY = ".sum-view[data-drawn]"
PAIR = "view=arithmetic&layer=1&heads=2&query=4&key=2"
STEPS = ("sum", "above", "below", "score", "largest", "exp", "denominator", "weight")


def number(page: Page, name: str) -> float:
    written = page.locator(f".sum-view [data-name={name}]").first.get_attribute("value") or "nan"
    return float(written.replace("Infinity", "inf"))


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
def test_every_step_is_what_numpy_computes(open_page: Open, causal: bool, exact: bool) -> None:
    vectors = some_vectors(causal=causal)
    page = open_page(vector_page(vectors, exact=(1, 2) if exact else None), PAIR, ready=READY)
    expected = by_numpy(vectors if exact else vectors.rounded, 4, 2)
    for name in STEPS:
        assert number(page, name) == pytest.approx(expected[name], rel=1e-11), name
    assert number(page, "answer") == pytest.approx(expected["weight"], rel=1e-11)
    assert number(page, "answer") == pytest.approx(vectors.probs(1, 2)[4, 2], abs=1.2e-3)
    products = table(page, "[data-table=products] tbody tr")
    columns = [expected["q"], expected["k"], expected["products"]]
    np.testing.assert_allclose(products, np.stack(columns, 1), rtol=1e-12)
    expect(page.locator(".sum-precision")).to_contain_text("Exact" if exact else "Rounded")


def test_a_page_in_bytes_says_how_far_its_numbers_are_off(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors, in_bytes=True), PAIR, ready=READY)
    expected = by_numpy(vectors.in_bytes, 4, 2)
    for name in ("sum", "score", "denominator", "weight"):
        assert number(page, name) == pytest.approx(expected[name], rel=1e-11), name
    said = page.locator(".sum-precision").inner_text()
    bound = float(said.split("within ")[1].split(" ")[0])
    for part, name in ((vectors.query[1, 2][4], "q"), (vectors.key[1, 2][2], "k")):
        assert np.abs(part - expected[name]).max() <= bound
    largest = max(np.abs(vectors.query[1, 2]).max(), np.abs(vectors.key[1, 2]).max())
    assert bound <= 1.1 * largest / 200


def test_a_masked_key_has_no_weight_and_says_why(open_page: Open) -> None:
    vectors = some_vectors(causal=True)
    page = open_page(vector_page(vectors), PAIR.replace("key=2", "key=6"), ready=READY)
    expect(page.locator("[data-step=mask]")).to_contain_text("[SEP] comes after rain: masked")
    assert number(page, "masked-score") == -np.inf
    assert number(page, "unmasked") == pytest.approx(by_numpy(vectors.rounded, 4, 6)["score"])
    assert number(page, "answer") == 0
    expect(page.locator(".sum-title")).to_have_text("rain looks at [SEP] with 0\u202f%")
    expect(page.locator(".sum-tokens.key .masked")).to_have_count(2)


def test_tables_have_every_key_the_values_and_the_products_by_size(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors), PAIR, ready=READY)
    expected = by_numpy(vectors.rounded, 4, 2)
    shifted = expected["scores"] - expected["largest"]
    columns = [expected["scores"], shifted, np.exp(shifted), expected["weights"]]
    shown = table(page, ".sum-softmax tbody tr")
    np.testing.assert_allclose(shown, np.stack(columns, 1), rtol=1e-9, atol=1e-12)
    expect(page.locator(".sum-softmax tr.chosen")).to_have_attribute("data-key", "2")
    expect(page.locator("[data-step=mask]")).to_contain_text("No key is masked")
    text = page.locator("[data-step=scale] [data-name=score]").inner_text()
    assert text.replace("−", "-") == f"{expected['score']:.3f}"
    page.locator("[data-step=value] summary").click()
    page.wait_for_selector("[data-table=values]")
    columns = [expected["v"], expected["weight"] * expected["v"], expected["z"]]
    shown = table(page, "[data-table=values] tbody tr")
    np.testing.assert_allclose(shown, np.stack(columns, 1), rtol=1e-9)
    canvas = page.locator("[data-step=multiply] canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 7.5 / WIDTH, box["y"] + 60)
    expect(page.locator("[data-step=multiply] .sum-readout")).to_contain_text("Dimension 7")
    products = expected["products"]
    assert number(page, "product") == pytest.approx(products[7], rel=1e-12)
    page.get_by_role("button", name="By size").click()
    assert state(page)["order"] == "size"
    shown = table(page, "[data-table=products] tbody tr")[:, 2]
    np.testing.assert_allclose(np.abs(shown), np.sort(np.abs(products))[::-1], rtol=1e-12)
    page = open_page(vector_page(vectors, values=False), PAIR, ready=READY)
    expect(page.locator("[data-step=value]")).to_contain_text("made without values")


def test_tokens_are_chosen_by_click_and_by_arrow(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors), "view=arithmetic", ready=READY)
    strongest = int(vectors.probs(0, 0)[5].argmax())
    expect(page.locator(".sum-tokens.query .chosen")).to_have_attribute("data-index", "5")
    expect(page.locator(".sum-tokens.key .chosen")).to_have_attribute("data-index", str(strongest))
    page.locator(".sum-tokens.query .token").nth(1).click()
    page.locator(".sum-tokens.key .token").nth(4).click()
    assert (state(page)["query"], state(page)["key"]) == ("1", "4")
    expect(page.locator(".sum-title")).to_contain_text("straw looks at rain")
    page.keyboard.press("ArrowRight")
    assert state(page)["key"] == "5"
    expect(page.locator(".sum-tokens.key .token").nth(5)).to_be_focused()
    html = vector_page(some_vectors(900, heads=1), tuple(f"##t{i}" for i in range(900)))
    page = open_page(html, "view=arithmetic&query=450", ready=READY)
    page.locator(".sum-tokens.query .jump").last.click()
    assert int(state(page)["query"]) > 500
