"""Makes the screenshots of docs/ from the pages as they are.

    python scripts/pictures.py

Chromium at the path that the variable CHROMIUM names; Pillow reduces the colours.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import minibert
from minibert.viz.live import live_page

DOCS = Path(__file__).parents[1] / "docs"
VIEWS = ("head", "model", "neuron", "arithmetic", "map", "layers")
# A part of the page's address: what is chosen in views of one head.
CHOSEN = "layer=1&heads=2&query=3&key=2"
# Lewis Carroll, Alice's Adventures in Wonderland, 1865.
ALICE = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having
nothing to do: once or twice she had peeped into the book her sister was reading, but it had no
pictures or conversations in it, and what is the use of a book, thought Alice, without pictures or
conversations? So she was considering in her own mind, as well as she could, for the hot day made
her feel very sleepy and stupid, whether the pleasure of making a daisy-chain would be worth the
trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close
by her. There was nothing so very remarkable in that; nor did Alice think it so very much out of the
way to hear the Rabbit say to itself, Oh dear! Oh dear! I shall be late! when she thought it over
afterwards, it occurred to her that she ought to have wondered at this, but at the time it all
seemed quite natural."""
TYPED = ("", "h", "ho", "hor", "hors", "horse")
MASKED = "The boys [MASK] very tired."
SIZES = {"wide": (1280, 860), "narrow": (380, 1000)}
# Of the three lengths, in which windows and colours each is shown.
SHOWN = {
    8: (("wide", "light"), ("narrow", "dark")),
    40: (("wide", "dark"), ("narrow", "light")),
    200: (("wide", "light"),),
}


def alice(model: minibert.Model, size: int) -> str:
    """The beginning of the book, of so many tokens."""
    words = ALICE.split()
    lengths = (model.tokenize(" ".join(words[:count])).lengths[0] for count in range(1, len(words)))
    return " ".join(words[: 1 + next(i for i, length in enumerate(lengths) if length >= size)])


def opened(
    browser: Browser, path: Path, address: str, size: tuple[int, int], theme: str = "light"
) -> Page:
    """The page of a file, drawn, in a window of its own."""
    width, height = size
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    page.goto(f"{path.as_uri()}#{address}")
    page.wait_for_selector(".body [data-drawn]", state="attached")
    page.wait_for_timeout(400)
    return page


def image(page: Page) -> Image.Image:
    """What the window shows, in 256 colours."""
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return whole.quantize(256, dither=Image.Dither.NONE)


def frames(page: Page) -> Iterator[tuple[Image.Image, int]]:
    """Of the moving picture each image, and the milliseconds that it stays."""

    def answered() -> Image.Image:
        page.wait_for_selector("#page[aria-busy=false]")
        page.wait_for_timeout(900)
        return image(page)

    yield answered(), 1800
    page.locator('.live-cell[data-layer="0"][data-head="1"]').click()
    yield answered(), 2400
    page.get_by_role("button", name="Undo").click()
    yield answered(), 560
    for typed, stays in zip(TYPED, (420, *[140] * 4, 1940), strict=True):
        page.locator("textarea.live-text").first.fill(MASKED.replace("boys", typed))
        yield answered(), stays


def main() -> None:
    """Writes every picture."""
    model = minibert.load("tiny-bert")
    scratch = DOCS.parent / "build" / "pictures"
    scratch.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        pair = model.trace("the horse ran", "it sat")
        for size, looks in SHOWN.items():
            trace = pair if size == 8 else model.trace(alice(model, size))
            file = trace.view().save(scratch / f"{size}.html")
            for view in VIEWS:
                chosen = f"&{CHOSEN}" if view in ("neuron", "arithmetic") else "&layer=1"
                for window, theme in looks:
                    page = opened(browser, file, f"view={view}{chosen}", SIZES[window], theme)
                    image(page).save(DOCS / "pictures" / f"{view}-{size}-{window}-{theme}.png")
                    page.close()
        trace = model.trace("the horse quickly ran away", "the boat slowly turned")
        file = trace.view().save(scratch / "view.html")
        image(opened(browser, file, "view=head&layer=1&query=3", (1475, 1025))).save(
            DOCS / "head_view.png"
        )
        page = opened(browser, file, f"view=arithmetic&{CHOSEN}", (1475, 1000))
        page.get_by_role("button", name="Multiply and add up").click()
        page.wait_for_timeout(400)
        image(page).save(DOCS / "arithmetic_view.png")
        file = live_page(model, [MASKED]).save(scratch / "live.html")
        edited = f"text={MASKED.replace(' ', '+')}&edits=z-zero-L0-H1&beside=1&layer=1"
        image(opened(browser, file, edited, (1280, 760))).save(DOCS / "live.png")
        small = (880, 667)
        every = [
            (one.convert("RGB").resize(small).quantize(128), stays)
            for one, stays in frames(opened(browser, file, "layer=1", (1280, 970)))
        ]
        every[0][0].save(
            DOCS / "live.gif",
            save_all=True,
            append_images=[one for one, _ in every[1:]],
            duration=[stays for _, stays in every],
            loop=0,
        )


if __name__ == "__main__":
    main()
