"""The neuron view: every number against NumPy, the cells' colours, what a token changes."""

import numpy as np
import pytest
from browser.head_view import pixels_of, press, state
from browser.vector_page import TOKENS, WIDTH, some_vectors, vector_page
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser
READY = ".neuron-view[data-drawn]"


def numbers(page: Page, name: str) -> np.ndarray:
    """The scores or weights of the rows in the document."""
    shown = page.locator(f".neuron-row .neuron-{name}")
    found = shown.evaluate_all("all => all.map(d => d.value)")
    return np.array([float(value.replace("Infinity", "inf")) for value in found])


def strip(page: Page, column: int, row: int) -> Locator:
    """The canvas of the keys (0) or the products (1) of a row."""
    return page.locator(".neuron-row").nth(row).locator("canvas").nth(column)


def cell(page: Page, column: int, row: int, dimension: int) -> tuple[float, float]:
    """The middle of a cell."""
    box = strip(page, column, row).bounding_box()
    return box["x"] + box["width"] * (dimension + 0.5) / WIDTH, box["y"] + box["height"] / 2


def colors(page: Page, column: int, row: int) -> np.ndarray:
    """The colours of a strip: red, green, blue and alpha of each cell."""
    return pixels_of(strip(page, column, row))[0]


@pytest.mark.parametrize("causal", [False, True])
def test_scores_and_weights_are_those_of_the_rounded_vectors(open_page, causal):
    vectors = some_vectors(causal=causal)
    page = open_page(vector_page(vectors), "view=neuron&layer=1&heads=2&query=4", ready=READY)
    scores = vectors.rounded.scores(1, 2)[4]
    if causal:
        scores[5:] = -np.inf
    np.testing.assert_allclose(numbers(page, "score"), scores, rtol=1e-12)
    np.testing.assert_allclose(numbers(page, "weight"), vectors.rounded.probs(1, 2)[4], rtol=1e-12)
    np.testing.assert_allclose(numbers(page, "weight"), vectors.probs(1, 2)[4], atol=1.2e-3)
    texts = page.locator(".neuron-score").all_text_contents()
    masked = [text == "masked" for text in texts]
    assert masked == [causal and i > 4 for i in range(len(TOKENS))]
    assert texts[0].replace("−", "-") == f"{scores[0]:.2f}"


def test_cells_have_the_colour_of_their_sign_and_say_what_they_add(open_page):
    vectors = some_vectors()
    page = open_page(vector_page(vectors), "view=neuron&query=1&theme=light", ready=READY)
    keys = vectors.key[0, 0]
    products = keys * vectors.query[0, 0, 1]
    for column, cells in ((0, keys), (1, products)):
        strong = np.argwhere(np.abs(cells) > np.abs(cells).max() / 3)
        for row, dimension in strong[:12].tolist():
            found = colors(page, column, row)
            assert len(found) == WIDTH
            red, _, blue, _ = found[dimension]
            assert (blue > red) == (cells[row, dimension] > 0), (column, row, dimension)
    page.mouse.move(*cell(page, 1, 5, 3))
    readout = page.locator(".neuron-readout")
    expect(readout).to_contain_text("Dimension 3")
    said = {
        name: float(readout.locator(f"[data-name={name}]").get_attribute("value") or "nan")
        for name in ("q", "k", "product", "contribution")
    }
    rounded = vectors.rounded
    q, k = float(rounded.query[0, 0, 1, 3]), float(rounded.key[0, 0, 5, 3])
    expected = {"q": q, "k": k, "product": q * k, "contribution": q * k / np.sqrt(WIDTH)}
    assert said == pytest.approx(expected, rel=1e-12)


def test_tokens_are_chosen_in_the_menu_and_by_their_rows(open_page):
    page = open_page(vector_page(some_vectors()), "view=neuron", ready=READY)
    view = page.locator(".neuron-view")
    expect(view).to_have_attribute("data-query", "5")
    page.get_by_label("Token that looks").select_option("4")
    expect(view).to_have_attribute("data-query", "4")
    key = page.locator(".neuron-row button").nth(2)
    key.focus()
    page.keyboard.press("Enter")
    assert state(page) == {"query": "4", "key": "2"}
    expect(page.locator(".neuron-row button").nth(2)).to_be_focused()
    expect(page.locator(".neuron-row.kept .neuron-key")).to_have_text("##berries")
    page.get_by_role("button", name="Step by step").click()
    expect(page.locator(".sum-title")).to_contain_text("rain looks at ##berries")
    assert state(page) == {"view": "arithmetic", "query": "4", "key": "2"}
    page.get_by_role("tab", name="Neuron").click()
    press(page, "Escape", "Escape")
    assert "query" not in state(page)


def test_an_edited_trace_says_so_and_a_long_text_has_its_strongest_keys(open_page):
    page = open_page(vector_page(some_vectors(), edited=True), "view=neuron&query=1", ready=READY)
    expect(page.locator(".neuron-note")).to_contain_text("This trace was edited")
    vectors = some_vectors(900, heads=1)
    html = vector_page(vectors, tuple(f"##t{i}" for i in range(900)))
    page = open_page(html, "view=neuron&query=450", ready=READY)
    expect(page.locator(".neuron-note")).to_contain_text("The 150 keys with the largest weights")
    largest = np.sort(vectors.rounded.probs(0, 0)[450])[-150:]
    np.testing.assert_allclose(np.sort(numbers(page, "weight")), largest, rtol=1e-9)
