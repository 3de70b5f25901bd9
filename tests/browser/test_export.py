"""Pictures taken away as PNG, SVG and CSV: what is shown, and what hostile tokens do to them."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_pages import HOSTILE, softmax
from browser.head_view import TOKENS, Open, at, drawn_attention, pair_page
from PIL import Image
from playwright.sync_api import Page, expect

import minibert
from minibert.viz import attention_page, view

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"


def taken(page: Page, way: str) -> bytes:
    """The file that an item of the menu gives."""
    if not page.locator(".export .panel").is_visible():
        page.locator(".export .opener").click()
    with page.expect_download() as started:
        page.get_by_role("button", name=way).click()
    expect(page.locator(".export .said")).to_contain_text("saved")
    return Path(started.value.path()).read_bytes()


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=int)


def table(file: bytes) -> list[list[str]]:
    """The cells, as the table's comment says that they are read."""
    text = file.decode()
    assert text.endswith("\r\n")
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    return [
        [re.sub(r"(^|[;,|\t\r\n])([ \xa0\t\r\n]*)'", r"\1\2", cell) for cell in row] for row in rows
    ]


class TestHeadView:
    def test_the_table_has_the_weights_that_are_drawn(self, open_page):
        page = open_page(pair_page(), "layer=1&heads=1.2&min=5")
        columns, *rows = table(taken(page, "CSV table"))
        assert columns == ["layer", "head", "query", "query token", "key", "key token", "weight"]
        weights = drawn_attention()[1]
        found = np.zeros_like(weights)
        for layer, head, query, query_token, key, key_token, weight in rows:
            assert layer == "1"
            assert query_token == TOKENS[int(query)].removeprefix("##")
            assert key_token == TOKENS[int(key)].removeprefix("##")
            found[int(head), int(query), int(key)] = float(weight)
        seen = np.rint(255 * np.sqrt(weights)) / 255
        wanted = np.where(seen**2 >= 0.05, weights, 0)
        wanted[0] = 0
        np.testing.assert_allclose(found, wanted, atol=4e-3)
        assert np.count_nonzero(found) == np.count_nonzero(wanted)


class TestHostile:
    def test_tokens_are_text_in_the_drawing_and_come_back_from_the_table(self, open_page):
        size = len(HOSTILE)
        page = open_page(attention_page(softmax((1, 2, size, size)), HOSTILE).html)
        drawing = ET.fromstring(taken(page, "SVG drawing"))
        tags = {element.tag.removeprefix(SVG) for element in drawing.iter()}
        assert tags <= {"svg", "rect", "path", "text", "image"}
        table(taken(page, "CSV table"))
        taken(page, "PNG image")
        assert page.evaluate("window.pwned") is None

    def test_what_a_spreadsheet_would_run_has_an_apostrophe_and_comes_back(self, open_page):
        tokens = [
            "=1+1",
            "+1",
            "-1",
            "@a",
            "'",
            "'=1",
            " =1",
            "a;=1;",
            '",=1',
            "a\n=1",
            "\t@",
            "-",
            "＝1",
        ]
        size = len(tokens)
        page = open_page(
            attention_page(np.full((1, 1, size, size), 1 / size), tokens).html, "query=0&min=0"
        )
        file = taken(page, "CSV table")
        assert [row[5] for row in table(file)[1:]] == tokens
        cells = [row[5] for row in csv.reader(io.StringIO(file.decode(), newline=""))][1:]
        assert cells[:5] == ["'=1+1", "'+1", "'-1", "'@a", "''"]
        # Wherever a reader may begin a cell, with whatever separator.
        for line in cells:
            for part in re.split("[;,|\t\r\n]", line):
                assert not part.strip().startswith(("=", "+", "-", "@", "＝"))


LAYER, HEAD, QUERY, KEY = 1, 2, 4, 2
VIEWS = ("head", "model", "neuron", "arithmetic", "map", "layers")
READY = {"model": ".model-view[data-drawn]", "head": ".lower[data-drawn]"}
CHOSEN = f"layer={LAYER}&heads={HEAD}&query={QUERY}"


