"""The layers view: what each layer would predict, as a table of positions and layers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import B_START, TOKENS, N, Open, drawn_attention, press, state
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".layers-view[data-drawn]"
PLACES, POINTS = 5, 3
CELLS = """rows => rows.map(row => [...row.querySelectorAll('.layers-cell')].map((cell) =>
  [cell.textContent, getComputedStyle(cell).backgroundColor, getComputedStyle(cell).fontWeight]))"""


def made_up() -> dict[str, Any]:
    """Predictions with known names, "point.position.place", and random probabilities."""
    rng = np.random.default_rng(11)
    probs = -np.sort(-rng.dirichlet(np.ones(PLACES + 3), (POINTS, N)))[..., :PLACES]
    strings = [[[f"{p}.{i}.{j}" for j in range(PLACES)] for i in range(N)] for p in range(POINTS)]
    points = ["embed", *(f"resid_post {layer}" for layer in range(POINTS - 1))]
    return {"points": points, "probs": probs.round(5).tolist(), "strings": strings}


def small(open_page: Open, probs: np.ndarray | None = None) -> Page:
    """The page of these predictions; the output says of token 2 what layer 0 says."""
    lens = made_up()
    lens["strings"][1][2][0] = lens["strings"][2][2][0]
    weights = drawn_attention() if probs is None else probs
    page = attention_page(weights, TOKENS, model="drawn", sentence_b_start=B_START)
    [one] = page.examples
    examples = (replace(one, about={**one.about, "lens": lens}),)
    return open_page(replace(page, examples=examples, view="layers").html, ready=READY)


def cells(page: Page) -> np.ndarray:
    """Text, colour and weight of the font of each cell: (position, point, 3)."""
    return np.array(page.locator(".layers-row").evaluate_all(CELLS))


def cell(page: Page, row: int, point: int) -> Any:
    return page.locator(f".layers-row[data-index='{row}'] .layers-cell").nth(point)


def predictions(page: Page) -> list[tuple[str, float]]:
    """The card's tokens and probabilities."""
    found = page.locator(".layers-card .bar").evaluate_all(
        "(all) => all.map((b) => [b.querySelector('.chip').textContent,"
        " Number(b.querySelector('data').value)])"
    )
    return [tuple(pair) for pair in found]


def test_cells_have_the_most_probable_tokens_shaded_and_say_more_of_them(open_page):
    page, lens = small(open_page), made_up()
    expect(page.locator(".layers-point")).to_have_text(["embed", "0", "1 = output"])
    names = ["[CLS]", "straw", "berries", "[SEP]", "rain", "falls", "[SEP]"]
    expect(page.locator(".layers-name")).to_have_text(names)
    found = cells(page)
    expected = np.array([[f"{point}.{row}.0" for point in range(POINTS)] for row in range(N)])
    expected[2, 1] = "2.2.0"
    np.testing.assert_array_equal(found[..., 0], expected)
    shades = [float(one.split(",")[3].rstrip(")")) for one in found[..., 1].ravel()]
    probs = np.array(lens["probs"])[:, :, 0].T
    np.testing.assert_allclose(
        np.reshape(shades, probs.shape) / max(shades), probs / probs.max(), atol=0.02
    )
    # What the output says too is bold.
    assert found[2, :, 2].tolist() == ["400", "600", "600"]
    expect(page.locator(".legend")).to_contain_text("the token that stands there")
    expect(page.locator(".layers-card")).to_contain_text("Point at a cell")
    cell(page, 2, 0).hover()
    first = lens["probs"][0][2]
    assert predictions(page) == [(f"0.2.{i}", pytest.approx(first[i])) for i in range(PLACES)]
    expect(page.locator(".layers-card")).to_contain_text("Before the first layer")
    expect(page.locator(".layers-card data").first).to_have_text(f"{100 * first[0]:.1f}\u202f%")
    cell(page, 2, 1).hover()
    expect(page.locator(".layers-card .where")).to_have_text("After layer 0, position 2")
    expect(page.locator(".layers-card h2")).to_have_text("at ##berries")
    page.mouse.move(2, 2)
    expect(page.locator(".layers-card")).to_contain_text("Point at a cell")
    page = small(open_page, softmax((2, 1, N, N), causal=True))
    expect(page.locator(".legend")).to_contain_text("the token that follows")


def test_positions_are_kept_by_click_and_by_keys(open_page):
    page = small(open_page)
    cell(page, 4, 1).click()
    assert state(page) == {"query": "4"}
    page.mouse.move(2, 2)
    expect(page.locator(".layers-row.kept .layers-name")).to_have_text("rain")
    assert predictions(page)[0][0] == "1.4.0"
    page.get_by_role("tab", name="Head", exact=True).click()
    expect(page.locator(".query .token.kept")).to_have_text("rain")
    page = small(open_page)
    cell(page, 0, POINTS - 1).focus()
    press(page, "ArrowDown", "ArrowLeft", "ArrowLeft")
    assert predictions(page)[0][0] == "0.1.0"
    expect(cell(page, 1, 0)).to_be_focused()
    press(page, "Enter")
    assert state(page) == {"query": "1"}
    press(page, "Escape")
    assert state(page) == {}
