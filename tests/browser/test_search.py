"""The search field: part of a token, how often it is there, and a walk through the matches."""

from typing import Any

import pytest
from attention_pages import HOSTILE, softmax
from browser.head_view import Open, state
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


def test_parts_of_tokens_are_found_and_counted_in_every_view(open_page: Open) -> None:
    page = page_of(open_page)
    field(page).click()
    page.keyboard.type("THE")
    page.keyboard.press("ArrowRight")
    assert state(page) == {"find": "THE"}
    expect(page.locator(".search-found")).to_have_text("3 matches")
    assert found(page) == [1, 5, 6]
    for text, says, where in (
        ("straw", "1 match", [2]),
        ("wberr", "1 match", [2, 3]),
        (" straw  ", "1 match", [2]),
        ("t.e", "not found", []),
        ("nowhere", "not found", []),
        ("berries and", "1 match", [3, 4]),
        ("", "", []),
    ):
        field(page).fill(text)
        expect(page.locator(".search-found")).to_have_text(says)
        assert found(page) == where
    page = page_of(open_page, "find=berries&query=7")
    expect(field(page)).to_have_value("berries")
    expect(page.locator(".search-found")).to_have_text("2 of 2")
    page.get_by_role("tab", name="Head", exact=True).click()
    expect(page.locator(".query .token.found")).to_have_text(["##berries", "berries"])
    expect(field(page)).to_have_value("berries")
    field(page).fill("a b&c=d")
    page = page_of(open_page, page.evaluate("location.hash.slice(1)").replace("view=head", ""))
    expect(field(page)).to_have_value("a b&c=d")
    page = page_of(open_page, tokens=list(HOSTILE))
    field(page).fill("u+202e")
    assert found(page) == [3]
