"""Several texts in one page, texts that look at other texts, long texts, the strongest lines."""

from typing import Any

import pytest
from attention_pages import names, softmax
from browser.head_view import at, count_lines, kept, lines, page_of, press, state, text_of, until
from playwright.sync_api import Locator, Page, expect

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


def test_a_text_may_look_at_another_text(open_page):
    page = open_page(cross_page())
    expect(page.locator(".query .chip")).to_have_text(LOOKING)
    expect(page.locator(".key .chip")).to_have_text(LOOKED_AT)
    expect(page.locator(".captions p").first).to_contain_text("Decoder, query")
    expect(page.locator(".captions p").last).to_contain_text("Encoder, key")
    expect(page.locator(".sizes")).to_contain_text("11 tokens that look at 7")
    assert lines(page) == count_lines(CROSS[0], strength=2)


def text(page: Page) -> Locator:
    return page.get_by_label("Text", exact=True).and_(page.locator("select"))


def test_texts_are_chosen_by_menu_and_key(open_page):
    page = open_page(texts_page(3), "layer=1&query=4")
    text(page).select_option("2")
    wait_for_tokens(page, 7)
    assert state(page) == {"example": "2", "layer": "1", "query": "4"}
    assert lines(page) == count_lines(softmax((2, 3, 7, 7), seed=2)[1], strength=2)
    expect(page.locator(".sizes")).to_contain_text("7 tokens")
    page.keyboard.press("p")
    wait_for_tokens(page, 6)
    page.keyboard.press("n")
    wait_for_tokens(page, 7)
    page = open_page(texts_page(6))
    text(page).select_option("5")
    wait_for_tokens(page, 10)
    assert page.get_by_role("button", name="Next text").is_disabled()
    page.get_by_role("button", name="Previous text").click()
    wait_for_tokens(page, 9)
    assert state(page) == {"example": "4"}
    expect(open_page(texts_page(1)).locator(".chooser")).to_be_hidden()
    texts = [text_of(softmax((1, 1, 3, 3)), words.split()) for words in ("a b c", "d e f", "a b c")]
    names = text(open_page(page_of(*texts))).locator("option")
    expect(names).to_have_text(["1. a b c (1)", "2. d e f", "3. a b c (3)"])


def test_an_address_is_read_with_the_sizes_of_its_text(open_page):
    html = texts_page(3, start=(("example", "1"), ("layer", "1"), ("query", "5")))
    page = open_page(html)
    assert state(page) == {"example": "1", "layer": "1", "query": "5"}
    at(page, "example=2&query=6&key=1")
    wait_for_tokens(page, 7)
    assert kept(page) == [("query", 6), ("key", 1)]
    text(page).select_option("0")
    wait_for_tokens(page, 5)
    assert (kept(page), state(page)) == ([("key", 1)], {"key": "1"})
    at(page, "example=0&query=6&beside=9")
    until(page, "location.hash === ''")


N, LONGER = 7, 13
BEFORE, AFTER = softmax((2, 3, N, N), seed=1), softmax((2, 3, N, N), seed=2)
OTHER = softmax((3, 5, LONGER, LONGER), seed=3)


def compared(hash: str = "") -> tuple[str, str]:
    """The same tokens before and after something, and a longer text in a larger model."""
    html = page_of(
        text_of(BEFORE, names(N), name="before"),
        text_of(AFTER, names(N), name="after"),
        text_of(OTHER, names(LONGER), name="other"),
    )
    return html, f"beside=1&{hash}"


def picture(page: Page, i: int) -> Locator:
    return page.locator(".picture").nth(i)


def card(page: Page, i: int) -> Locator:
    return page.locator(".cards").nth(i)


def lines_of(page: Page, i: int, sheet: str = "lower") -> int:
    return int(picture(page, i).locator(f".{sheet}").get_attribute("data-lines") or 0)


def weights_of(page: Page, i: int) -> dict[int, float]:
    found = picture(page, i).locator(".token > .weight")
    pairs = found.evaluate_all(
        "(all) => all.map((weight) => [Number(weight.parentElement.dataset.index), +weight.value])"
    )
    return dict(pairs)


