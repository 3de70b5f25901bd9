"""Makes docs/pictures/*.png, the screenshots of docs/pictures.md.

    python scripts/picture_views.py

Every view of a page of the embedded tiny-bert, at 8, 40 and 200 tokens, wide and narrow, light and
dark, as docs/pictures.md shows them. Needs Chromium, as the browser tests do, and Pillow.
"""

import io
import math
import os
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import minibert
from minibert.trace.read import Trace

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "docs" / "pictures"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

# The beginning of "Alice's Adventures in Wonderland" (1865).
ALICE = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having"
    " nothing to do: once or twice she had peeped into the book her sister was reading, but it had"
    " no pictures or conversations in it, and what is the use of a book, thought Alice, without"
    " pictures or conversations? So she was considering in her own mind, as well as she could, for"
    " the hot day made her feel very sleepy and stupid, whether the pleasure of making a"
    " daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly"
    " a White Rabbit with pink eyes ran close by her. There was nothing so very remarkable in that;"
    " nor did Alice think it so very much out of the way to hear the Rabbit say to itself, Oh dear!"
    " Oh dear! I shall be late! But when the Rabbit actually took a watch out of its waistcoat"
    " pocket, and looked at it, and then hurried on, Alice started to her feet."
)
SIZES = {"wide": (1280, 860), "narrow": (380, 1000)}
# What is chosen, so that each view has something to show.
CHOSEN = {
    "head": "layer=1",
    "model": "",
    "neuron": "layer=1&heads=2&query=3",
    "arithmetic": "layer=1&heads=2&query=3&key=2",
    "map": "layer=1&heads=2&query=3&key=2",
    "text": "layer=2",
    "layers": "query=3",
}
READY = {
    "head": ".lower[data-drawn]",
    "model": ".model-view[data-measured]",
    "layers": ".layers-view[data-drawn]",
}
SHOWN = (
    (8, "wide", "light"),
    (40, "wide", "dark"),
    (200, "wide", "light"),
    (8, "narrow", "dark"),
    (40, "narrow", "light"),
)


def trace_of(length: int) -> Trace:
    """A trace of so many tokens: a pair of sentences, or a text that ends there."""
    model = minibert.load()
    if length <= 8:
        return model.trace("the horse ran", "it sat")
    assert model.tokenizer is not None
    words = ALICE.split()
    while len(model.tokenizer.encode(" ".join(words))) + 2 > length:
        words.pop()
    missing = length - 2 - len(model.tokenizer.encode(" ".join(words)))
    return model.trace(" ".join(words) + missing * ".")


def take(browser: Browser, page: Path, view: str, size: str, theme: str) -> None:
    """Write the screenshot of a view as a small PNG."""
    width, height = SIZES[size]
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.goto(f"{page.as_uri()}#view={view}&theme={theme}&{CHOSEN[view]}")
    drawn = f'#page[data-view="{view}"] .pictures > [data-drawn]'
    tab.wait_for_selector(READY.get(view, drawn), state="attached")
    tab.wait_for_timeout(200)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    path = FOLDER / f"{view}-{page.stem}-{size}-{theme}.png"
    with_palette(image).save(path, "PNG", optimize=True)


def with_palette(image: Image.Image) -> Image.Image:
    """The image in 256 colours, in whose choice the rare count nearly as much as the common."""
    found = image.getcolors(image.width * image.height)
    assert found is not None
    sample = [color for count, color in found for _ in range(math.ceil(count**0.4))]
    few = Image.new("RGB", (len(sample), 1))
    few.putdata(sample)
    palette = few.quantize(256, kmeans=8)
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def main() -> None:
    """Make them."""
    pages = REPOSITORY / "build" / "pictures"
    for folder in (FOLDER, pages):
        folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for length, size, theme in SHOWN:
            page = pages / f"{length}.html"
            trace_of(length).view().save(page)
            for view in CHOSEN:
                take(browser, page, view, size, theme)
        browser.close()


if __name__ == "__main__":
    main()
