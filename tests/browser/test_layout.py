"""Sizes: every view in narrow and wide windows, on sharp screens, on paper and in a frame."""

from itertools import pairwise

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import N, Open, has_color, pair_page, pixel, scroll_to, until
from playwright.sync_api import Page, expect

from minibert.loading import load
from minibert.viz import attention_page, view

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
def test_every_view_fits_the_window_and_nothing_is_clipped_or_covered(
    open_page: Open, width: int
) -> None:
    trace = load().trace("the unbelievable horse quickly ran away . " * 8, "the boat sank")
    page = open_page(view(trace).html, "query=3&key=2", viewport={"width": width, "height": 800})
    for name in VIEWS:
        page.evaluate("hash => { location.hash = hash; }", f"view={name}&query=3&key=2")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        until(page, f"document.documentElement.scrollWidth === {width}")
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


def test_a_cut_text_is_said_to_be_cut(open_page: Open) -> None:
    model = load()
    tokens = model.tokenize("the rabbit " * 600, truncate=True)
    page = open_page(model.trace(tokens).view(layers=[0], heads=[0]).html)
    expect(page.locator(".sizes")).to_contain_text(f"the text is cut after {tokens.lengths[0]} tok")


def test_a_printed_page_is_light_has_all_lines_and_no_controls(open_page: Open) -> None:
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


def test_lines_are_sharp_and_follow_when_the_window_changes(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=0", device_scale_factor=2)
    for width in (1280, 500):
        page.set_viewport_size({"width": width, "height": 700})
        until(
            page,
            """() => {
              const canvas = document.querySelector(".lower canvas");
              const { width } = canvas.getBoundingClientRect();
              const room = document.querySelector(".between-columns").clientWidth;
              return Math.abs(width - room) < 1 && Math.abs(canvas.width - 2 * width) <= 1;
            }""",
        )
        page.wait_for_selector(".lower[data-drawn]")
        assert all(has_color(pixel(page, i, i), (0x22, 0x6A, 0x99)) for i in range(N))
    page = open_page(long_page(200))
    scroll_to(page, 150, 200)
    expect(page.locator(".toolbar")).to_be_in_viewport(ratio=1)
    expect(page.locator(".details")).to_be_in_viewport()
