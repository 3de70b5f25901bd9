"""What each view gives to take away: its table is the trace, its drawing is its image."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import Open
from browser.test_export import pixels, table, taken
from playwright.sync_api import Page

import minibert
from minibert.trace.read import Trace
from minibert.viz import view

pytestmark = pytest.mark.browser
LAYER, HEAD, QUERY, KEY = 1, 2, 4, 2
VIEWS = ("head", "model", "neuron", "arithmetic", "map", "text", "layers")
READY = {"model": ".model-view[data-measured]", "head": ".lower[data-drawn]"}
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
def trace() -> Trace:
    """[CLS] the horse quickly ran away . [SEP]"""
    return minibert.load().trace("the horse quickly ran away .")


@pytest.fixture(scope="module")
def html(trace: Trace) -> str:
    return view(trace, exact=True).html


def opened(open_page: Open, html: str, name: str, hash: str = CHOSEN) -> Page:
    drawn = f'#page[data-view="{name}"] .pictures [data-drawn]'
    return open_page(html, f"view={name}&{hash}", ready=READY.get(name, drawn))


def rows_of(page: Page) -> tuple[list[str], list[list[str]]]:
    columns, *rows = table(taken(page, "CSV table"))
    return columns, rows


def number(cell: str) -> float:
    return float(cell) if cell else float("nan")


@pytest.mark.parametrize("name", VIEWS)
def test_the_drawing_and_the_image_are_the_same_picture_and_no_text_lies_outside(
    open_page: Open, browser: Any, html: str, name: str
) -> None:
    page = opened(open_page, html, name, f"{CHOSEN}&key={KEY}")
    image = pixels(taken(page, "PNG image"))
    svg = taken(page, "SVG drawing").decode().partition("?>")[2]
    height, width = (length // 2 for length in image.shape[:2])
    shown = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=2)
    shown.set_content(f"<body style='margin: 0; overflow: hidden'>{svg}")
    drawn = pixels(shown.screenshot())
    outside = shown.evaluate(OUTSIDE)
    shown.close()
    assert outside == []
    assert np.abs(np.subtract(drawn.shape, image.shape)).max() <= 2
    rows, columns = np.minimum(drawn.shape, image.shape)[:2]
    assert np.abs(drawn[:rows, :columns] - image[:rows, :columns]).mean() < 2
    assert image.std() > 3


def test_tables_have_the_numbers_of_the_trace(open_page: Open, html: str, trace: Trace) -> None:
    one, tokens = trace[LAYER, HEAD], list(trace.tokens.strings[0])
    query, key = one.query[0, QUERY].double(), one.key[0].double()
    columns, rows = rows_of(opened(open_page, html, "neuron"))
    assert columns[:4] == ["key", "token", "score", "weight"]
    assert [row[1] for row in rows] == tokens
    numbers = np.array([[number(cell) for cell in row[2:]] for row in rows])
    expected = [one.scores[0, QUERY, :, None], one.probs[0, QUERY, :, None], key, query * key]
    np.testing.assert_allclose(numbers, np.concatenate(expected, 1), rtol=1e-5, atol=1e-5)
    columns, rows = rows_of(opened(open_page, html, "arithmetic", f"{CHOSEN}&key={KEY}"))
    assert columns == ["dimension", "query", "key", "product"]
    products = np.stack([np.arange(len(query)), query, key[KEY], query * key[KEY]], 1)
    np.testing.assert_allclose(np.array(rows, float), products, rtol=1e-6, atol=1e-9)
    columns, rows = rows_of(opened(open_page, html, "text", f"{CHOSEN}&shade=from"))
    assert (columns, [row[1] for row in rows]) == (["position", "token", "from"], tokens)
    weights = [number(row[2]) for row in rows]
    np.testing.assert_allclose(weights, one.probs[0, QUERY], atol=4e-3)
    columns, rows = rows_of(opened(open_page, html, "map", f"{CHOSEN}&window=1-6-2-7"))
    assert columns == ["query", "query token", "key", "key token", "weight"]
    found = {(int(query), int(key)): float(weight) for query, _, key, _, weight in rows}
    wanted = {(i, j): float(one.probs[0, i, j]) for i in range(1, 6) for j in range(2, 7)}
    assert found == pytest.approx(wanted, abs=1e-6)
    assert all(row[1] == tokens[int(row[0])] and row[3] == tokens[int(row[2])] for row in rows)
