"""The layers view: what each layer would predict, as a table of positions and layers."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_pages import softmax
from browser.head_view import B_START, TOKENS, N, Open, drawn_attention, press, state
from playwright.sync_api import Page, expect

import minibert
from minibert.analysis.lens import logit_lens
from minibert.viz import attention_page
from minibert.viz.live import live_page

pytestmark = pytest.mark.browser
READY = ".layers-view[data-drawn]"
PLACES = 5


def made_up(n_tokens: int, n_points: int, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Predictions with known names, "point.position.place", and random probabilities."""
    rng = np.random.default_rng(11)
    probs = -np.sort(-rng.dirichlet(np.ones(PLACES + 3), (n_points, n_tokens)))[..., :PLACES]
    strings = [
        [
            [words[(i + j) % len(words)] if words else f"{p}.{i}.{j}" for j in range(PLACES)]
            for i in range(n_tokens)
        ]
        for p in range(n_points)
    ]
    points = ["embed", *(f"resid_post {layer}" for layer in range(n_points - 1))]
    return {"points": points, "probs": probs.round(5).tolist(), "strings": strings}


def lens_page(
    lens: dict[str, Any], probs: np.ndarray | None = None, tokens: Any = TOKENS, **options: Any
) -> str:
    weights = drawn_attention() if probs is None else probs
    page = attention_page(weights, tokens, model="drawn", **options)
    [one] = page.examples
    examples = (replace(one, about={**one.about, "lens": lens}),)
    return replace(page, examples=examples, view="layers").html


def small(open_page: Open, hash: str = "", **options: Any) -> Page:
    html = lens_page(made_up(N, 3), sentence_b_start=B_START)
    return open_page(html, hash, ready=READY, **options)


def cell(page: Page, row: int, point: int) -> Any:
    return page.locator(f".layers-row[data-index='{row}'] .layers-cell").nth(point)


def predictions(page: Page) -> list[tuple[str, float]]:
    """The card's tokens and probabilities."""
    found = page.locator(".layers-bar").evaluate_all(
        "(all) => all.map((b) => [b.querySelector('.chip').textContent,"
        " Number(b.querySelector('data').value)])"
    )
    return [tuple(pair) for pair in found]


def test_each_cell_has_the_most_probable_token_shaded_by_its_probability(open_page: Open) -> None:
    page, lens = small(open_page), made_up(N, 3)
    expect(page.locator(".layers-point")).to_have_text(["embed", "0", "output"])
    expect(page.locator(".layers-name")).to_have_text(
        ["[CLS]", "straw", "berries", "[SEP]", "rain", "falls", "[SEP]"]
    )
    alphas = np.zeros((N, 3))
    for row in range(N):
        for point in range(3):
            one = cell(page, row, point)
            expect(one).to_have_text(f"{point}.{row}.0")
            color = one.evaluate("(item) => getComputedStyle(item).backgroundColor")
            alphas[row, point] = float(color.split(",")[3].rstrip(")"))
    probs = np.array(lens["probs"])[:, :, 0].T
    np.testing.assert_allclose(alphas / alphas.max(), probs / probs.max(), atol=0.02)


def test_pointing_at_a_cell_shows_its_five_most_probable_tokens(open_page: Open) -> None:
    page, lens = small(open_page), made_up(N, 3)
    expect(page.locator(".layers-card")).to_contain_text("Point at a cell")
    cell(page, 2, 1).hover()
    probs = lens["probs"][1][2]
    assert predictions(page) == [(f"1.2.{i}", pytest.approx(probs[i])) for i in range(PLACES)]
    expect(page.locator(".layers-about")).to_have_text("After layer 0at ##berriesposition 2")
    expect(page.locator(".layers-bar data").first).to_have_text(f"{100 * probs[0]:.1f}\u202f%")
    cell(page, 4, 0).hover()
    expect(page.locator(".layers-about")).to_contain_text("Before the first layer")
    page.mouse.move(2, 2)
    expect(page.locator(".layers-card")).to_contain_text("Point at a cell")