def test_another_text_can_be_put_beside_the_first(open_page):
    html, _ = compared()
    page = open_page(html)
    menu = page.get_by_label("Compare with").and_(page.locator("select"))
    menu.select_option("1")
    page.wait_for_selector(".picture:nth-child(2) .lower[data-drawn]", state="attached")
    assert state(page) == {"beside": "1"}
    expect(page.locator(".picture .which")).to_have_text(["before", "after"])
    expect(page.locator(".cards .which")).to_have_text(["before", "after"])
    assert lines_of(page, 0) == count_lines(BEFORE[0], strength=2)
    assert lines_of(page, 1) == count_lines(AFTER[0], strength=2)
    expect(page.locator(".legend:visible")).to_have_count(1)
    menu.select_option("")
    expect(page.locator(".head-view")).to_have_count(1)
    assert state(page) == {}


def number(text: str) -> float:
    return float(text.split()[0].replace("\u202f%", "").replace("−", "-").replace("±", ""))


def test_the_second_card_has_the_difference_of_each_weight(open_page):
    page = open_page(*compared("layer=1&heads=2&query=1&key=5"))
    page.wait_for_selector(".cards:last-child dd")
    before, after = float(BEFORE[1, 2, 1, 5]), float(AFTER[1, 2, 1, 5])
    facts = card(page, 1).locator("dd").all_inner_texts()
    assert number(facts[0]) == pytest.approx(100 * before, abs=0.45)
    assert number(facts[1]) == pytest.approx(100 * (after - before), abs=0.85)
    expect(card(page, 1).locator("dt").first).to_have_text("before")
    page = open_page(*compared("layer=1&query=1"))
    page.wait_for_selector(".cards:last-child .change")
    change = (AFTER[1, :, 1] - BEFORE[1, :, 1]).mean(0)
    bars = card(page, 1).locator(".bar:not(.rest)")
    assert bars.count() == 5
    for i in range(5):
        key = int(bars.nth(i).locator(".name").inner_text().removeprefix("t"))
        shown = number(bars.nth(i).locator(".change").inner_text())
        assert shown == pytest.approx(100 * change[key], abs=0.85)
    assert card(page, 0).locator(".change").count() == 0
    page = open_page(*compared("layer=0&query=1&key=3"))
    page.wait_for_selector(".cards:last-child .change")
    each = [number(text) for text in card(page, 1).locator(".change").all_inner_texts()]
    assert each == pytest.approx(list(100 * (AFTER - BEFORE)[0, :, 1, 3]), abs=0.85)


def test_what_is_pointed_at_chosen_or_walked_to_in_one_is_so_in_the_other(open_page):
    page = open_page(*compared("layer=1&heads=2"))
    picture(page, 0).locator(".key .token").nth(2).hover()
    for i, probs in enumerate((BEFORE, AFTER)):
        assert lines_of(page, i, "upper") == count_lines(probs[1, 2, :, 2], strength=3)
        expect(card(page, i)).to_contain_text("t2 is looked at by")
    page.mouse.move(5, 5)
    expect(page.locator(".upper:visible")).to_have_count(0)
    picture(page, 1).locator(".query .token").nth(4).click()
    for i, probs in enumerate((BEFORE, AFTER)):
        expect(picture(page, i).locator(".query .token.kept")).to_have_text("t4")
        for key, weight in weights_of(page, i).items():
            assert weight == pytest.approx(probs[1, 2, 4, key], abs=4e-3)
    press(page, "ArrowDown", "ArrowLeft")
    assert state(page) == {"beside": "1", "heads": "2", "query": "5"}
    expect(picture(page, 1).locator(".query .token").nth(5)).to_be_focused()
    press(page, "Escape")
    assert "query" not in state(page)
    text(page).select_option("1")
    expect(page.locator(".picture .which")).to_have_text(["after", "before"])
    assert state(page) == {"beside": "0", "example": "1", "heads": "2"}
