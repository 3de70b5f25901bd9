"""What a page shows when it opens, before anything is clicked: something to see, and what it is."""

import numpy as np
import pytest
from attention_pages import names
from browser.head_view import Open, lines, page_of, pair_page, text_of, token, until
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser


def seen(page: Page) -> str:
    page.wait_for_function("document.querySelector('.seen').textContent")
    return page.locator(".seen").first.inner_text()


def changed(page: Page, hash: str, sentence: str) -> None:
    page.evaluate("hash => { location.hash = hash; }", hash)
    expect(page.locator(".seen").first).to_have_text(sentence)


def faint(n_tokens: int) -> np.ndarray:
    """One head, (layer, head, query, key): no weight reaches 7 %, the next token gets most."""
    probs = np.full((1, 1, n_tokens, n_tokens), 0.95 / (n_tokens - 1), np.float32)
    each = np.arange(n_tokens)
    probs[0, 0, each, (each + 1) % n_tokens] = 0.05
    return probs


def test_a_sentence_follows_view_layer_head_and_token(open_page: Open) -> None:
    page = open_page(pair_page())
    for hash, sentence in (
        ("", "Head 0 of layer 0, the clearest of 3: every token looks at itself, 100\u202f%."),
        ("heads=1", "Head 1 of layer 0: every token looks at the one after it, 100\u202f%."),
        ("heads=2&query=4", "Head 2 of layer 0: rain looks most at [CLS], 100\u202f%."),
        (
            "view=map&heads=1",
            "Head 1 of layer 0: every token looks at the one after it, 100\u202f%.",
        ),
    ):
        changed(page, hash, sentence)
    page.evaluate("() => { location.hash = 'view=model'; }")
    expect(page.locator(".seen")).to_contain_text("6 heads: each is a picture")
    itself = np.eye(5, dtype=np.float32)
    one = text_of(itself[None, None], names(5), name="one")
    other = text_of(np.roll(itself, 1, 1)[None, None], ("<img src=x>", *names(5)[1:]), name="other")
    page = open_page(page_of(one, other), "beside=1&query=4")
    expect(page.locator(".seen").nth(0)).to_contain_text("t4 looks most at t4")
    expect(page.locator(".seen").nth(1)).to_contain_text("t4 looks most at <img src=x>")


class TestLines:
    def test_a_long_text_of_faint_weights_opens_with_the_strongest(self, open_page: Open) -> None:
        n = 401
        page = open_page(attention_page(faint(n), names(n)).html)
        assert lines(page) == n
        expect(page.locator(".empty")).to_contain_text("Few weights here reach 7.5\u202f%")
        expect(page.locator(".empty")).to_contain_text("from 5.0\u202f% up")
        token(page, "query", 3).click()
        until(page, "Number(document.querySelector('.upper').dataset.lines) >= 1")

    def test_a_threshold_that_was_chosen_is_kept_to(self, open_page: Open) -> None:
        page = open_page(attention_page(faint(401), names(401)).html, "min=10")
        assert lines(page) == 0
        expect(page.locator(".empty")).to_have_text(
            "No lines: every weight that is shown here is below 10\u202f%."
        )


def test_a_small_screen_shows_the_picture_and_folds_the_controls(open_page: Open) -> None:
    page = open_page(pair_page(), viewport={"width": 360, "height": 800})
    seen(page)
    first = token(page, "query", 0).bounding_box()
    assert first is not None
    # With the two lines of the sentence above it.
    assert first["y"] < 430
    folded = page.get_by_role("slider", name="Hide weights below")
    expect(folded).to_be_hidden()
    expect(page.get_by_role("combobox", name="Layer")).to_be_visible()
    page.get_by_role("button", name="More controls").click()
    expect(folded).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Fewer controls").click()
    expect(folded).to_be_hidden()
