"""The picture: what is drawn, and what a token shows when pointed at, kept or paired."""

import re

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import (
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
    weights_shown,
)
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser


def test_says_which_model_which_text_and_which_side_looks(open_page: Open) -> None:
    page = open_page(pair_page())
    assert page.title() == "strawberries / rain falls · attention in drawn"
    expect(page.locator(".text")).to_have_text(["Astrawberries", "Brain falls"])
    expect(page.locator(".sizes")).to_have_text("drawn · 2 layers of 3 heads · 7 tokens")
    expect(page.locator(".captions")).to_contain_text("the token that looks query")
    expect(page.locator(".captions")).to_contain_text("where it looks key")
    expect(page.locator(".legend")).to_contain_text("A line is one attention weight")
    for side in ("query", "key"):
        expect(page.locator(f".{side} .token .chip")).to_have_text(TOKENS)


def test_special_tokens_are_quieter(open_page: Open) -> None:
    page = open_page(pair_page())
    colors = page.evaluate(
        "[...document.querySelectorAll('.query .token')].map((t) => getComputedStyle(t).color)"
    )
    assert colors[0] == colors[3] == colors[6]
    assert colors[1] == colors[2] == colors[4] == colors[5]
    assert colors[0] != colors[1]


def test_a_title_replaces_the_usual_one(open_page: Open) -> None:
    page = open_page(pair_page(title="Two sentences"))
    expect(page.locator("h1")).to_have_text("Two sentences")
    assert page.title().startswith("Two sentences")


def test_every_weight_that_can_be_seen_is_a_line(open_page: Open) -> None:
    page = open_page(pair_page())
    assert lines(page) == count_lines(drawn_attention()[0], strength=2) == 3 * N
    page = open_page(pair_page(), "layer=1")
    assert lines(page) == count_lines(drawn_attention()[1], strength=2)


