"""The head view: what is drawn, what tokens show, its controls, its keys, and its address."""

import numpy as np
import pytest
from attention_pages import softmax
from browser.conftest import BROWSER
from browser.head_view import (
    B_START,
    BLUE,
    GREEN,
    ORANGE,
    TOKENS,
    N,
    count_lines,
    drawn_attention,
    has_color,
    kept,
    lines,
    pair_page,
    pixel,
    press,
    state,
    token,
    until,
    weights_shown,
)
from playwright.sync_api import Locator, Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser

WEIGHTS = drawn_attention()
segments = np.array([0] * B_START + [1] * (N - B_START))
special = np.array([name.startswith("[") for name in TOKENS])


def tile(page: Page, head: int) -> Locator:
    return page.get_by_role("button", name=f"Head {head}", exact=True)


def heads_on(page: Page) -> list[int]:
    return page.evaluate(
        "[...document.querySelectorAll('.tile[aria-pressed=true]')].map((t) => +t.textContent)"
    )


def darkness(page: Page) -> bool:
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return int(background.split("(")[1].split(",")[0]) < 128


def test_says_what_is_shown_and_draws_each_weight_that_can_be_seen(open_page):
    page = open_page(pair_page())
    assert page.title() == "strawberries / rain falls · attention in drawn"
    expect(page.locator(".text")).to_have_text(["Astrawberries", "Brain falls"])
    expect(page.locator(".sizes")).to_have_text("drawn · 2 layers of 3 heads · 7 tokens")
    expect(page.locator(".captions")).to_contain_text("the token that looks query")
    expect(page.locator(".legend")).to_contain_text("A line is one attention weight")
    expect(page.locator(".legend")).not_to_contain_text("reads in one direction")
    for side in ("query", "key"):
        expect(page.locator(f".{side} .token .chip")).to_have_text(TOKENS)
    assert lines(page) == count_lines(WEIGHTS[0], strength=2) == 3 * N
    page = open_page(pair_page(title="Two sentences"), "layer=1")
    assert page.title().startswith("Two sentences")
    assert lines(page) == count_lines(WEIGHTS[1], strength=2)
    probs = softmax((1, 2, N, N), causal=True)
    page = open_page(attention_page(probs, list("abcdefg")).html)
    assert lines(page) == count_lines(probs[0], strength=3)
    expect(page.locator(".legend")).to_contain_text("reads in one direction")
    assert page.get_by_role("button", name="All tokens").count() == 0


def test_each_head_draws_its_own_weights_in_its_own_color(open_page):
    page = open_page(pair_page(), "heads=0")
    assert all(has_color(pixel(page, i, i), BLUE) for i in range(N))
    assert pixel(page, 1, 2)[3] == 0
    page = open_page(pair_page(), "heads=1")
    assert all(has_color(pixel(page, i, i + 1), ORANGE) for i in range(N - 1))
    page = open_page(pair_page(), "heads=2")
    assert all(has_color(pixel(page, i, 0), GREEN) for i in range(N))
    probs = np.tile(np.array([0.5, 0.3, 0.15, 0.04, 0.01]), (1, 1, 5, 1))
    page = open_page(attention_page(probs, list("abcde")).html, "query=0")
    alphas = [pixel(page, 0, key, "upper")[3] for key in range(5)]
    assert alphas == sorted(set(alphas), reverse=True)
    assert alphas[-1] > 0


@pytest.mark.parametrize(
    ("side", "index", "said"), [("query", 1, "straw looks at"), ("key", 4, "rain is looked at by")]
)
def test_pointing_at_a_token_shows_its_own_lines_and_weights(open_page, side, index, said):
    page = open_page(pair_page(), "layer=1&heads=1")
    probs = WEIGHTS[1, 1]
    row, other = (probs[index], "key") if side == "query" else (probs[:, index], "query")
    token(page, side, index).hover()
    assert lines(page, "upper") == count_lines(row, strength=3)
    expect(page.locator(".lower")).to_be_hidden()
    expect(page.locator(".details")).to_contain_text(said)
    shown = weights_shown(page, other)
    largest = [int(i) for i in np.argsort(-row)[:5] if row[i] >= 0.01]
    assert set(largest) <= set(shown)
    for i, weight in shown.items():
        assert weight == pytest.approx(row[i], abs=4e-3)
    for i in largest:
        text = token(page, other, i).locator(".weight").inner_text()
        assert text == f"{100 * shown[i]:.1f}\u202f%"
        shade = token(page, other, i).evaluate("(row) => getComputedStyle(row).backgroundImage")
        assert shade.startswith("linear-gradient(90deg, rgba(206, 85, 9")
    page.mouse.move(5, 5)
    expect(page.locator(".lower")).to_be_visible()
    expect(page.locator(".upper")).to_be_hidden()
    assert weights_shown(page, other) == {}


