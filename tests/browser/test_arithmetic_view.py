"""The arithmetic view: each step of one weight against NumPy in double precision."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import Open, state
from browser.vector_page import Vectors, some_vectors, vector_page
from playwright.sync_api import Page, expect

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
def test_every_step_is_what_numpy_computes(open_page: Open, causal: bool, exact: bool) -> None:
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


def test_a_page_in_bytes_says_how_far_its_numbers_are_off(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors, in_bytes=True), PAIR, ready=READY)
    expected = by_numpy(vectors.in_bytes, 4, 2)
    for step, name in STEPS.items():
        assert value(page, step) == pytest.approx(expected[name], rel=1e-11), step
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
    assert value(page, "mask") == -np.inf
    said = page.locator("[data-step=mask] data").last.get_attribute("value") or "nan"
    assert float(said) == pytest.approx(by_numpy(vectors.rounded, 4, 6)["score"])
    assert answer(page) == 0
    expect(page.locator(".sum-title")).to_have_text("rain looks at [SEP] with 0\u202f%")
    assert len(table(page, "[data-step=softmax] tbody tr")) == 5


def test_tables_have_every_key_and_the_values(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors), PAIR, ready=READY)
    expected = by_numpy(vectors.rounded, 4, 2)
    shifted = expected["scores"] - expected["largest"]
    columns = [expected["scores"], shifted, np.exp(shifted)]
    shown = table(page, "[data-step=softmax] tbody tr")[:, :3]
    np.testing.assert_allclose(shown, np.stack(columns, 1), rtol=1e-9, atol=1e-12)
    expect(page.locator("[data-step=mask]")).to_contain_text("No key is masked")
    dimension = int(np.abs(expected["v"]).argmax())
    expect(page.locator("[data-step=value]")).to_contain_text(f"In dimension {dimension},")
    assert value(page, "value") == pytest.approx(expected["z"][dimension], rel=1e-9)
    values = vectors.rounded.value[1, 2][:, dimension].astype(np.float64)
    columns = [expected["weights"], values, expected["weights"] * values]
    shown = table(page, "[data-step=value] tbody tr")[:, :3]
    np.testing.assert_allclose(shown, np.stack(columns, 1), rtol=1e-9)
    page = open_page(vector_page(vectors, values=False), PAIR, ready=READY)
    expect(page.locator("[data-step=value]")).to_contain_text("made without values")


def test_tokens_are_chosen_in_menus_and_by_the_keys_of_the_softmax(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors), "view=arithmetic", ready=READY)
    query, key = (page.get_by_label(name) for name in ("Token that looks", "Where it looks"))
    assert (query.input_value(), int(key.input_value())) == (
        "5",
        int(vectors.probs(0, 0)[5].argmax()),
    )
    query.select_option("1")
    key.select_option("4")
    assert (state(page)["query"], state(page)["key"]) == ("1", "4")
    expect(page.locator(".sum-title")).to_contain_text("straw looks at rain")
    page.locator("[data-step=softmax] tbody button").nth(5).click()
    assert state(page)["key"] == "5"
    html = vector_page(some_vectors(1200, heads=1), tuple(f"##t{i}" for i in range(1200)))
    page = open_page(html, "view=arithmetic&query=1150", ready=READY)
    assert page.get_by_label("Token that looks").locator("option").count() == 1000
