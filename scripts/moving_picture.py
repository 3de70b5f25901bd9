"""Makes docs/live.gif, the moving picture of README: a live page is typed into and changed.

    python scripts/moving_picture.py

A head of the embedded tiny-bert is set to zero and taken back, another text is typed, and the page
is looked at after each step. Needs Chromium, as the browser tests do, and Pillow.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import minibert
from minibert.viz.live import live_page

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "live.gif"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WIDTH, HEIGHT, SHOWN_WIDTH = 1240, 940, 880
# Milliseconds that a picture stays.
LONG, SHORT = 1800, 140
COLORS = 200


def steps(page: Page) -> Iterator[int]:
    """Does one step after the other; how long the picture after each stays."""

    def settled() -> None:
        page.wait_for_selector("#page[aria-busy=false] [data-drawn]")
        page.wait_for_timeout(250)

    settled()
    yield LONG
    page.locator(".live-grid").get_by_role("button", name="Layer 0, head 1").click()
    page.mouse.move(0, 0)
    settled()
    yield LONG + 600
    page.keyboard.press("Control+z")
    settled()
    yield SHORT * 4
    field = page.locator(".live-text").first
    field.focus()
    page.keyboard.press("Control+Home")
    for _ in range(len("The ")):
        page.keyboard.press("ArrowRight")
    for _ in range(len("boys")):
        page.keyboard.press("Delete")
    settled()
    yield SHORT * 3
    for letter in "horse":
        page.keyboard.type(letter)
        settled()
        yield SHORT
    yield LONG


def main() -> None:
    """Write the picture."""
    frames: list[Image.Image] = []
    durations: list[int] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = live_page(minibert.load()).save(Path(folder) / "live.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(path.as_uri())
        for duration in steps(page):
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            size = (SHOWN_WIDTH, round(HEIGHT * SHOWN_WIDTH / WIDTH))
            small = shot.resize(size, Image.Resampling.LANCZOS)
            frames.append(small.quantize(COLORS, kmeans=1, dither=Image.Dither.NONE))
            durations.append(duration)
        browser.close()
    frames[0].save(
        PICTURE, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )
    print(f"{PICTURE}: {len(frames)} pictures, {PICTURE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
