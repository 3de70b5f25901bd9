"""The controls: layer, heads, sentences, threshold, special tokens, colours, keys, address."""

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import (
    B_START,
    BLUE,
    GREEN,
    ORANGE,
    TOKENS,
    N,
    Open,
    count_lines,
    drawn_attention,
    has_color,
    kept,
    lines,
    pair_page,
    pixel,
    state,
    token,
    until,
)
from playwright.sync_api import Locator, Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser

segments = np.array([0] * B_START + [1] * (N - B_START))
special = np.array([name.startswith("[") for name in TOKENS])


def tile(page: Page, head: int) -> Locator:
    return page.get_by_role("button", name=f"Head {head}", exact=True)


def heads_on(page: Page) -> list[int]:
    return page.evaluate(
        "[...document.querySelectorAll('.tile[aria-pressed=true]')].map((t) => +t.textContent)"
    )


def drawn_layer(page: Page) -> int:
    return int(page.locator(".stage").get_attribute("data-layer") or -1)


def test_the_layer_menu_and_its_buttons_change_the_layer(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=0")
    assert has_color(pixel(page, 3, 3), BLUE)
    page.get_by_label("Layer", exact=True).and_(page.locator("select")).select_option("1")
    page.wait_for_selector(".stage[data-layer='1'] .lower[data-drawn]")
    assert state(page)["layer"] == "1"
    assert lines(page) == count_lines(drawn_attention()[1, 0], strength=3)
    assert page.get_by_role("button", name="Next layer").is_disabled()
    page.get_by_role("button", name="Previous layer").click()
    page.wait_for_selector(".stage[data-layer='0'] .lower[data-drawn]")
    assert "layer" not in state(page)
    assert has_color(pixel(page, 3, 3), BLUE)
    assert page.get_by_role("button", name="Previous layer").is_disabled()


def test_a_page_of_some_layers_and_heads_keeps_their_numbers_and_colors(open_page: Open) -> None:
    probs = softmax((5, 13, N, N))
    probs[4, 1] = np.eye(N)
    html = attention_page(probs, TOKENS, layers=[2, 4], heads=[1, 12]).html
    page = open_page(html, "layer=4&heads=1")
    layers = page.get_by_label("Layer", exact=True).and_(page.locator("select"))
    assert layers.locator("option").all_inner_texts() == ["2", "4"]
    assert page.locator(".tile").all_inner_texts() == ["1", "12"]
    assert has_color(pixel(page, 2, 2), ORANGE)


def test_a_click_on_a_tile_switches_its_head(open_page: Open) -> None:
    page = open_page(pair_page())
    tile(page, 0).click()
    assert heads_on(page) == [1, 2]
    assert state(page) == {"heads": "1.2"}
    assert lines(page) == 2 * N
    tile(page, 2).click()
    assert all(has_color(pixel(page, i, i + 1), ORANGE) for i in range(N - 1))
    tile(page, 1).click()
    assert heads_on(page) == []
    assert state(page) == {"heads": "none"}
    assert lines(page) == 0
    page.get_by_role("button", name="All heads").click()
    assert heads_on(page) == [0, 1, 2]


def test_a_double_click_leaves_one_head_and_another_brings_back_all(open_page: Open) -> None:
    page = open_page(pair_page())
    for alone in (
        lambda: tile(page, 2).dblclick(),
        lambda: tile(page, 2).click(modifiers=["Shift"]),
    ):
        alone()
        assert heads_on(page) == [2]
        assert has_color(pixel(page, 4, 0), GREEN)
        assert pixel(page, 6, 6)[3] == 0
        alone()
        assert heads_on(page) == [0, 1, 2]


def test_a_long_text_begins_with_one_head_and_all_are_a_click_away(open_page: Open) -> None:
    attention = softmax((2, 3, 201, 201))
    page = open_page(attention_page(attention, ["a"] * 201).html)
    assert heads_on(page) == [0]
    assert "heads" not in state(page)
    expect(page.get_by_text("1 of 3 on")).to_be_visible()
    page.get_by_role("button", name="All heads").click()
    expect(page.get_by_text("3 of 3 on")).to_be_visible()
    assert heads_on(page) == [0, 1, 2]
    assert state(page)["heads"] == "0.1.2"


def test_the_sentence_filter_draws_only_its_block(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=0")
    probs = drawn_attention()[1, 0]
    for label, query, key in (("A→A", 0, 0), ("A→B", 0, 1), ("B→A", 1, 0), ("B→B", 1, 1)):
        page.get_by_role("button", name=label.replace("→", " to sentence ")).click()
        shown = np.outer(segments == query, segments == key)
        assert lines(page) == count_lines(probs, strength=3, shown=shown)
        assert state(page)["filter"] == label.lower().replace("→", "")
        outside = page.locator(".query .token.out").count()
        assert outside == int((segments != query).sum())
        token(page, "query", 1 if query == 0 else 5).hover()
        row = probs[1 if query == 0 else 5]
        assert lines(page, "upper") == count_lines(row, strength=3, shown=segments == key)
        page.mouse.move(5, 5)
        page.get_by_role("button", name="All tokens").click()
        assert lines(page) == count_lines(probs, strength=3)


def test_the_one_line_from_sentence_to_sentence_is_left_by_the_filter(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=1&filter=ab")
    assert has_color(pixel(page, 3, 4), ORANGE)
    assert not any(pixel(page, i, i + 1)[3] for i in (0, 1, 2, 4, 5))
    assert lines(page) == 1


def test_one_text_has_no_sentence_filter(open_page: Open) -> None:
    page = open_page(attention_page(drawn_attention(), TOKENS).html)
    assert page.get_by_role("button", name="All tokens").count() == 0


def test_the_threshold_hides_smaller_weights(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=0")
    slider = page.get_by_label("Hide weights below").and_(page.locator("input"))
    slider.focus()
    for _ in range(7):
        slider.press("ArrowRight")
    expect(page.locator(".toolbar output")).to_have_text("10\u202f%")
    assert state(page)["min"] == "10"
    assert lines(page) == count_lines(drawn_attention()[1, 0], strength=3, minimum=0.1)
    assert state(page)["layer"] == "1"


def test_a_weight_below_the_threshold_leaves_no_ink(open_page: Open) -> None:
    row = drawn_attention()[1, 0, 5]
    for minimum in (0, 10):
        page = open_page(pair_page(), f"layer=1&heads=0&query=5&min={minimum}")
        for key, weight in enumerate(row):
            inked = pixel(page, 5, key, "upper")[3] > 0
            assert inked == (weight >= 0.1 if minimum else weight >= 0.002), (key, weight)


def test_special_tokens_can_be_left_out(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=0")
    page.get_by_label("take part").uncheck()
    assert state(page)["special"] == "off"
    shown = np.outer(~special, ~special)
    assert lines(page) == count_lines(drawn_attention()[1, 0], strength=3, shown=shown)
    page = open_page(pair_page(), "heads=0&special=off")
    assert [pixel(page, i, i)[3] > 0 for i in range(N)] == list(~special)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_chosen(open_page: Open, scheme: str) -> None:
    page = open_page(pair_page(), "heads=0", color_scheme=scheme)
    assert darkness(page) == (scheme == "dark")
    before = pixel(page, 2, 2)
    page.locator(".theme").click()
    assert darkness(page) == (scheme == "light")
    assert state(page)["theme"] == ("light" if scheme == "dark" else "dark")
    assert pixel(page, 2, 2) != before


def darkness(page: Page) -> bool:
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return int(background.split("(")[1].split(",")[0]) < 128


def test_arrows_change_the_layer_and_walk_along_the_tokens(open_page: Open) -> None:
    page = open_page(pair_page())
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".stage[data-layer='1'] .lower[data-drawn]")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".stage[data-layer='0'] .lower[data-drawn]")
    page.keyboard.press("ArrowLeft")
    assert drawn_layer(page) == 0
    token(page, "query", 0).focus()
    assert lines(page, "upper") == 3
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".details")).to_contain_text("##berries looks at")
    assert kept(page) == []
    page.keyboard.press("Enter")
    assert kept(page) == [("query", 2)]
    page.keyboard.press("ArrowUp")
    assert kept(page) == [("query", 1)]
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert kept(page) == [("query", 1), ("key", 1)]
    page.keyboard.press("Escape")
    assert kept(page) == [("query", 1)]
    page.keyboard.press("Escape")
    assert kept(page) == []
    page.keyboard.press("Escape")
    expect(page.locator(".lower")).to_be_visible()
    expect(page.locator(".upper")).to_be_hidden()


def test_arrows_stop_at_the_first_and_the_last_token(open_page: Open) -> None:
    page = open_page(pair_page(), "key=6")
    token(page, "key", 6).focus()
    page.keyboard.press("ArrowDown")
    assert kept(page) == [("key", 6)]
    page = open_page(pair_page(), "query=0")
    page.keyboard.press("ArrowUp")
    assert kept(page) == [("query", 0)]


def test_only_one_token_of_a_column_is_in_the_tab_order(open_page: Open) -> None:
    page = open_page(pair_page())
    token(page, "query", 0).focus()
    page.keyboard.press("ArrowDown")
    for side in ("query", "key"):
        assert page.locator(f".{side} .token[tabindex='0']").count() == 1


def test_the_address_holds_the_whole_state(open_page: Open) -> None:
    address = "layer=1&heads=0.2&query=1&key=5&from=key&filter=ab&min=5&special=off&theme=dark"
    page = open_page(pair_page(), address)
    assert page.evaluate("location.hash.slice(1)") == address
    assert drawn_layer(page) == 1
    assert heads_on(page) == [0, 2]
    assert kept(page) == [("query", 1), ("key", 5)]
    assert page.locator("[aria-pressed=true]", has_text="A→B").count() == 1
    expect(page.locator(".toolbar output")).to_have_text("5\u202f%")
    assert not page.get_by_label("take part").is_checked()
    assert darkness(page)


def test_a_changed_address_changes_the_page(open_page: Open) -> None:
    page = open_page(pair_page())
    page.evaluate("location.hash = 'heads=1&key=3'")
    until(page, "document.querySelectorAll('.token.kept').length === 1")
    assert heads_on(page) == [1]
    assert kept(page) == [("key", 3)]
    assert lines(page, "upper") == 1


def test_an_address_that_asks_for_what_is_not_there_is_passed_over(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=99&heads=7.x.-1&query=1e1&key=%00&theme=<b>&%E0%A4%A&=&&")
    assert state(page) == {}
    assert lines(page) == 3 * N
    assert kept(page) == []