def test_each_head_draws_its_own_weights_in_its_own_color(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=0")
    assert all(has_color(pixel(page, i, i), BLUE) for i in range(N))
    assert pixel(page, 1, 2)[3] == 0
    page = open_page(pair_page(), "heads=1")
    assert all(has_color(pixel(page, i, i + 1), ORANGE) for i in range(N - 1))
    assert has_color(pixel(page, N - 1, 0), ORANGE)
    page = open_page(pair_page(), "heads=2")
    assert all(has_color(pixel(page, i, 0), GREEN) for i in range(N))
    assert pixel(page, 6, 6)[3] == 0


def test_a_heavier_weight_makes_a_stronger_line(open_page: Open) -> None:
    probs = np.tile(np.array([0.5, 0.3, 0.15, 0.04, 0.01]), (1, 1, 5, 1))
    page = open_page(attention_page(probs, list("abcde")).html, "query=0")
    alphas = [pixel(page, 0, key, "upper")[3] for key in range(5)]
    assert alphas == sorted(set(alphas), reverse=True)
    assert alphas[-1] > 0


def test_lines_that_cross_add_up_as_layers_of_glass_do(open_page: Open) -> None:
    page = open_page(attention_page(np.full((1, 1, 5, 5), 0.2), list("abcde")).html)
    one = pixel(page, 0, 0)[3] / 255
    assert pixel(page, 0, 1)[3] / 255 == pytest.approx(1 - (1 - one) ** 2, abs=0.03)


def test_a_causal_model_draws_nothing_ahead_and_says_so(open_page: Open) -> None:
    probs = softmax((1, 2, N, N), causal=True)
    page = open_page(attention_page(probs, list("abcdefg")).html)
    assert lines(page) == count_lines(probs[0], strength=3)
    expect(page.locator(".legend")).to_contain_text("reads in one direction")
    page = open_page(pair_page())
    expect(page.locator(".legend")).not_to_contain_text("reads in one direction")


def test_pointing_at_a_token_on_the_left_shows_where_it_looks(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=1")
    probs = drawn_attention()[1, 1]
    token(page, "query", 1).hover()
    assert lines(page, "upper") == count_lines(probs[1], strength=3)
    assert pixel(page, 1, int(probs[1].argmax()), "upper")[3] > 60
    expect(page.locator(".lower")).to_be_hidden()
    check_weights(page, "key", probs[1])
    expect(page.locator(".details")).to_contain_text("straw looks at")
    page.mouse.move(5, 5)
    expect(page.locator(".lower")).to_be_visible()
    expect(page.locator(".upper")).to_be_hidden()
    assert weights_shown(page, "key") == {}


def test_pointing_at_a_token_on_the_right_shows_who_looks_at_it(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=1")
    probs = drawn_attention()[1, 1]
    token(page, "key", 4).hover()
    assert lines(page, "upper") == count_lines(probs[:, 4], strength=3)
    check_weights(page, "query", probs[:, 4])
    expect(page.locator(".details")).to_contain_text("rain is looked at by")


def check_weights(page: Page, side: str, expected: np.ndarray) -> None:
    """The five largest weights are written beside their tokens, and shaded by their size."""
    shown = weights_shown(page, side)
    largest = [i for i in np.argsort(-expected)[:5] if expected[i] >= 0.01]
    assert set(largest) <= set(shown)
    for i, weight in shown.items():
        assert weight == pytest.approx(expected[i], abs=4e-3)
    for i in largest:
        text = token(page, side, int(i)).locator(".weight").inner_text()
        assert text == f"{100 * shown[int(i)]:.1f}\u202f%"
        shade = token(page, side, int(i)).evaluate(
            "(item) => getComputedStyle(item).backgroundImage"
        )
        assert shade.startswith("linear-gradient(90deg, rgba(206, 85, 9")


def test_several_heads_are_averaged_and_shaded_in_a_band_each(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1")
    token(page, "query", 5).hover()
    mean = drawn_attention()[1, :, 5].mean(0)
    for i, weight in weights_shown(page, "key").items():
        assert weight == pytest.approx(mean[i], abs=4e-3)
    expect(page.locator(".details")).to_contain_text("Layer 1, mean of 3 heads")
    shade = token(page, "key", int(mean.argmax())).evaluate(
        "(item) => getComputedStyle(item).backgroundImage"
    )
    assert len(set(re.findall(r"rgba\([^)]*\)", shade))) == 3


def test_a_click_keeps_a_token_and_another_lets_it_go(open_page: Open) -> None:
    page = open_page(pair_page())
    token(page, "query", 4).click()
    page.mouse.move(5, 5)
    assert kept(page) == [("query", 4)]
    assert state(page) == {"query": "4"}
    assert lines(page, "upper") == 3
    expect(page.locator(".lower")).to_be_hidden()
    token(page, "query", 5).click()
    assert kept(page) == [("query", 5)]
    token(page, "query", 5).click()
    assert kept(page) == []
    assert state(page) == {}


def test_a_tap_keeps_a_token_and_another_lets_it_go(open_page: Open) -> None:
    page = open_page(pair_page(), has_touch=True, viewport={"width": 420, "height": 800})
    token(page, "key", 5).tap()
    assert kept(page) == [("key", 5)]
    expect(page.locator(".upper")).to_be_visible()
    token(page, "key", 5).tap()
    assert kept(page) == []
    expect(page.locator(".upper")).to_be_hidden()


def test_a_pair_of_tokens_shows_one_weight_with_its_rounding(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&heads=2")
    token(page, "query", 1).click()
    token(page, "key", 5).click()
    assert state(page) == {"layer": "1", "heads": "2", "query": "1", "key": "5"}
    weight = float(drawn_attention()[1, 2, 1, 5])
    details = page.locator(".details")
    for text in ("Layer 1, head 2", "straw looks at falls", "token 1", "token 5"):
        expect(details).to_contain_text(text)
    expect(details).to_contain_text("rounded to 0.4\u202f%")
    shown = float(details.locator("data.big").get_attribute("value") or "nan")
    assert shown == pytest.approx(weight, abs=4e-3)
    low, high = between(details.locator(".between").inner_text())
    assert low <= 100 * weight <= high


def between(text: str) -> tuple[float, float]:
    """The bounds in 'between 3.1 and 3.4 %'."""
    _, low, _, high, *_ = text.replace("\u202f", " ").split()
    return float(low), float(high)


def test_a_pair_in_several_heads_lists_each(open_page: Open) -> None:
    page = open_page(pair_page(), "layer=1&query=1&key=5")
    values = page.locator(".details .bar data").evaluate_all("(all) => all.map((d) => +d.value)")
    np.testing.assert_allclose(values, drawn_attention()[1, :, 1, 5], atol=4e-3)


def test_the_chosen_weight_stands_out_among_the_faded_ones(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=2.0&query=4&key=4")
    assert has_color(pixel_near(page, 4, 4), BLUE)
    faded = pixel_near(page, 4, 0)
    assert 0 < faded[3] < 120


def pixel_near(page: Page, query: int, key: int) -> tuple[int, int, int, int]:
    """The strongest pixel of the upper sheet within three pixels of a line between two tokens."""
    return max(
        (pixel(page, query, key, "upper", offset) for offset in range(-3, 4)),
        key=lambda found: found[3],
    )


def test_a_click_on_a_line_chooses_its_weight(open_page: Open) -> None:
    page = open_page(pair_page(), "heads=1")
    room = page.locator(".between-columns").bounding_box()
    ends = [token(page, "query", 1).bounding_box(), token(page, "key", 2).bounding_box()]
    assert room
    y = sum(end["y"] + end["height"] / 2 for end in ends if end) / 2
    page.mouse.click(room["x"] + room["width"] / 2, y)
    assert state(page) == {"heads": "1", "query": "1", "key": "2"}
    page.mouse.click(room["x"] + room["width"] / 2, room["y"] + 2)
    assert state(page) == {"heads": "1"}
