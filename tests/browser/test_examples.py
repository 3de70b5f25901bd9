"""Several texts in one page, texts that look at other texts, long texts, the strongest lines."""

from dataclasses import replace
from typing import Any

import pytest
from attention_pages import names, softmax
from browser.head_view import (
    Open,
    at,
    count_lines,
    kept,
    lines,
    page_of,
    state,
    text_of,
    until,
)
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

QUERIES, KEYS = 11, 7
LOOKING = ["le", "chat", "noir", "dort", "sur", "le", "tapis", "de", "la", "maison", "."]
LOOKED_AT = ["the", "cat", "sleeps", "on", "the", "mat", "."]
CROSS = softmax((2, 3, QUERIES, KEYS))


def cross_page() -> str:
    return page_of(text_of(CROSS, LOOKING, key_tokens=LOOKED_AT, name="Decoder → Encoder"))


def texts_page(n: int, **options: Any) -> str:
    """Texts of 5, 6, 7 ... tokens, named t0, t1 ..."""
    probs = [softmax((2, 3, 5 + i, 5 + i), seed=i) for i in range(n)]
    return page_of(
        *(text_of(one, names(5 + i), name=f"text {i}") for i, one in enumerate(probs)), **options
    )


def wait_for_tokens(page: Page, n: int) -> None:
    until(page, f"document.querySelectorAll('.query .token').length === {n}")
    page.wait_for_selector(".lower[data-drawn]", state="attached")


def test_tabs_say_which_picture_a_text_does_not_have(open_page: Open) -> None:
    with_lens = text_of(softmax((1, 1, 3, 3)), names(3), name="with")
    lens = {"points": ["a"], "strings": [[["x"]] * 3], "probs": [[[0.5]] * 3]}
    with_lens = replace(with_lens, about={**with_lens.about, "lens": lens})
    page = open_page(page_of(text_of(softmax((1, 1, 3, 3)), names(3), name="without"), with_lens))
    tab = page.get_by_role("tab", name="Layers")
    assert tab.get_attribute("aria-disabled") == "true"
    tab.click(force=True)
    assert state(page) == {}
    page.get_by_role("button", name="Text: with", exact=True).click()
    until(page, "!document.querySelector('.tab[data-view=layers]').ariaDisabled")


def test_arrows_go_through_the_tabs_and_keep_the_focus(open_page: Open) -> None:
    page = open_page(texts_page(1))
    tabs = page.get_by_role("tab")
    page.get_by_role("tab", name="Head").focus()
    page.keyboard.press("ArrowRight")
    assert state(page)["view"] == "model"
    expect(page.get_by_role("tab", name="Model")).to_be_focused()
    page.keyboard.press("End")
    expect(tabs.last).to_be_focused()
    page.keyboard.press("Home")
    assert "view" not in state(page)
    assert page.locator(".tab[tabindex='0']").count() == 1
    expect(page.get_by_role("tabpanel")).to_have_attribute("aria-label", "Head")


def test_a_text_may_look_at_another_text(open_page: Open) -> None:
    page = open_page(cross_page())
    expect(page.locator(".query .chip")).to_have_text(LOOKING)
    expect(page.locator(".key .chip")).to_have_text(LOOKED_AT)
    expect(page.locator(".captions p").first).to_contain_text("Decoder, query")
    expect(page.locator(".captions p").last).to_contain_text("Encoder, key")
    expect(page.locator(".sizes")).to_contain_text("11 tokens that look at 7")
    assert lines(page) == count_lines(CROSS[0], strength=2)


def test_texts_are_chosen_by_button_menu_and_key(open_page: Open) -> None:
    page = open_page(texts_page(3), "layer=1&query=4")
    page.get_by_role("button", name="Text: text 2").click()
    wait_for_tokens(page, 7)
    assert state(page) == {"example": "2", "layer": "1", "query": "4"}
    assert lines(page) == count_lines(softmax((2, 3, 7, 7), seed=2)[1], strength=2)
    expect(page.locator(".chooser [aria-pressed=true]")).to_have_text("text 2")
    expect(page.locator(".sizes")).to_contain_text("7 tokens")
    page.keyboard.press("p")
    wait_for_tokens(page, 6)
    page.keyboard.press("n")
    wait_for_tokens(page, 7)
    page = open_page(texts_page(6))
    page.get_by_label("Text", exact=True).and_(page.locator("select")).select_option("5")
    wait_for_tokens(page, 10)
    assert page.get_by_role("button", name="Next text").is_disabled()
    page.get_by_role("button", name="Previous text").click()
    wait_for_tokens(page, 9)
    assert state(page) == {"example": "4"}
    expect(open_page(texts_page(1)).locator(".chooser")).to_be_hidden()
    texts = [text_of(softmax((1, 1, 3, 3)), words.split()) for words in ("a b c", "d e f", "a b c")]
    buttons = open_page(page_of(*texts)).locator(".chooser .segments button")
    expect(buttons).to_have_text(["a b c (1)", "d e f", "a b c (3)"])


def test_an_address_is_read_with_the_sizes_of_its_text(open_page: Open) -> None:
    html = texts_page(3, start=(("example", "1"), ("layer", "1"), ("query", "5")))
    page = open_page(html)
    assert state(page) == {"example": "1", "layer": "1", "query": "5"}
    at(page, "example=2&query=6&key=1")
    wait_for_tokens(page, 7)
    assert kept(page) == [("query", 6), ("key", 1)]
    page.get_by_role("button", name="Text: text 0").click()
    wait_for_tokens(page, 5)
    assert (kept(page), state(page)) == ([("key", 1)], {"key": "1"})
    at(page, "example=0&query=6&beside=9")
    until(page, "location.hash === ''")
