"""The live page in real browsers: what one types and changes, against the same in Python."""

import math
import re
from collections.abc import Callable

import pytest
from browser.live_pages import PLACE, TEXT, bars, cell, check_bars, field, probs_of, settled
from playwright.sync_api import Page

import minibert
from minibert.trace.edit import zero

# Counts the frames in which no drawn picture is seen.
WATCH = """() => {
  window.watched = { frames: 0, empty: 0 };
  const look = () => {
    watched.frames += 1;
    const picture = document.querySelector(".pictures:not(.arriving) .lower");
    watched.empty += Number(!picture?.matches("[data-drawn]"));
    requestAnimationFrame(look);
  };
  look();
}"""


def test_tokens_weights_and_prediction_follow_each_key(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    check_bars(page, "before", probs_of(bert.trace(TEXT), PLACE))
    field(page).press("End")
    page.evaluate(WATCH)
    page.keyboard.type(" It rained", delay=40)
    trace = bert.trace(text := f"{TEXT} It rained")
    settled(page)
    assert page.locator(".live-token").all_inner_texts() == list(trace.tokens.raw[0])
    check_bars(page, "before", probs_of(trace, PLACE))
    assert field(page).input_value() == text
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    assert page.evaluate("watched.frames") > 10
    assert page.evaluate("watched.empty") == 0
    page.locator(".live-token").nth(2).click()
    page.get_by_role("tab", name="Weights").click()
    settled(page)
    shown = page.locator(".live-weights output").all_inner_texts()
    weights = trace[0, 0].probs[0, 2].tolist()
    assert [float(one.split("\u202f")[0]) for one in shown] == pytest.approx(
        [100 * weight for weight in weights], abs=0.06
    )


def test_a_head_is_switched_off_and_on_again_by_keyboard_alone(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    cell(page, 0, 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    settled(page)
    assert cell(page, 0, 1).get_attribute("aria-pressed") == "true"
    after = bert.trace(TEXT, edit={("z", 0, 1): zero})
    check_bars(page, "before", probs_of(bert.trace(TEXT), PLACE))
    check_bars(page, "after", probs_of(after, PLACE))
    assert page.locator(".which").all_inner_texts()[:2] == ["Before", "After"]
    before = bert.trace(TEXT)
    moved = (after[1, 2].probs - before[1, 2].probs).abs().sum(-1).mean() / 2
    assert float(cell(page, 1, 2).get_attribute("data-value") or "nan") == pytest.approx(
        float(moved), abs=4e-3
    )
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0
    assert bars(page, "after") == {}
    assert page.locator("section.picture").count() == 0
    page.keyboard.press("Control+Shift+Z")
    settled(page)
    check_bars(page, "after", probs_of(after, PLACE))


def test_a_sweep_says_how_much_each_head_matters(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    page.wait_for_selector(".live-cell[data-value]")
    clean = probs_of(bert.trace(TEXT), PLACE)
    word = int(clean.argmax())
    for layer, head in ((0, 1), (1, 3), (3, 0)):
        without = probs_of(bert.trace(TEXT, edit={("z", layer, head): zero}), PLACE)
        shown = float(cell(page, layer, head).get_attribute("data-value") or "nan")
        assert shown == pytest.approx(math.log(without[word] / clean[word]), abs=1e-3)


def test_a_drawn_bar_sets_a_weight_and_scales_the_others(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "query=3&heads=2")
    page.get_by_role("tab", name="Weights").click()
    settled(page)
    before = bert.trace(TEXT)[0, 2].probs[0, 3]
    page.locator(".live-weights li[data-key='2'] input").fill("400")
    settled(page)
    shown = [float(one[:-2]) for one in page.locator(".live-weights output").all_inner_texts()]
    expected = before * (0.6 / (1 - before[2]))
    expected[2] = 0.4
    assert shown == pytest.approx((100 * expected).tolist(), abs=0.06)
    # One step, however often the bar was moved.
    page.locator(".live-weights li[data-key='2'] input").press("ArrowRight")
    page.get_by_role("button", name="this layer").click()
    page.locator(".live-weights li[data-key='4'] button").click()
    settled(page)
    assert "scores-hide-L0-P3-K4" in page.evaluate("location.hash")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0


def test_words_are_masked_tokens_hidden_and_changes_follow_their_tokens(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    page.locator(".live-token", has_text="tired").click()
    page.get_by_role("button", name="Mask this word").click()
    settled(page)
    text = "The boys [MASK] very [MASK]."
    assert field(page).input_value() == text
    page.get_by_role("button", name="Masked word 2").click()
    settled(page)
    check_bars(page, "before", probs_of(bert.trace(text), 5))
    page.locator(".live-token", has_text="boys").click()
    page.get_by_role("button", name="Hide this token").click()
    settled(page)
    assert "edits=scores-hide-K2" in page.evaluate("location.hash")
    field(page).press("Home")
    page.keyboard.type("Now ")
    settled(page)
    assert "edits=scores-hide-K3" in page.evaluate("location.hash")
    assert "hidden-token" in (
        page.locator(".live-token", has_text="boys").get_attribute("class") or ""
    )


def test_what_cannot_be_run_is_said_and_the_picture_stays(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    field(page).fill("")
    settled(page)
    assert "at least one word" in page.get_by_role("alert").first.inner_text()
    assert page.locator(".live-token").count() == 8
    field(page).fill("The boys")
    settled(page)
    assert not page.locator(".live-wrong").is_visible()
    assert "mask it" in page.locator(".live-prediction").inner_text()


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_window(
    bert_page: str, opened: Callable[..., Page], width: int
) -> None:
    long = "edits=z-zero-L0-H1&other=" + "a+rather+long+text+" * 6
    page = opened(bert_page, long, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("tab", name="Whole").click()
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_head_that_is_changed_says_so_and_nothing_has_no_name(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    cell(page, 2, 1).click()
    settled(page)
    assert cell(page, 2, 1).get_attribute("aria-pressed") == "true"
    nameless = page.locator(".live-top :is(button, input, textarea, select)").evaluate_all(
        "(all) => all.filter((one) => !(one.ariaLabel || one.textContent.trim())).length"
    )
    assert nameless == 0
    assert re.search("Layer 2, head 1, set to zero", cell(page, 2, 1).get_attribute("aria-label"))