def test_a_model_shows_what_its_layers_would_predict(open_page: Open) -> None:
    model = minibert.load()
    trace = model.trace("the rabbit was very hot")
    page = open_page(trace.view().html, "view=layers", ready=READY)
    logits = trace.logits[0].softmax(-1)
    last = page.locator(".layers-row").evaluate_all(
        "(rows) => rows.map((row) => row.lastElementChild.textContent)"
    )
    best = [model.tokenizer.string(int(i)).strip() for i in logits.argmax(-1)]
    assert last == best
    page.locator(".layers-row .layers-cell:last-child").nth(2).hover()
    assert predictions(page)[0][1] == pytest.approx(float(logits[2].max()), abs=1e-4)
    assert re.match(r"After layer \d+, the output", page.locator(".where").first.inner_text())


def test_a_page_before_a_model_asks_for_it_when_it_is_looked_at_and_saves_it(
    open_page: Open, tmp_path: Path
) -> None:
    text = "The boys [MASK] very tired."
    model = minibert.load("tiny-bert")
    lens = logit_lens(model.trace(text), points=("embed", "resid_post"), top=1)
    expected = [list(column) for column in zip(*lens.texts(0), strict=True)]

    def shown(page: Page) -> list[list[str]]:
        page.wait_for_selector(READY)
        return page.locator(".layers-row").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('.layers-cell')]"
            ".map(cell => cell.textContent))"
        )

    page = open_page(live_page(model, [text]).html, "", ready="[data-drawn]")
    page.get_by_role("tab", name="Layers").click()
    assert shown(page) == expected
    page.get_by_role("tab", name="Python").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save without the model").click()
    path = tmp_path / "saved.html"
    download.value.save_as(path)
    saved = open_page(path.read_text(encoding="utf-8"), "", ready=READY)
    assert shown(saved) == expected


def test_positions_are_kept_and_layers_opened_by_click_and_by_keys(open_page: Open) -> None:
    page = small(open_page)
    cell(page, 4, 1).click()
    assert state(page) == {"query": "4"}
    page.mouse.move(2, 2)
    expect(page.locator(".layers-row.kept .layers-name")).to_have_text("rain")
    assert predictions(page)[0][0] == "1.4.0"
    page.get_by_role("tab", name="Head", exact=True).click()
    expect(page.locator(".query .token.kept")).to_have_text("rain")
    page = small(open_page)
    expect(page.locator(".layers-point.now")).to_have_text("0")
    page.locator(".layers-point", has_text="output").click()
    assert state(page) == {"layer": "1"}
    expect(page.locator(".layers-point.now")).to_have_text("output")
    page = small(open_page)
    page.locator(".layers-table").focus()
    press(page, "ArrowDown", "ArrowDown", "ArrowLeft")
    assert predictions(page)[0][0] == "1.2.0"
    active = page.locator(".layers-table").get_attribute("aria-activedescendant")
    expect(page.locator(f"[id='{active}']")).to_have_text("1.2.0")
    press(page, "Enter")
    assert state(page) == {"query": "2"}
    press(page, "Escape")
    assert state(page) == {}


def test_what_the_output_says_too_is_bold_and_the_legend_says_which_token(open_page: Open) -> None:
    lens = made_up(N, 3)
    lens["strings"][1][2][0] = lens["strings"][2][2][0]
    page = open_page(lens_page(lens), ready=READY)
    weights = [cell(page, 2, p).evaluate("(c) => getComputedStyle(c).fontWeight") for p in range(3)]
    assert weights == ["400", "600", "600"]
    expect(page.locator(".legend")).to_contain_text("the token that stands there")
    page = open_page(lens_page(made_up(N, 3), softmax((2, 1, N, N), causal=True)), ready=READY)
    expect(page.locator(".legend")).to_contain_text("the token that follows")
    page = open_page(attention_page(drawn_attention(), TOKENS).html, "view=layers")
    assert page.get_by_role("tab", name="Layers", exact=True).count() == 0
