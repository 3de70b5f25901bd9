"""Relevance in the text view: the numbers of the analysis, as shades and on the card."""

from typing import Any

import numpy as np
import pytest
from browser.head_view import Open
from playwright.sync_api import Page, expect

import minibert
from minibert.analysis import relevance_of
from minibert.analysis.flow import relevance
from minibert.trace.read import Trace

pytestmark = pytest.mark.browser
READY = ".text-view[data-drawn]"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """[CLS] the horse quickly ran away . [SEP], and the gradient of a word's logit."""
    trace = minibert.load().trace("the horse quickly ran away .", grad=True)
    trace.backward(trace.logits[0, 2].amax())
    return trace


def opacities(page: Page) -> np.ndarray:
    colors = page.locator(".text-token").evaluate_all(
        "(all) => all.map((item) => getComputedStyle(item).backgroundColor.match(/[\\d.]+/g))"
    )
    return np.array([float(color[3]) if len(color) > 3 else 1 for color in colors])


def check_shades(page: Page, values: np.ndarray, of: int) -> None:
    """Shades grow up to the largest number of another ordinary token than the output's own."""
    ordinary = [i for i in range(1, len(values) - 1) if i != of]
    expected = np.minimum(np.abs(values) / np.abs(values[ordinary]).max(), 1)
    shades = opacities(page)
    np.testing.assert_allclose(shades / shades.max(), expected, atol=0.02)


def bars(page: Page) -> dict[str, float]:
    found: list[Any] = page.locator(".details .bar").evaluate_all(
        "(all) => all.map((bar) => [bar.querySelector('.name').textContent,"
        " Number(bar.querySelector('data').value)])"
    )
    return dict(found)


def test_a_page_with_relevance_shades_by_it_at_once(open_page: Open, trace: Trace) -> None:
    found = relevance_of(trace, 2)
    values = found.values[0, 0].double().numpy()
    page = open_page(trace.view(view="text", relevance=found).html, ready=READY)
    expect(page.locator("[data-choice=relevance]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".details h2")).to_have_text("relevance for horse")
    check_shades(page, values, 2)
    strings = trace.tokens.strings[0]
    strongest = np.argsort(-values)[:5]
    expected = {strings[i]: pytest.approx(values[i], rel=1e-4) for i in strongest}
    assert bars(page) == expected
    page.locator("[data-choice=received]").click()
    expect(page.locator("[data-choice=received]")).to_have_attribute("aria-pressed", "true")


def test_of_a_table_the_row_of_the_chosen_token_is_shown(open_page: Open, trace: Trace) -> None:
    found = relevance(trace).values[0].double().numpy()
    page = open_page(trace.view(view="text", relevance=relevance(trace)).html, ready=READY)
    expect(page.locator(".details h2")).to_have_text("relevance for [CLS]")
    check_shades(page, found[0], 0)
    page.locator(".text-token").nth(2).click()
    page.mouse.move(0, 0)
    expect(page.locator(".details h2")).to_have_text("relevance for horse")
    check_shades(page, found[2], 2)
    assert bars(page)["horse"] == pytest.approx(found[2, 2], rel=1e-4)
    page.locator(".text-token").nth(4).hover()
    expect(page.locator(".details h2")).to_have_text("ran · relevance for horse")
    value = page.locator(".details data.big").get_attribute("value")
    assert float(value or "nan") == pytest.approx(found[2, 4], rel=1e-4)