def tap(item: Locator) -> None:
    """A tap; in Firefox, where Playwright's does nothing, a click."""
    if BROWSER == "chromium":
        return item.tap()
    item.click()
    item.page.mouse.move(5, 5)


def double_click(item: Locator) -> None:
    """Two clicks; Firefox makes no double one of what Playwright asks for in two commands."""
    item.dblclick()
    if BROWSER != "chromium":
        item.dispatch_event("dblclick")


def test_a_click_or_a_tap_keeps_a_token_and_another_lets_it_go(open_page):
    page = open_page(pair_page())
    token(page, "query", 4).click()
    page.mouse.move(5, 5)
    assert (kept(page), state(page)) == ([("query", 4)], {"query": "4"})
    assert lines(page, "upper") == 3
    token(page, "query", 5).click()
    assert kept(page) == [("query", 5)]
    token(page, "query", 5).click()
    assert (kept(page), state(page)) == ([], {})
    page = open_page(pair_page(), has_touch=True, viewport={"width": 420, "height": 800})
    tap(token(page, "key", 5))
    assert kept(page) == [("key", 5)]
    expect(page.locator(".upper")).to_be_visible()
    tap(token(page, "key", 5))
    assert kept(page) == []
    expect(page.locator(".upper")).to_be_hidden()


def test_a_pair_of_tokens_shows_one_weight_with_its_rounding(open_page):
    page = open_page(pair_page(), "layer=1&heads=2")
    token(page, "query", 1).click()
    token(page, "key", 5).click()
    assert state(page) == {"layer": "1", "heads": "2", "query": "1", "key": "5"}
    weight = float(WEIGHTS[1, 2, 1, 5])
    details = page.locator(".details")
    for text in ("Layer 1, head 2", "straw looks at falls", "token 5", "rounded to 0.4\u202f%"):
        expect(details).to_contain_text(text)
    shown = float(details.locator("data.big").get_attribute("value") or "nan")
    assert shown == pytest.approx(weight, abs=4e-3)
    _, low, _, high, *_ = details.locator(".between").inner_text().replace("\u202f", " ").split()
    assert float(low) <= 100 * weight <= float(high)
    page = open_page(pair_page(), "heads=2.0&query=4&key=4")
    chosen, faded = (
        max((pixel(page, 4, key, "upper", by) for by in range(-3, 4)), key=lambda found: found[3])
        for key in (4, 0)
    )
    assert has_color(chosen, BLUE)
    assert 0 < faded[3] < 120


def test_tiles_switch_heads_and_a_long_text_begins_with_one(open_page):
    page = open_page(pair_page())
    tile(page, 0).click()
    assert (heads_on(page), state(page), lines(page)) == ([1, 2], {"heads": "1.2"}, 2 * N)
    tile(page, 2).click()
    tile(page, 1).click()
    assert (heads_on(page), state(page), lines(page)) == ([], {"heads": "none"}, 0)
    page.get_by_role("button", name="All heads").click()
    assert heads_on(page) == [0, 1, 2]
    for alone in (double_click, lambda one: one.click(modifiers=["Shift"])):
        alone(tile(page, 2))
        assert heads_on(page) == [2]
        alone(tile(page, 2))
        assert heads_on(page) == [0, 1, 2]
    page = open_page(attention_page(softmax((2, 3, 201, 201)), ["a"] * 201).html)
    assert heads_on(page) == [0]
    expect(page.get_by_text("1 of 3 on")).to_be_visible()
    page.get_by_role("button", name="All heads").click()
    expect(page.get_by_text("3 of 3 on")).to_be_visible()
    assert state(page)["heads"] == "0.1.2"


