"""The story in real browsers: by keyboard, at an address, and with its picture always in sight."""

import re

import pytest
from browser.test_live import NARROW, WIDE, check
from live import exercise_numbers as numbers
from playwright.sync_api import Page, expect

from minibert.viz.live import story_page

MEGABYTES = 9


@pytest.fixture(scope="session")
def story(bert, gpt2):
    page = story_page(bert, gpt2)
    assert page.size <= MEGABYTES * 1e6
    return page.html


def arrived(page: Page, number: int) -> None:
    """The page when a step is here, asks its question, and is drawn."""
    page.wait_for_selector(f"#step-{number}[data-here]")
    expect(page).to_have_url(re.compile(f"#step={number}$"), timeout=30_000)
    page.wait_for_selector("#page[aria-busy=false]")
    page.wait_for_timeout(60)
    assert "…" not in page.locator(f"#step-{number} .story-question").inner_text()


def guess(page: Page, number: int, value: str) -> str:
    """What the step says of a guess."""
    field = page.locator(f"#step-{number} [aria-describedby]")
    if field.evaluate("(one) => one.tagName") == "SELECT":
        field.select_option(value or None, index=None if value else 1)
        page.locator(f"#step-{number} [type=submit]").click()
    else:
        field.fill(value or "1")
        field.press("Enter")
    page.wait_for_selector(f"#step-{number} [data-right]", timeout=60_000)
    page.wait_for_selector("#page[aria-busy=false]")
    return page.locator(f"#step-{number} .story-result").inner_text()


def test_the_story_is_played_by_keyboard_and_stands_in_the_address(bert, story, open_page):
    page = open_page(story, "step=10", ready="[data-drawn]")
    arrived(page, 10)
    expected = numbers.one_weight(bert)
    field = page.locator("#step-10 input")
    for wrong in ("", "much", "9.2, or so"):
        field.fill(wrong)
        field.press("Enter")
        assert page.locator("#step-10 .story-result").inner_text() == "Type a number first."
    assert page.locator("[data-numbers]").count() == 0
    for number, name in enumerate(("score", "weight", "unscaled", "equal"), 10):
        said = guess(page, number, f"{expected[name]:.3f}".replace(".", ","))
        assert "Right, within 0.0" in said
        if name == "score":
            one, other, product = map(
                float, re.findall(r"([\d.]+) · ([\d.]+) = ([\d.]+)\.", said)[0]
            )
            assert product == round(one * other, 4)
        # The button that leads on has the keyboard.
        page.keyboard.press("Enter")
        arrived(page, number + 1)
    assert "You said “were”; it is “was”." in guess(page, 14, "were")
    # In a menu p would be a letter.
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("p")
    arrived(page, 13)
    # What was revealed is there again, and its picture: all scores of a row are zero.
    assert page.locator("#step-13 [data-right=true]").count() == 1
    assert page.locator(".which").all_inner_texts()[:2] == ["Before", "After"]
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    arrived(page, 14)
    assert page.locator(".story-words p").count() == 2


def test_an_address_without_a_step_opens_the_nearest_or_the_first(story, open_page):
    page = open_page(story, "step=7.5", ready="[data-drawn]")
    for address, number in (
        ("", 1),
        ("26", 25),
        ("0", 1),
        ("99", 25),
        ("-1", 1),
        ("26", 25),
        ("x", 1),
    ):
        if address:
            page.evaluate(f"location.hash = 'step={address}'")
        arrived(page, number)


def test_a_window_that_becomes_narrow_or_wide_keeps_its_step(story, open_page):
    page = open_page(story, "step=9", ready="[data-drawn]")
    arrived(page, 9)
    page.evaluate("document.activeElement.blur()")
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(500)
        arrived(page, 9)
        top = "document.getElementById('step-9').getBoundingClientRect().top"
        assert 0 <= page.evaluate(top) < 440


def test_n_and_p_lead_through_all_steps_however_fast(story, open_page):
    page = open_page(story, "step=1", ready="[data-drawn]")
    # The last step has a field for text, in which p is a letter.
    for key, last in (("n", 24), ("p", 1)):
        for _ in range(23):
            page.keyboard.press(key)
            page.wait_for_timeout(80)
        arrived(page, last)
        sight = "(id) => Math.abs(document.getElementById(id).getBoundingClientRect().top) < 200"
        page.wait_for_function(sight, arg=f"step-{last}", timeout=3000)


def test_the_story_ends_with_the_words_of_either_model_for_a_text_of_one_s_own(
    bert, gpt2, story, open_page
):
    page = open_page(story, "step=25", ready="[data-drawn]")
    arrived(page, 25)
    for model, text, name in (
        (bert, "A [MASK] ran.", "tiny-bert"),
        (gpt2, "The king", "tiny-gpt2"),
    ):
        page.get_by_label("Your own text").fill(text)
        page.get_by_label("Which model").select_option(name)
        page.wait_for_selector("#page[aria-busy=false]")
        (best,) = model.predict(text, top=1)
        first = page.locator(".story-word").first
        expect(first).to_have_text(re.compile(re.escape(best.choices[0].label.strip())))
    page.get_by_label("Your own text").fill("")
    expect(page.locator("#step-25 [role=status]")).to_contain_text("at least one")


def test_at_every_step_the_picture_is_seen(story, open_page):
    width, height = NARROW[0]
    page = open_page(
        story, "", ready="[data-drawn]", viewport={"width": width, "height": height},
        reduced_motion="reduce",
    )  # fmt: skip
    for sizes, state in ((NARROW, "asked"), (WIDE, "asked"), (NARROW, "revealed")):
        page.set_viewport_size({"width": sizes[0][0], "height": sizes[0][1]})
        for number in range(1, 25):
            page.evaluate(f"location.hash = 'step={number}'")
            arrived(page, number)
            check(page, sizes, (number, state))
            if sizes is WIDE:
                guess(page, number, "")
                page.wait_for_timeout(60)
                check(page, sizes, (number, "revealed"))
            if state == "revealed":
                # The step is not behind its picture.
                work = page.locator(".work").bounding_box() or {}
                under, box = work["y"] + work["height"], page.locator(f"#step-{number}")
                assert under <= (box.bounding_box() or {})["y"] <= under + 60, number
                # Nor is the way on below the window.
                on = box.get_by_role("button", name="Next step").bounding_box() or {}
                nav = page.locator(".story-nav").bounding_box() or {}
                assert on["y"] + on["height"] <= nav["y"], number


def test_a_reveal_that_takes_long_shows_how_far_it_is(story, open_page):
    page = open_page(story, "step=19", ready="[data-drawn]")
    arrived(page, 19)
    # A hundred runs, and none of them in less than a hundredth of a second.
    page.evaluate("""() => {
      const send = Worker.prototype.postMessage;
      Worker.prototype.postMessage = function (...given) {
        setTimeout(() => send.apply(this, given), 10);
      };
    }""")
    page.locator("#step-19 input").fill("50")
    page.keyboard.press("Enter")
    bar = page.locator("#step-19 progress")
    expect(bar).to_have_js_property("max", 100)
    assert 0 < float(bar.evaluate("(one) => one.value")) <= 100
    page.wait_for_selector("#step-19 [data-right]", timeout=60_000)
    assert bar.count() == 0
