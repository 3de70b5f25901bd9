"""The search field: part of a token, how often it is there, and a walk through the matches."""

from typing import Any

import numpy as np
import pytest
from attention_pages import HOSTILE, softmax
from browser.head_view import Open, pair_page, state, until
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".text-view[data-drawn]"
TOKENS = ("[CLS]", "the", "straw", "##berries", "and", "the", "Other", "berries", "[SEP]")


def page_of(open_page: Open, hash: str = "", tokens: Any = TOKENS, **options: Any) -> Page:
    n = len(tokens)
    html = attention_page(softmax((2, 2, n, n)), tokens, view="text").html
    return open_page(html, hash, ready=READY, **options)


def field(page: Page) -> Any:
    return page.get_by_role("searchbox", name="Find a token")


def found(page: Page) -> list[int]:
    return page.locator(".text-token.found").evaluate_all(
        "(all) => all.map((item) => Number(item.dataset.index))"
    )


def test_parts_of_tokens_are_found_and_counted(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).fill("THE")
    expect(page.locator(".search-found")).to_have_text("3 matches")
    assert found(page) == [1, 5, 6]
    field(page).fill("straw")
    expect(page.locator(".search-found")).to_have_text("1 match")
    field(page).fill("nowhere")
    expect(page.locator(".search-found")).to_have_text("not found")
    assert found(page) == []
    field(page).fill("")
    expect(page.locator(".search-found")).to_have_text("")


def test_a_match_may_run_over_several_tokens(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).fill("wberr")
    assert found(page) == [2, 3]
    field(page).fill("the straw")
    assert found(page) == [1, 2]
    expect(page.locator(".search-found")).to_have_text("1 match")
    field(page).fill("berries and")
    assert found(page) == [3, 4]


def test_enter_walks_on_and_shift_enter_back(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).fill("the")
    seen = []
    for key in ("Enter", "Enter", "Enter", "Enter", "Shift+Enter", "Shift+Enter"):
        field(page).press(key)
        seen.append(state(page)["query"])
    assert seen == ["1", "5", "6", "1", "6", "5"]
    expect(page.locator(".search-found")).to_have_text("2 of 3")
    expect(page.locator(".text-token.kept")).to_have_text("the")
    page.get_by_role("button", name="Next match").click()
    assert state(page) == {"find": "the", "query": "6"}
    page.get_by_role("button", name="Previous match").click()
    assert state(page)["query"] == "5"
    field(page).press("Escape")
    assert state(page) == {"query": "5"}
    expect(field(page)).to_have_value("")


def test_what_is_searched_for_is_in_the_address(open_page: Open) -> None:
    page = page_of(open_page, "find=berries&query=7")
    expect(field(page)).to_have_value("berries")
    expect(page.locator(".search-found")).to_have_text("2 of 2")
    assert found(page) == [3, 7]
    field(page).fill("a b&c=d")
    page = page_of(open_page, page.evaluate("location.hash.slice(1)"))
    expect(field(page)).to_have_value("a b&c=d")


def test_a_token_that_is_found_far_down_comes_into_sight(open_page: Open) -> None:
    tokens = [*(f"w{i}" for i in range(900)), "needle", *(f"v{i}" for i in range(99))]
    html = attention_page(np.full((1, 1, 1000, 1000), 0.001), tokens, view="text").html
    page = open_page(html, ready=READY)
    field(page).fill("needle")
    field(page).press("Enter")
    expect(page.locator(".text-token.kept")).to_be_in_viewport()
    assert state(page)["query"] == "900"


def test_matches_are_marked_in_the_head_view_too(open_page: Open) -> None:
    page = open_page(pair_page(), "find=straw")
    expect(page.locator(".query .token.found")).to_have_text(["straw"])
    expect(page.locator(".key .token.found")).to_have_text(["straw"])


def test_the_search_stays_while_views_change(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).fill("the")
    page.get_by_role("tab", name="Model", exact=True).click()
    expect(page.locator(".model-view")).to_be_attached()
    expect(field(page)).to_have_value("the")
    expect(page.locator(".search-found")).to_have_text("3 matches")


def test_typing_goes_to_the_field_and_not_to_the_picture(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).click()
    page.keyboard.type("the")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert state(page) == {"find": "the"}
    expect(field(page)).to_be_focused()


def test_hostile_text_is_found_as_it_is_shown(open_page: Open) -> None:
    page = page_of(open_page, tokens=list(HOSTILE))
    field(page).fill("<script>")
    assert found(page) == [0]
    field(page).fill("u+202e")
    assert found(page) == [3]
    field(page).fill("xxxx")
    expect(page.locator(".search-found")).to_have_text("1 match")


def test_the_field_lies_over_nothing(open_page: Open) -> None:
    page = page_of(open_page, "find=the")
    for width in (380, 900, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        until(page, f"document.documentElement.scrollWidth === {width}")
        if width == 380:
            page.get_by_role("button", name="More controls").click()
        boxes = [page.locator(name).bounding_box() for name in (".tabs", ".search", ".toolbar")]
        tabs, search, toolbar = [box for box in boxes if box]
        assert search["y"] >= tabs["y"] + tabs["height"] or search["x"] >= tabs["x"] + tabs["width"]
        assert search["y"] + search["height"] <= toolbar["y"]