def test_the_sentence_filter_draws_only_its_block(open_page):
    page = open_page(pair_page(), "layer=1&heads=0")
    probs = WEIGHTS[1, 0]
    for label, query, key in (("A→A", 0, 0), ("A→B", 0, 1), ("B→A", 1, 0), ("B→B", 1, 1)):
        page.get_by_role("button", name=label.replace("→", " to sentence ")).click()
        shown = np.outer(segments == query, segments == key)
        assert lines(page) == count_lines(probs, strength=3, shown=shown)
        assert state(page)["filter"] == label.lower().replace("→", "")
        assert page.locator(".query .token.out").count() == int((segments != query).sum())
        token(page, "query", 1 if query == 0 else 5).hover()
        row = probs[1 if query == 0 else 5]
        assert lines(page, "upper") == count_lines(row, strength=3, shown=segments == key)
        page.mouse.move(5, 5)
        page.get_by_role("button", name="All tokens").click()
        assert lines(page) == count_lines(probs, strength=3)
    page = open_page(pair_page(), "heads=1&filter=ab")
    assert has_color(pixel(page, 3, 4), ORANGE)
    assert not any(pixel(page, i, i + 1)[3] for i in (0, 1, 2, 4, 5))


def test_small_weights_and_special_tokens_can_be_left_out(open_page):
    page = open_page(pair_page(), "layer=1&heads=0&query=5")
    page.get_by_label("Hide weights below").and_(page.locator("input")).focus()
    press(page, *["ArrowRight"] * 7)
    expect(page.locator(".toolbar output")).to_have_text("10\u202f%")
    assert state(page)["min"] == "10"
    assert lines(page) == count_lines(WEIGHTS[1, 0], strength=3, minimum=0.1)
    inked = [pixel(page, 5, key, "upper")[3] > 0 for key in range(N)]
    assert inked == [weight >= 0.1 for weight in WEIGHTS[1, 0, 5]]
    page = open_page(pair_page(), "heads=0")
    page.get_by_label("take part").uncheck()
    assert state(page)["special"] == "off"
    page.wait_for_selector(".lower[data-drawn]")
    assert [pixel(page, i, i)[3] > 0 for i in range(N)] == list(~special)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_chosen(open_page, scheme):
    page = open_page(pair_page(), "heads=0", color_scheme=scheme)
    assert darkness(page) == (scheme == "dark")
    before = pixel(page, 2, 2)
    page.locator(".theme").click()
    assert darkness(page) == (scheme == "light")
    assert state(page)["theme"] == ("light" if scheme == "dark" else "dark")
    assert pixel(page, 2, 2) != before


def test_arrows_change_the_layer_and_walk_along_the_tokens(open_page):
    page = open_page(pair_page())
    press(page, "ArrowRight")
    page.wait_for_selector(".stage[data-layer='1'] .lower[data-drawn]")
    press(page, "ArrowLeft", "ArrowLeft")
    page.wait_for_selector(".stage[data-layer='0'] .lower[data-drawn]")
    token(page, "query", 0).focus()
    assert lines(page, "upper") == 3
    press(page, "ArrowUp", "ArrowDown", "ArrowDown")
    expect(page.locator(".details")).to_contain_text("##berries looks at")
    assert kept(page) == []
    for side in ("query", "key"):
        assert page.locator(f".{side} .token[tabindex='0']").count() == 1
    press(page, "Enter", "ArrowUp")
    assert kept(page) == [("query", 1)]
    press(page, "Tab", "ArrowDown", "Space")
    assert kept(page) == [("query", 1), ("key", 1)]
    press(page, "Escape")
    assert kept(page) == [("query", 1)]
    press(page, "Escape")
    assert kept(page) == []
    press(page, "Escape")
    expect(page.locator(".upper")).to_be_hidden()
    page = open_page(pair_page(), "key=6")
    token(page, "key", 6).focus()
    press(page, "ArrowDown")
    assert kept(page) == [("key", 6)]


def test_the_address_holds_the_whole_state(open_page):
    address = "layer=1&heads=0.2&query=1&key=5&from=key&filter=ab&min=5&special=off&theme=dark"
    page = open_page(pair_page(), address)
    assert page.evaluate("location.hash.slice(1)") == address
    assert page.locator(".stage").get_attribute("data-layer") == "1"
    assert (heads_on(page), kept(page)) == ([0, 2], [("query", 1), ("key", 5)])
    assert page.locator("[aria-pressed=true]", has_text="A→B").count() == 1
    expect(page.locator(".toolbar output")).to_have_text("5\u202f%")
    assert not page.get_by_label("take part").is_checked()
    assert darkness(page)
    page.evaluate("location.hash = 'heads=1&key=3'")
    until(page, "document.querySelectorAll('.token.kept').length === 1")
    assert (heads_on(page), kept(page)) == ([1], [("key", 3)])
    page = open_page(pair_page(), "layer=99&heads=7.x.-1&query=1e1&key=%00&theme=<b>&%E0%A4%A&=&&")
    assert (state(page), lines(page), kept(page)) == ({}, 3 * N, [])
