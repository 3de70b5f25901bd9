"""What one does and the picture of it are on one screen: 90 % of the picture at least."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from browser.live_pages import cell, settled
from playwright.sync_api import Page

SEEN = """() => {
  const box = document.querySelector(".pictures").getBoundingClientRect();
  const [x, y] = [(box.left + box.right) / 2, Math.min(box.bottom, innerHeight) - 4];
  if (!document.elementFromPoint(x, y)?.closest(".pictures")) return 0;
  const part = (from, to, end) => Math.max(0, Math.min(to, end) - Math.max(from, 0)) / (to - from);
  return part(box.left, box.right, innerWidth) * part(box.top, box.bottom, innerHeight);
}"""
WIDE = ((1280, 720), (1366, 768), (1440, 900))
NARROW = ((360, 800),)
# Steps with one picture and with two, of the same run as before, of long texts, in another view.
STEPS = {"bert": ((1, 1), (1, 4), (2, 3), (4, 1), (4, 2), (6, 3)), "gpt2": ((5, 3),)}


def check(page: Page, sizes: tuple[tuple[int, int], ...], what: object) -> None:
    for width, height in sizes:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(100)
        assert page.evaluate(SEEN) >= 0.9, (what, width, height)
    page.set_viewport_size({"width": sizes[0][0], "height": sizes[0][1]})


@pytest.mark.parametrize("sizes", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_the_picture_is_seen_when_the_page_opens_and_after_every_edit_and_reveal(
    opened: Callable[..., Page],
    request: pytest.FixtureRequest,
    model: str,
    sizes: tuple[tuple[int, int], ...],
) -> None:
    width, height = sizes[0]
    html = request.getfixturevalue(f"{model}_page")
    page = opened(html, viewport={"width": width, "height": height})
    check(page, sizes, "opened")
    parts = (".live-fields", ".pictures", ".live-prediction", ".live-heads")
    if width < 900:
        order = [page.locator(part).bounding_box() or {} for part in parts]
        assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(order))
    cell(page, 0, 1).click()
    check(settled(page), sizes, "edited")
    for exercise, step in STEPS[model]:
        page.evaluate(f"location.hash = 'exercise={exercise}&step={step}'")
        page.wait_for_selector("#live-question:not(:text-is('…'))")
        page.get_by_label("Your guess", exact=True).fill("1")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-right]", timeout=60_000)
        check(settled(page), sizes, (exercise, step))