OUTSIDE = """() => {
  const whole = document.querySelector("svg").getBoundingClientRect();
  return [...document.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < whole.left || box.right > whole.right ||
      box.top < whole.top || box.bottom > whole.bottom;
  }).map((text) => text.textContent);
}"""


@pytest.fixture(scope="module")
def trace():
    """[CLS] the horse quickly ran away . [SEP]"""
    return minibert.load().trace("the horse quickly ran away .")


@pytest.fixture(scope="module")
def html(trace):
    return view(trace, exact=True).html


def opened(open_page: Open, html: str, name: str, hash: str = CHOSEN) -> Page:
    drawn = f'#page[data-view="{name}"] .pictures [data-drawn]'
    return open_page(html, f"view={name}&{hash}", ready=READY.get(name, drawn))


def rows_of(page: Page) -> tuple[list[str], list[list[str]]]:
    columns, *rows = table(taken(page, "CSV table"))
    return columns, rows


def number(cell: str) -> float:
    return float(cell) if cell else float("nan")


def test_the_drawing_and_the_image_are_the_same_picture_and_no_text_lies_outside(
    open_page, browser, html
):
    page = opened(open_page, html, VIEWS[0], f"{CHOSEN}&key={KEY}")
    for name in VIEWS:
        at(page, f"view={name}&{CHOSEN}&key={KEY}")
        page.wait_for_selector(f'#page[data-view="{name}"] [data-drawn]', state="attached")
        same_picture(page, browser, name)


def same_picture(page: Page, browser: Any, name: str) -> None:
    """What is taken of the view as an image and as a drawing."""
    image = pixels(taken(page, "PNG image"))
    svg = taken(page, "SVG drawing").decode().partition("?>")[2]
    height, width = (length // 2 for length in image.shape[:2])
    shown = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=2)
    shown.set_content(f"<body style='margin: 0; overflow: hidden'>{svg}")
    drawn = pixels(shown.screenshot())
    outside = shown.evaluate(OUTSIDE)
    shown.close()
    assert outside == [], name
    assert np.abs(np.subtract(drawn.shape, image.shape)).max() <= 2
    rows, columns = np.minimum(drawn.shape, image.shape)[:2]
    assert np.abs(drawn[:rows, :columns] - image[:rows, :columns]).mean() < 2, name
    assert image.std() > 3, name


def test_tables_have_the_numbers_of_the_trace(open_page, html, trace):
    one, tokens = trace[LAYER, HEAD], list(trace.tokens.strings[0])
    query, key = one.query[0, QUERY].double(), one.key[0].double()
    columns, rows = rows_of(opened(open_page, html, "neuron"))
    assert columns[:4] == ["key", "token", "score", "weight"]
    assert [row[1] for row in rows] == tokens
    numbers = np.array([[number(cell) for cell in row[2:]] for row in rows])
    expected = [one.scores[0, QUERY, :, None], one.probs[0, QUERY, :, None], key, query * key]
    np.testing.assert_allclose(numbers, np.concatenate(expected, 1), rtol=1e-5, atol=1e-5)
    columns, rows = rows_of(opened(open_page, html, "arithmetic", f"{CHOSEN}&key={KEY}"))
    assert columns == ["step", "term", "factor", "factor", "value"]
    products = np.stack([query, key[KEY], query * key[KEY]], 1)
    shown = np.array([row[2:] for row in rows if row[0] == "Multiply and add up" and row[1]], float)
    np.testing.assert_allclose(shown, products, rtol=1e-6, atol=1e-9)
    columns, rows = rows_of(opened(open_page, html, "map", CHOSEN))
    assert columns == ["query", "query token", "key", "key token", "weight"]
    found = {(int(query), int(key)): float(weight) for query, _, key, _, weight in rows}
    n = len(tokens)
    wanted = {(i, j): float(one.probs[0, i, j]) for i in range(n) for j in range(n)}
    assert found == pytest.approx(wanted, abs=1e-6)
    assert all(row[1] == tokens[int(row[0])] and row[3] == tokens[int(row[2])] for row in rows)
