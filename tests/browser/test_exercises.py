"""One exercise of the live page, played by keyboard; its numbers: tests/live/test_exercises.py."""

import re

from browser.head_view import Open
from live import exercise_numbers as numbers
from playwright.sync_api import Page, expect

import minibert

BEGUN = "#live-question:not(:text-is('…'))"


def guess(page: Page, value: str) -> None:
    page.get_by_label("Your guess", exact=True).fill(value)
    page.keyboard.press("Enter")


def test_an_exercise_is_played_by_keyboard_and_stands_in_the_address(
    bert: minibert.Model, bert_page: str, open_page: Open
) -> None:
    expected = numbers.one_weight(bert)
    page = open_page(bert_page, "", ready="[data-drawn]")
    opener = page.get_by_role("button", name="Exercises", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    assert opener.get_attribute("aria-expanded") == "true"
    expect(page).to_have_url(re.compile("exercise=1&step=1$"))
    text = page.get_by_role("textbox", name="Text", exact=True)
    for wrong in ("", "much", "9.2, or so"):
        guess(page, wrong)
        assert page.locator(".live-result").inner_text() == "Type a number first."
    # Before a guess no number of the model is shown, and the page runs what it ran.
    begun = text.input_value()
    assert page.locator("[data-numbers]").count() == 0
    guess(page, f"{expected['score']:.2f}".replace(".", ","))
    page.wait_for_selector("[data-right=true]")
    page.wait_for_selector("#page[aria-busy=false]")
    assert text.input_value() == "the horse quickly ran away" != begun
    for right in ("weight", "unscaled", "equal"):
        page.keyboard.press("Enter")
        page.wait_for_selector(BEGUN)
        guess(page, f"{expected[right]:.3f}")
        page.wait_for_selector("[data-right=true]", timeout=60_000)
        page.wait_for_selector("#page[aria-busy=false]")
    expect(page).to_have_url(re.compile("exercise=1&step=4$"))
    # All scores of a row are zero: the page makes the change that the step is about.
    assert page.locator(".live-changes li").inner_text().startswith("Scores of layer 0, head 2")
    page.keyboard.press("Enter")
    page.get_by_label("Your guess", exact=True).select_option("were")
    page.get_by_role("button", name="Commit the guess").click()
    page.wait_for_selector("[data-right=false]", timeout=60_000)
    assert "You said “were”; it is “was”." in page.locator(".live-result").inner_text()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("exercise=2&step=1$"))
