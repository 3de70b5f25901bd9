"""The map: reading, keeping and zooming, and the pixels of one head's weights."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser.head_view import B_START, TOKENS, N, Open, drawn_attention, pixel_at, press, state
from playwright.sync_api import Page

from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".map-view[data-drawn]"
PLOT = Path(__file__).resolve().parents[2] / "viz/static/views/map/plot.js"
# The colours of weights, as the page has them.
LISTED = re.search(r"light: \[([^\]]*)\]", PLOT.read_text(encoding="utf-8"))
SCALE = [tuple(bytes.fromhex(one)) for one in re.findall(r'"#(\w{6})"', LISTED[1])]


def opened(open_page: Open, hash: str = "view=map&layer=1", **options: Any) -> Page:
    html = attention_page(drawn_attention(), list(TOKENS), sentence_b_start=B_START).html
    return open_page(html, hash, ready=READY, **options)


def page_of(open_page: Open, weights: np.ndarray) -> Page:
    html = attention_page(weights[None, None], [f"t{i}" for i in range(len(weights))]).html
    return open_page(html, "view=map", ready=READY)


def place(page: Page, query: float, key: float) -> tuple[float, float]:
    """The middle of a cell on the whole page; the map shows what is around the kept one."""
    frame = page.locator(".map-surface").get_attribute("data-frame")
    left, top, width, height = (float(n) for n in frame.split())
    low, high, first, end = window(page)
    box = page.locator(".map-cells").bounding_box()
    x = box["x"] + left + (key + 0.5 - first) / (end - first) * width
    return x, box["y"] + top + (query + 0.5 - low) / (high - low) * height


def window(page: Page) -> tuple[float, ...]:
    return tuple(map(float, page.locator(".map-surface").get_attribute("data-window").split()))


def color(page: Page, query: float, key: float) -> tuple[int, ...]:
    return pixel_at(page, ".map-cells", *place(page, query, key))[:3]


def shown_weight(page: Page) -> float:
    return float(page.locator(".details .big").get_attribute("value"))


def test_weights_are_colours_by_the_root_and_bars_what_tokens_receive(open_page):
    page = opened(open_page, "view=map")
    assert (color(page, 3, 3), color(page, 3, 4)) == (SCALE[-1], SCALE[0])
    page = opened(open_page, "view=map&heads=2")
    frame = page.locator(".map-surface").get_attribute("data-frame")
    _, top, _, height = (float(n) for n in frame.split())
    below = page.locator(".map-surface").bounding_box()["y"] + top + height + 38
    # Every token of head 2 looks at the first.
    tall = [any(pixel_at(page, ".map-cells", place(page, 0, key)[0], below)) for key in range(N)]
    assert tall == [True] + [False] * (N - 1)
    weights = np.eye(8)
    weights[2] = [0.25, 0, 0, 0.75, 0, 0, 0, 0]
    page, stops = page_of(open_page, weights), np.array(SCALE, float)
    at = np.linspace(0, 1, len(stops))
    wanted = [np.interp(0.5, at, stops[:, channel]) for channel in range(3)]
    assert color(page, 2, 0) == pytest.approx(wanted, abs=4)
    page = page_of(open_page, np.eye(1500) * 0.5 + 0.5 / 1500)
    assert page.evaluate("document.querySelectorAll('.map-view *').length") < 40
    assert color(page, 700, 700) == SCALE[-1]


def test_a_cell_is_pointed_at_read_kept_and_let_go(open_page):
    page = opened(open_page, "view=map&layer=1&heads=2")
    page.mouse.move(*place(page, 1, 4))
    said = page.locator(".details")
    assert said.locator("h2").inner_text() == "straw looks at rain"
    assert shown_weight(page) == pytest.approx(float(drawn_attention()[1, 2, 1, 4]), abs=4e-3)
    assert "rounded" in said.inner_text()
    found = re.search(r"received\s+([\d.]+)", said.inner_text())
    assert found
    assert float(found[1]) == pytest.approx(drawn_attention()[1, 2, :, 4].sum(), abs=0.02)
    page.mouse.click(*place(page, 2, 5))
    assert (state(page)["query"], state(page)["key"]) == ("2", "5")
    page.mouse.move(5, 5)
    assert said.locator("h2").inner_text() == "##berries looks at falls"
    page.mouse.click(*place(page, 2, 5))
    assert state(page) == {"view": "map", "layer": "1", "heads": "2"}


def test_buttons_zoom_about_the_kept_cell_and_keys_go_from_cell_to_cell(open_page):
    page = page_of(open_page, np.eye(60) * 0.5 + 0.5 / 60)
    assert window(page) == (0, 60, 0, 60)
    page.get_by_role("button", name="Zoom in").click()
    assert window(page) == pytest.approx((15, 45, 15, 45), abs=0.6)
    assert color(page, 20, 20) == SCALE[-1]
    page.mouse.click(*place(page, 30, 20))
    # It stands in the middle, as far as there is more to see on both sides.
    assert window(page) == (15.5, 45.5, 5.5, 35.5)
    page.mouse.move(*place(page, 18, 30))
    assert shown_weight(page) == pytest.approx(0.5 / 60, abs=4e-3)
    assert "t18 looks at t30" in page.locator(".details").inner_text()
    press(page, *["ArrowDown"] * 16)
    assert window(page) == (30, 60, 5.5, 35.5)
    assert state(page) == {"view": "map", "query": "46", "key": "20", "zoom": "1"}
    page.get_by_role("button", name="Zoom out").click()
    press(page, "Escape", "Escape")
    assert (window(page), state(page)) == ((0, 60, 0, 60), {"view": "map"})
    page = opened(open_page, "view=map&zoom=9")
    assert "zoom" not in state(page)
    press(page, "Enter", "ArrowDown", "ArrowRight")
    assert state(page) == {"view": "map", "query": "1", "key": "1"}
    press(page, "Escape", "Escape", "ArrowRight")
    assert state(page) == {"view": "map", "layer": "1"}
