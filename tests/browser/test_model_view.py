"""The model view: every head as a small picture, its statistics, order and marks."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import B_START, BLUE, TOKENS, N, Open, drawn_attention, press, state
from playwright.sync_api import Page

import minibert
from minibert.survey.patterns import patterns_of_attention
from minibert.viz import attention_page

READY = ".model-view[data-measured]"
GROUND = (0xF6, 0xF6, 0xF4)


def page_of(attention: np.ndarray, tokens: Any = TOKENS, **options: Any) -> str:
    return attention_page(attention, list(tokens), model="drawn", **options).html


def opened(open_page: Open, hash: str = "view=model", **options: Any) -> Page:
    html = page_of(drawn_attention(), sentence_b_start=B_START)
    return open_page(html, hash, ready=READY, **options)


def grid(page: Page) -> list[float]:
    """Left, top, pitch, drop, side, columns."""
    return [float(n) for n in page.locator(".model-board").get_attribute("data-grid").split()]


def middle(page: Page, slot: int) -> tuple[float, float]:
    left, top, pitch, drop, side, columns = grid(page)
    box = page.locator(".model-board").bounding_box()
    assert box
    row, column = divmod(slot, int(columns))
    return box["x"] + left + column * pitch + side / 2, box["y"] + top + row * drop + side / 2


def point(page: Page, slot: int) -> None:
    page.mouse.move(*middle(page, slot))


def cell(page: Page, slot: int, row: float, column: float, size: int = N) -> tuple[int, int, int]:
    """The colour in the middle of a cell of a small picture."""
    left, top, pitch, drop, side, columns = grid(page)
    y, x = divmod(slot, int(columns))
    at = [
        left + x * pitch + (column + 0.5) * side / size,
        top + y * drop + (row + 0.5) * side / size,
    ]
    return tuple(page.evaluate(PIXEL, at))


PIXEL = """([x, y]) => {
  const board = document.querySelector(".model-board").getBoundingClientRect();
  for (const canvas of document.querySelectorAll(".model-tiles canvas")) {
    const box = canvas.getBoundingClientRect();
    const [dx, dy] = [x + board.left - box.left, y + board.top - box.top];
    if (dy < 0 || dy >= box.height) continue;
    const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const scale = canvas.width / box.width;
    copy.drawImage(canvas, -Math.floor(dx * scale), -Math.floor(dy * scale));
    return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
  }
}"""


def numbers(page: Page) -> dict[str, float]:
    """The statistics on the card, by name; those that say nothing are left out."""
    return dict(
        page.evaluate(
            """[...document.querySelectorAll(".model-card .bar")]
            .map((bar) => [bar.dataset.statistic, bar.querySelector("data").value])
            .filter(([, value]) => value).map(([name, value]) => [name, Number(value)])"""
        )
    )


def expected(probs: np.ndarray) -> dict[str, float]:
    """The statistics of one head of the drawn attention, written out with NumPy."""
    weights = (np.rint(255 * np.sqrt(probs.astype(np.float64))) / 255) ** 2
    rows = np.arange(N)
    plain = np.array([1, 2, 4, 5])
    separators = np.array([3, 6])
    entropy = -np.sum(np.where(weights > 0, weights * np.log(np.maximum(weights, 1e-99)), 0), -1)
    return {
        "previous": weights[plain, plain - 1].mean(),
        "next": weights[plain, plain + 1].mean(),
        "same": weights[plain, plain].mean(),
        "first": weights[1:, 0].mean(),
        "delimiter": weights[np.setdiff1d(rows, separators)][:, separators].sum(1).mean(),
        "broad": (entropy / np.log(N)).mean(),
        "largest": weights.max(-1).mean(),
        "entropy": entropy.mean(),
        "distance": (weights * np.abs(rows[:, None] - rows)).sum(-1).mean(),
    }


def test_pointing_at_a_head_names_it_and_shows_its_statistics(open_page: Open) -> None:
    page = opened(open_page)
    for slot in range(6):
        point(page, slot)
        layer, head = divmod(slot, 3)
        assert page.locator(".model-card h2").inner_text() == f"Layer {layer}, head {head}"
        shown = numbers(page)
        assert shown == pytest.approx(expected(drawn_attention()[layer, head]), abs=1e-6)


def test_marks_heads_that_were_named_before(open_page: Open) -> None:
    trace = minibert.load().trace("the horse turned.")
    found = patterns_of_attention([trace.stack("probs")[:, 0]], trace.tokens.raw, causal=False)
    page = open_page(trace.view(patterns=found).html, "view=model", ready=READY)
    size = len(trace.tokens.raw[0])
    largest = trace.stack("probs")[:, 0, :, 2].argmax(-1).flatten().tolist()
    before = [cell(page, slot, 2, column, size) for slot, column in enumerate(largest)]
    named = [place for place, patterns in found.named().items() if "delimiter" in patterns]
    assert 0 < len(named) < 16
    names = page.get_by_role("group", name="Mark heads known for")
    names.get_by_role("button", name="delimiter").click()
    assert names.locator(".model-found").inner_text() == f"{len(named)} of 16"
    assert state(page)["mark"] == "named.delimiter"
    for slot, column in enumerate(largest):
        same = cell(page, slot, 2, column, size) == before[slot]
        assert same == (divmod(slot, 4) in named), slot
    names.get_by_role("button", name="delimiter").click()
    assert page.locator(".model-found").all_inner_texts() == ["", ""]


def test_sorts_heads_by_a_statistic_and_keeps_it_in_the_address(open_page: Open) -> None:
    page = opened(open_page)
    page.get_by_label("Order of the heads").select_option("first")
    assert state(page) == {"view": "model", "sort": "first"}
    wanted = np.argsort([-expected(head)["first"] for head in drawn_attention().reshape(-1, N, N)])
    found = []
    for slot in range(6):
        point(page, slot)
        found.append(page.locator(".model-card h2").inner_text())
    assert found == [f"Layer {place // 3}, head {place % 3}" for place in wanted]
    again = opened(open_page, "view=model&sort=first&mark=first")
    assert again.get_by_label("Order of the heads").input_value() == "first"
    point(again, 0)
    assert again.locator(".model-card h2").inner_text() == "Layer 0, head 2"
    assert state(opened(open_page, "view=model&sort=x&mark=entropy")) == {"view": "model"}


def test_a_head_is_opened_by_click_or_by_keys(open_page: Open) -> None:
    page = opened(open_page)
    page.mouse.click(*middle(page, 4))
    page.wait_for_selector(".lower[data-drawn]", state="attached")
    assert state(page) == {"layer": "1", "heads": "1"}
    page = opened(open_page)
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight")
    assert page.locator(".model-card h2").inner_text() == "Layer 1, head 2"
    assert page.locator(".model-frame.chosen").is_visible()
    press(page, "ArrowLeft", "Enter")
    assert state(page) == {"layer": "1", "heads": "1"}


def test_a_small_picture_is_the_heads_weights_in_its_colour(open_page: Open) -> None:
    page = opened(open_page)
    assert (cell(page, 0, 3, 3), cell(page, 0, 3, 4)) == (BLUE, GROUND)
    code = np.rint(255 * np.sqrt(float(drawn_attention()[1, 0, 2, 1]))) / 255
    blended = [g + (b - g) * code for g, b in zip(GROUND, BLUE, strict=True)]
    assert cell(page, 3, 2, 1) == pytest.approx(blended, abs=2)
    page.get_by_role("button", name="next token").click()
    assert state(page) == {"view": "model", "mark": "next"}
    assert page.locator(".model-found").inner_text() == "1 of 6"
    faded = [g + (b - g) * 0.3 for g, b in zip(GROUND, BLUE, strict=True)]
    assert cell(page, 0, 3, 3) == pytest.approx(faded, abs=2)
    assert cell(page, 1, 2, 3) == (0xCE, 0x55, 0x09)
    page.get_by_role("button", name="none").click()
    page.locator(".theme").click()
    assert (cell(page, 0, 3, 3), cell(page, 0, 3, 4)) == ((0x51, 0xA0, 0xF7), (0x1D, 0x1E, 0x22))
