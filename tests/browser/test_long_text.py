"""A text of 3,000 tokens: every view is drawn, and every token within reach."""

import pytest
from browser.head_view import Open, press, scroll_to, state, token
from browser.vector_page import some_vectors, vector_page
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
N = 3000


def test_every_view_is_drawn_and_the_keyboard_walks_through_it(open_page: Open) -> None:
    names = tuple(f"t{i}" for i in range(N))
    html = vector_page(some_vectors(N, width=7, heads=1), names, view="head")
    page = open_page(html, "query=2900", ready="[data-drawn]")
    expect(token(page, "query", 2900)).to_be_in_viewport(ratio=1)
    press(page, *["ArrowDown"] * 40)
    expect(token(page, "query", 2940)).to_be_focused()
    expect(token(page, "query", 2940)).to_be_in_viewport(ratio=1)
    assert state(page) == {"query": "2940"}
    scroll_to(page, 1500, N)
    press(page, "ArrowDown")
    expect(token(page, "query", 2941)).to_be_in_viewport(ratio=1)
    for name in ("model", "neuron", "arithmetic", "map"):
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&query=2900&key=150")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        expect(page.locator(".notice")).to_be_hidden()
