"""The head view as tests meet it: small attention with known pictures, and what is on screen."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page

from minibert.viz import attention_page
from minibert.viz.example import Example, labels_from_strings, weights_example
from minibert.viz.page import Page as Pictures

# Opens the text of an HTML file; keyword arguments are those of a browser context.
Open = Callable[..., Page]

TOKENS = ("[CLS]", "straw", "##berries", "[SEP]", "rain", "falls", "[SEP]")
B_START = 4
N = len(TOKENS)
# The first colours of colors.js, light.
BLUE, ORANGE, GREEN = (0x22, 0x6A, 0x99), (0xCE, 0x55, 0x09), (0x14, 0x99, 0x73)


def drawn_attention() -> np.ndarray:
    """Two layers of three heads, (layer, head, query, key).

    Layer 0: head 0 looks at itself, head 1 at the next token, head 2 at [CLS].
    Layer 1: random weights.
    """
    itself = np.eye(N)
    following = np.roll(itself, 1, axis=1)
    first = np.tile(itself[0], (N, 1))
    scores = np.random.default_rng(5).normal(0, 2, (3, N, N))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return np.stack([np.stack([itself, following, first]), weights]).astype(np.float32)


def pair_page(**options: Any) -> str:
    return attention_page(
        drawn_attention(), TOKENS, sentence_b_start=B_START, model="drawn", **options
    ).html


def text_of(
    probs: np.ndarray,
    tokens: Sequence[str],
    *,
    name: str = "",
    key_tokens: Sequence[str] | None = None,
) -> Example:
    """A text of a page, of probs (layer, head, query, key)."""
    return weights_example(
        dict(enumerate(probs)),
        labels_from_strings(list(tokens), None),
        key_labels=None if key_tokens is None else labels_from_strings(list(key_tokens), None),
        n_layers=len(probs),
        heads=range(probs.shape[1]),
        name=name,
        model="drawn",
    )


def page_of(*texts: Example, **options: Any) -> str:
    return Pictures(texts, **options).html


def count_lines(
    probs: np.ndarray, *, strength: int, shown: np.ndarray | None = None, minimum: float = 0
) -> int:
    """Weights that are seen: opacity 1 - (1 - p)^strength of at least 1/510."""
    seen = np.rint(255 * np.sqrt(probs)) / 255
    alpha = 1 - (1 - seen**2) ** strength
    visible = (alpha >= 1 / 510) & (seen**2 >= minimum)
    return int((visible & (True if shown is None else shown)).sum())


def lines(page: Page, sheet: str = "lower") -> int:
    return int(page.locator(f".{sheet}").get_attribute("data-lines") or 0)


def state(page: Page) -> dict[str, str]:
    """The page's state as its address has it."""
    written = page.evaluate("location.hash.slice(1)")
    return dict(part.split("=") for part in written.split("&") if part)


def token(page: Page, side: str, index: int) -> Any:
    return page.locator(f'.column.{side} .token[data-index="{index}"]')


def scroll_to(page: Page, index: int, n_tokens: int) -> None:
    """Scrolls a token to the middle of the window; it may not be in the document before."""
    page.evaluate(SCROLL, (index + 0.5) / n_tokens)
    token(page, "query", index).wait_for()


SCROLL = """(part) => {
  const { top, height } = document.querySelector(".column").getBoundingClientRect();
  scrollBy(0, top + part * height - innerHeight / 2);
}"""


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def at(page: Page, hash: str) -> None:
    """Asks the page for another state by its address."""
    page.evaluate("hash => { location.hash = hash; }", hash)


def kept(page: Page) -> list[tuple[str, int]]:
    return [
        tuple(pair)
        for pair in page.evaluate(
            "[...document.querySelectorAll('.token.kept')]"
            ".map((item) => [item.dataset.side, Number(item.dataset.index)])"
        )
    ]


def pixel(
    page: Page, query: int, key: int, sheet: str = "lower", offset: int = 0
) -> tuple[int, ...]:
    """Red, green, blue and alpha on the canvas, half way between the middles of two tokens.

    `offset` is in CSS pixels, downwards.
    """
    middles = [
        box["y"] + box["height"] / 2
        for box in (
            token(page, "query", query).bounding_box(),
            token(page, "key", key).bounding_box(),
        )
    ]
    room = page.locator(f".{sheet}").evaluate(
        "(one) => [one.parentElement.getBoundingClientRect().left, one.parentElement.clientWidth]"
    )
    return pixel_at(page, f".{sheet} canvas", room[0] + room[1] / 2, sum(middles) / 2 + offset)


def pixel_at(page: Page, canvases: str, x: float, y: float) -> tuple[int, ...]:
    """Red, green, blue and alpha of the canvas at a place of the window, or nothing."""
    return tuple(page.evaluate(PIXEL, [canvases, x, y]))


# Read through a copy: a canvas that is read from is drawn differently from then on.
PIXEL = """([canvases, x, y]) => {
  for (const canvas of document.querySelectorAll(canvases)) {
    const box = canvas.getBoundingClientRect();
    if (y < box.top || y >= box.bottom) continue;
    const scale = canvas.width / box.width;
    const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const [left, top] = [x - box.left, y - box.top].map((side) => -Math.floor(side * scale));
    copy.drawImage(canvas, left, top);
    return [...copy.getImageData(0, 0, 1, 1).data];
  }
  return [0, 0, 0, 0];
}"""


def pixels_of(canvas: Locator) -> np.ndarray:
    """Red, green, blue and alpha of a small canvas, (row, column, 4)."""
    width, height, *found = canvas.evaluate(PIXELS)
    return np.array(found).reshape(height, width, 4)


# Read through a copy, as in PIXEL.
PIXELS = """(one) => {
  const { width, height } = one;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(one, 0, 0);
  return [width, height, ...pen.getImageData(0, 0, width, height).data];
}"""


def has_color(found: tuple[int, ...], color: tuple[int, int, int]) -> bool:
    """True when a pixel has ink of that colour (and not of another)."""
    return found[3] > 60 and max(abs(a - b) for a, b in zip(found, color, strict=False)) <= 6


def weights_shown(page: Page, side: str) -> dict[int, float]:
    """The weights written beside the tokens of a side, by token."""
    found = page.evaluate(
        """(side) => [...document.querySelectorAll(`.${side} .token > .weight`)].map((weight) =>
          [Number(weight.parentElement.dataset.index), Number(weight.value)])""",
        side,
    )
    return dict(found)


def until(page: Page, expression: str, seconds: float = 15) -> None:
    """Waits until an expression is true; asked from outside, as pages forbid eval inside."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"still not true: {expression}"
        page.wait_for_timeout(20)
