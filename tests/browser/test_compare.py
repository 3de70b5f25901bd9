"""Two texts or traces side by side: one state, two pictures, and their difference."""

import pytest
from attention_pages import names, softmax
from browser.head_view import Open, count_lines, page_of, press, state, text_of, until
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

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


def test_another_text_can_be_put_beside_the_first(open_page: Open) -> None:
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


READY: list[tuple[str, str]] = [
    ("model", ".model-view[data-drawn]"),
    ("map", ".map-view[data-drawn]"),
]


@pytest.mark.parametrize(("view", "ready"), READY)
def test_every_view_can_be_compared(open_page: Open, view: str, ready: str) -> None:
    html, _ = compared()
    hash = f"view={view}&example=2&beside=0&layer=2&heads=4&query=12&key=12"
    page = open_page(html, hash, ready=ready)
    until(page, f"document.querySelectorAll('{ready}').length === 2")
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        until(page, f"document.documentElement.scrollWidth === {width}")
        first, second = (picture(page, i).bounding_box() for i in (0, 1))
        assert first is not None
        assert second is not None
        if width < 900:
            assert second["y"] >= first["y"] + first["height"]
        else:
            assert second["x"] >= first["x"] + first["width"]
    page.get_by_role("tab", name="Head").click()
    until(page, "document.querySelectorAll('.lower[data-drawn]').length === 2")


def test_the_second_card_has_the_difference_of_each_weight(open_page: Open) -> None:
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


def test_what_is_pointed_at_chosen_or_walked_to_in_one_is_so_in_the_other(open_page: Open) -> None:
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
    page.get_by_role("button", name="Text: after").click()
    expect(page.locator(".picture .which")).to_have_text(["after", "before"])
    assert state(page) == {"beside": "0", "example": "1", "heads": "2"}
