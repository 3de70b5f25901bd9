"""Sizes: short and long texts, narrow and wide windows, sharp screens, screen readers."""

import time
from itertools import pairwise

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import N, Open, has_color, lines, pair_page, pixel, scroll_to, token, until
from playwright.sync_api import Browser, Page, expect

from minibert.loading import load
from minibert.viz import attention_page

pytestmark = pytest.mark.browser


def long_page(n_tokens: int) -> str:
    """Random attention, and in head 1 of layer 0 each token looks at itself."""
    probs = softmax((2, 12, n_tokens, n_tokens))
    probs[0, 1] = np.eye(n_tokens)
    words = ["[CLS]", *(f"{'un' * (i % 5)}word{i}" for i in range(n_tokens - 2)), "[SEP]"]
    return attention_page(probs, words).html


@pytest.mark.parametrize("n_tokens", [1, 40, 200])
def test_nothing_is_clipped_or_lies_over_something_else(open_page: Open, n_tokens: int) -> None:
    html = (
        long_page(n_tokens) if n_tokens > 1 else attention_page(np.ones((1, 1, 1, 1)), ["a"]).html
    )
    page = open_page(html, "query=0")
    for width in (420, 900, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        until(page, f"document.documentElement.scrollWidth === {width}")
        check_boxes(page, width)


def check_boxes(page: Page, width: int) -> None:
    boxes = page.locator(".toolbar .group").evaluate_all(
        "(all) => all.map((group) => group.getBoundingClientRect().toJSON())"
    )
    for i, first in enumerate(boxes):
        assert first["right"] <= width
        assert not any(overlap(first, second) for second in boxes[i + 1 :])
    clipped = page.evaluate(
        """() => [...document.querySelectorAll(
             ".captions strong, .label, .tile, .segments button, .sizes, h1, .weight")]
           .filter((item) => item.scrollWidth > item.clientWidth + 1 && item.clientWidth > 0)
           .map((item) => item.textContent)"""
    )
    assert clipped == []
    tokens = page.locator(".key .token").evaluate_all(
        "(all) => all.map((item) => item.getBoundingClientRect().toJSON())"
    )
    assert all(above["bottom"] <= below["top"] + 0.5 for above, below in pairwise(tokens))


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return (
        a["left"] < b["right"]
        and b["left"] < a["right"]
        and a["top"] < b["bottom"]
        and b["top"] < a["bottom"]
    )


def wait_for_ink(page: Page, index: int) -> None:
    """Waits until the line from a token to itself is drawn."""
    until = time.monotonic() + 10
    while not pixel(page, index, index)[3] and time.monotonic() < until:
        page.wait_for_timeout(20)
    assert has_color(pixel(page, index, index), (0xCE, 0x55, 0x09))


def test_everything_that_can_be_used_has_a_name(open_page: Open) -> None:
    page = open_page(pair_page(), "query=1")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, [role=listbox], [role=img]")]
          .filter((item) => !(item.getAttribute("aria-label") || item.labels?.length))
          .filter((item) => !(item.matches("button") && item.textContent))
          .map((item) => item.outerHTML)"""
    )
    assert nameless == []
    assert page.get_by_role("listbox").count() == 2
    assert page.locator(".token[role=option][aria-selected=true]").inner_text() == "straw"
    assert page.locator(".details").get_attribute("aria-live") == "polite"
    assert page.locator("html").get_attribute("lang") == "en"


def test_a_page_without_lines_says_why(open_page: Open) -> None:
    even = np.full((1, 2, 122, 122), 1 / 122)
    page = open_page(attention_page(even, [f"w{i}" for i in range(122)]).html)
    assert lines(page) == 0
    reason = page.locator(".empty[role=status]")
    expect(reason).to_have_text("No lines: every weight that is shown here is below 5\u202f%.")
    page.get_by_label("Hide weights below", exact=True).and_(page.locator("input")).fill("1")
    expect(reason).to_have_text("")
    until(page, "Number(document.querySelector('.lower').dataset.lines) > 0")
    for head in (0, 1):
        page.get_by_role("button", name=f"Head {head}", exact=True).click()
    expect(reason).to_have_text("No lines: no head is switched on.")


def test_a_cut_text_is_said_to_be_cut(open_page: Open) -> None:
    model = load()
    tokens = model.tokenize("the rabbit " * 600, truncate=True)
    page = open_page(model.trace(tokens).view(layers=[0], heads=[0]).html)
    expect(page.locator(".sizes")).to_contain_text(f"the text is cut after {tokens.lengths[0]} tok")
    page = open_page(model.trace("the rabbit").view().html)
    expect(page.locator(".sizes")).not_to_contain_text("cut")


def test_a_page_draws_in_the_frame_of_a_notebook(browser: Browser) -> None:
    context = browser.new_context(offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    html = attention_page(softmax((2, 2, 5, 5)), list("abcde"))._repr_html_()
    page.set_content(f"<!doctype html>{html}")
    frame = page.frame_locator("iframe[title=Attention]")
    expect(frame.locator(".lower[data-drawn]")).to_be_attached()
    frame.get_by_role("button", name="Next layer").click()
    expect(frame.locator(".stage[data-layer='1']")).to_be_attached()
    context.close()
    assert complaints == []


def test_a_printed_page_has_all_lines_and_no_controls(open_page: Open) -> None:
    page = open_page(long_page(410), "heads=1")
    expect(token(page, "query", 409)).to_have_count(0)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_for_ink(page, 409)
    for part in (".toolbar", ".tabs", ".theme", ".search"):
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
