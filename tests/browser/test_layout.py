"""Sizes: every view in narrow and wide windows and on paper; long texts; a view of one's own."""

from itertools import pairwise

import numpy as np
import pytest
from attention_pages import names, softmax
from browser.head_view import (
    has_color,
    lines,
    page_of,
    pair_page,
    pixel,
    press,
    scroll_to,
    state,
    text_of,
    token,
    until,
)
from playwright.sync_api import Page, expect
from small_traces import small_trace

from minibert.model import load
from minibert.viz import attention_page, view
from tests.extending import EXTEND, follow

pytestmark = pytest.mark.browser

VIEWS = ("head", "model", "neuron", "arithmetic", "map", "layers")
CLIPPED = """() => [...document.querySelectorAll(`
    .captions strong, .label, .tile, .segments button, .sizes, h1, .weight, td,
    .neuron-row data`)]
  .filter((item) => item.scrollWidth > item.clientWidth + 1 && item.clientWidth > 0)
  .map((item) => item.outerHTML.slice(0, 120))"""


def long_page(n_tokens: int) -> str:
    """Random attention, and in head 1 of layer 0 each token looks at itself."""
    probs = softmax((2, 12, n_tokens, n_tokens))
    probs[0, 1] = np.eye(n_tokens)
    words = ["[CLS]", *(f"{'un' * (i % 5)}word{i}" for i in range(n_tokens - 2)), "[SEP]"]
    return attention_page(probs, words).html


@pytest.mark.parametrize("width", [360, 1400])
def test_every_view_fits_the_window_and_nothing_is_clipped_or_covered(open_page, width):
    trace = load().trace("the unbelievable horse quickly ran away . " * 8, "the boat sank")
    page = open_page(view(trace).html, "query=3&key=2", viewport={"width": width, "height": 800})
    for name in VIEWS:
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&query=3&key=2")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        # The bar that Firefox scrolls with has a width.
        root = "document.documentElement"
        until(page, f"{root}.scrollWidth === {root}.clientWidth")
        assert page.evaluate(CLIPPED) == [], name
        check_boxes(page, width)


def check_boxes(page: Page, width: int) -> None:
    boxes = page.locator(".toolbar .group:visible, .tabs").evaluate_all(
        "(all) => all.map((group) => group.getBoundingClientRect().toJSON())"
    )
    for i, first in enumerate(boxes):
        assert first["right"] <= width
        assert not any(overlap(first, second) for second in boxes[i + 1 :])
    rows = page.locator(".column.key .token").evaluate_all(
        "(all) => all.map((item) => item.getBoundingClientRect().toJSON())"
    )
    assert all(above["bottom"] <= below["top"] + 0.5 for above, below in pairwise(rows))


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    across = a["left"] < b["right"] and b["left"] < a["right"]
    return across and a["top"] < b["bottom"] and b["top"] < a["bottom"]


def test_a_printed_page_is_light_has_all_lines_and_no_controls(open_page):
    page = open_page(long_page(410), "heads=1&theme=dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for _ in range(200):
        if pixel(page, 409, 409)[3]:
            break
        page.wait_for_timeout(20)
    assert has_color(pixel(page, 409, 409), (0xCE, 0x55, 0x09))
    assert page.locator("#page").get_attribute("data-theme") == "light"
    for part in (".toolbar", ".tabs", ".theme"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator(".heading")).to_be_visible()


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


def test_a_sentence_follows_view_layer_head_and_token(open_page):
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


def test_a_long_text_of_faint_weights_opens_with_the_strongest(open_page):
    n = 401
    page = open_page(attention_page(faint(n), names(n)).html)
    assert lines(page) == n
    expect(page.locator(".empty")).to_contain_text("Few weights here reach 7.5\u202f%")
    expect(page.locator(".empty")).to_contain_text("from 5.0\u202f% up")
    token(page, "query", 3).click()
    until(page, "Number(document.querySelector('.upper').dataset.lines) >= 1")


def test_a_text_of_3000_tokens_is_drawn_in_every_view_and_the_keyboard_walks_through_it(open_page):
    html = view(small_trace(3000, n_positions=3000)).html
    page = open_page(html, "query=2900", ready="[data-drawn]")
    expect(token(page, "query", 2900)).to_be_in_viewport(ratio=1)
    press(page, *["ArrowDown"] * 40)
    expect(token(page, "query", 2940)).to_be_focused()
    expect(token(page, "query", 2940)).to_be_in_viewport(ratio=1)
    assert state(page) == {"query": "2940"}
    scroll_to(page, 1500, 3000)
    press(page, "ArrowDown")
    expect(token(page, "query", 2941)).to_be_in_viewport(ratio=1)
    for name in ("model", "neuron", "arithmetic", "map"):
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&query=2900&key=150")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        expect(page.locator(".notice")).to_be_hidden()


def test_the_view_of_the_page_that_adds_one_is_drawn(open_page, tmp_path):
    follow(EXTEND / "view.md", tmp_path / "scratch")
    html = (tmp_path / "scratch" / "page.html").read_text(encoding="utf-8")
    page = open_page(html, ready=".received-view li")
    shares = page.locator(".received-view data").all_text_contents()
    assert len(shares) == 7
    # What is received adds up to all that is given, each share rounded.
    assert abs(sum(float(share.split()[0]) for share in shares) - 100) < 1
