"""The model view: every head as a small picture, where it looks, and its marks."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import B_START, BLUE, TOKENS, Open, drawn_attention, pixels_of, press, state
from playwright.sync_api import Locator, Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".model-view[data-drawn]"
GROUND = (0xF6, 0xF6, 0xF4)


def opened(open_page: Open, hash: str = "view=model", **options: Any) -> Page:
    html = attention_page(drawn_attention(), list(TOKENS), sentence_b_start=B_START).html
    return open_page(html, hash, ready=READY, **options)


def picture(page: Page, slot: int) -> Locator:
    return page.locator(f".model-head[data-place='{slot}']")


def cell(page: Page, slot: int, row: int, column: int) -> tuple[int, ...]:
    """The colour of a cell of a small picture."""
    return tuple(pixels_of(picture(page, slot).locator("canvas"))[row, column, :3].tolist())


def title(page: Page, slot: int) -> str:
    """Of the card of a head that is pointed at."""
    picture(page, slot).hover()
    return page.locator(".model-card h2").inner_text()


# Where the heads of layer 0 look: see drawn_attention.
LOOKS = ("itself", "the one after it", "the first one, [CLS]")


def test_heads_are_pointed_at_and_opened_by_click_or_by_keys(open_page):
    page = opened(open_page)
    for slot in range(6):
        assert title(page, slot) == f"Layer {slot // 3}, head {slot % 3}"
        looks = f"every token looks at {LOOKS[slot]}, 100\u202f%." if slot < 3 else ""
        expect(page.locator(".model-card")).to_contain_text(
            f"Head {slot % 3} of layer {slot // 3}: {looks}"
        )
    page = opened(open_page, "view=model&nothing=entropy")
    assert state(page) == {"view": "model"}
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight")
    assert page.locator(".model-card h2").inner_text() == "Layer 1, head 2"
    assert page.locator(".model-head.chosen").count() == 1
    press(page, "ArrowLeft", "Enter")
    assert state(page) == {"layer": "1", "heads": "1"}
    page = opened(open_page)
    picture(page, 4).click()
    page.wait_for_selector(".lower[data-drawn]", state="attached")
    assert state(page) == {"layer": "1", "heads": "1"}


def test_a_small_picture_is_the_heads_weights_in_its_colour(open_page):
    page = opened(open_page)
    assert (cell(page, 0, 3, 3), cell(page, 0, 3, 4)) == (BLUE, GROUND)
    code = np.rint(255 * np.sqrt(float(drawn_attention()[1, 0, 2, 1]))) / 255
    blended = [g + (b - g) * code for g, b in zip(GROUND, BLUE, strict=True)]
    assert cell(page, 3, 2, 1) == pytest.approx(blended, abs=2)
    page.locator(".theme").click()
    assert (cell(page, 0, 3, 3), cell(page, 0, 3, 4)) == ((0x51, 0xA0, 0xF7), (0x1D, 0x1E, 0x22))
