"""The neuron view: every number against NumPy, the cells' colours, what a token changes."""

import numpy as np
import pytest
from browser.head_view import Open, pixel_at, press, state, token
from browser.vector_page import TOKENS, WIDTH, some_vectors, vector_page
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".neuron-view[data-drawn]"


def numbers(page: Page, name: str) -> np.ndarray:
    """The scores or weights of the rows in the document."""
    shown = page.locator(f".neuron-right .neuron-{name}")
    found = shown.evaluate_all("all => all.map(d => d.value)")
    return np.array([float(value.replace("Infinity", "inf")) for value in found])


def cell(page: Page, column: int, row: int, dimension: int) -> tuple[float, float]:
    """The middle of a cell of the keys (0) or the products (1)."""
    strip = page.locator(".neuron-head .neuron-cell.vectors").nth(column).bounding_box()
    box = page.locator(".neuron-right .token").nth(row).bounding_box()
    x = strip["x"] + strip["width"] * (dimension + 0.5) / WIDTH
    return x, box["y"] + box["height"] / 2


@pytest.mark.parametrize("causal", [False, True])
def test_scores_and_weights_are_those_of_the_rounded_vectors(open_page: Open, causal: bool) -> None:
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


def test_exact_vectors_give_the_models_own_numbers(open_page: Open) -> None:
    vectors = some_vectors()
    html = vector_page(vectors, exact=(1, 2))
    page = open_page(html, "view=neuron&layer=1&heads=2&query=0", ready=READY)
    np.testing.assert_allclose(numbers(page, "weight"), vectors.probs(1, 2)[0], rtol=1e-12)
    page.locator(".tile").nth(0).click()
    empty = page.locator(".neuron-view .empty")
    expect(empty).to_contain_text("without query and key of layer 1, head 0")
    expect(empty).to_contain_text("layer 1, head 2")
    page = open_page(attention_page(np.full((2, 2, 3, 3), 1 / 3), ["a", "b", "c"]).html)
    for name in ("Neuron", "Arithmetic"):
        expect(page.get_by_role("tab", name=name)).to_have_count(0)


def test_cells_have_the_colour_of_their_sign_and_say_what_they_add(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors), "view=neuron&query=1&theme=light", ready=READY)
    keys = vectors.key[0, 0]
    products = keys * vectors.query[0, 0, 1]
    for column, cells in ((0, keys), (1, products)):
        strong = np.argwhere(np.abs(cells) > np.abs(cells).max() / 3)
        for row, dimension in strong[:12].tolist():
            place = cell(page, column, row, dimension)
            red, _, blue, _ = pixel_at(page, ".neuron-cells", *place)
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


def test_tokens_are_pointed_at_chosen_and_walked_through(open_page: Open) -> None:
    page = open_page(vector_page(some_vectors()), "view=neuron", ready=READY)
    view = page.locator(".neuron-view")
    expect(view).to_have_attribute("data-query", "5")
    token(page, "query", 2).hover()
    expect(view).to_have_attribute("data-query", "2")
    token(page, "query", 4).click()
    token(page, "query", 1).hover()
    expect(view).to_have_attribute("data-query", "4")
    press(page, "ArrowUp")
    assert state(page)["query"] == "3"
    expect(token(page, "query", 3)).to_be_focused()
    press(page, "ArrowDown")
    token(page, "key", 2).click()
    page.get_by_role("button", name="Step by step").click()
    expect(page.locator(".sum-title")).to_contain_text("rain looks at ##berries")
    assert state(page) == {"view": "arithmetic", "query": "4", "key": "2"}
    page.get_by_role("tab", name="Neuron").click()
    press(page, "Escape", "Escape")
    assert "query" not in state(page)


def test_lines_are_those_that_can_be_seen_and_a_narrow_page_has_a_menu(open_page: Open) -> None:
    vectors = some_vectors()
    page = open_page(vector_page(vectors, edited=True), "view=neuron&query=1", ready=READY)
    expect(page.locator(".neuron-note")).to_contain_text("This trace was edited")
    seen = int((1 - (1 - vectors.probs(0, 0)[1]) ** 3 >= 1 / 510).sum())
    assert int(page.locator(".neuron-lines").get_attribute("data-lines") or 0) == seen
    page.set_viewport_size({"width": 380, "height": 800})
    page.locator(".neuron-pick").select_option("2")
    assert state(page)["query"] == "2"
