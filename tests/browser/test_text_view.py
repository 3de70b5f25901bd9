"""The text view: running text or a picture, shaded by the attention or relevance of its tokens."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attention_pages import HOSTILE, softmax
from browser.head_view import B_START, TOKENS, N, Open, drawn_attention, pair_page, press, state
from playwright.sync_api import Page, expect

import minibert
from minibert.analysis import relevance_of
from minibert.analysis.flow import relevance
from minibert.trace.read import Trace
from minibert.viz import attention_page

pytestmark = pytest.mark.browser
READY = ".text-view[data-drawn]"
SPECIAL = (0, 3, 6)
WORDS = (1, 2, 4, 5)


def text_page(open_page: Open, hash: str = "", html: str | None = None, **options: Any) -> Page:
    return open_page(html or pair_page(view="text"), hash, ready=READY, **options)


def words(page: Page) -> Any:
    return page.locator(".text-token")


def alphas(page: Page) -> list[float]:
    """The opacity of each token's shade."""
    colors = words(page).evaluate_all(
        "(all) => all.map((item) => getComputedStyle(item).backgroundColor.match(/[\\d.]+/g))"
    )
    return [float(color[3]) if len(color) > 3 else 1.0 for color in colors]


def check_shades(page: Page, values: np.ndarray, ordinary: Sequence[int] = WORDS) -> None:
    """Shades grow with the size of values up to the largest of an ordinary token."""
    shades = np.array(alphas(page))
    assert shades.max() > 0.4
    expected = np.minimum(np.abs(values) / np.abs(values[list(ordinary)]).max(), 1)
    np.testing.assert_allclose(shades / shades.max(), expected, atol=0.02)


def numbers(page: Page) -> dict[str, float]:
    """The bars of the card: token and number."""
    rows = page.locator(".details .bar").evaluate_all(
        "(all) => all.map((bar) => [bar.querySelector('.name').textContent,"
        " Number(bar.querySelector('data').value)])"
    )
    return dict(rows)


def test_two_texts_stand_on_lines_of_their_own_and_pieces_join(open_page: Open) -> None:
    page = text_page(open_page)
    expect(page.locator(".text-line")).to_have_text(
        ["A[CLS] strawberries [SEP]", "Brain falls [SEP]"]
    )
    expect(words(page)).to_have_count(N)
    assert page.locator("[data-choice=relevance]").count() == 0
    sizes = words(page).evaluate_all("(all) => all.map((w) => getComputedStyle(w).fontSize)")
    assert {sizes[i] for i in SPECIAL} != {sizes[i] for i in WORDS}


def test_tokens_are_shaded_by_the_mean_attention_they_receive(open_page: Open) -> None:
    page = text_page(open_page, "layer=1")
    values = drawn_attention()[1].mean((0, 1))
    check_shades(page, values)
    shown = numbers(page)
    assert len(shown) == 5
    first, number = next(iter(shown.items()))
    assert first == TOKENS[values.argmax()]
    assert number == pytest.approx(values.max(), abs=4e-3)
    legend = page.locator(".legend")
    expect(legend).to_contain_text(f"{100 * values[list(WORDS)].max():.1f}\u202f%")
    expect(legend).to_contain_text("each would get 14.3\u202f%")
    expect(page.locator(".where")).to_have_text("Layer 1, mean of 3 heads")


def test_very_long_texts_come_in_parts(open_page: Open) -> None:
    n = 2100
    html = attention_page(
        np.full((1, 1, n, n), 1 / n), [f"w{i}" for i in range(n)], view="text"
    ).html
    page = text_page(open_page, "", html)
    expect(words(page).last).to_have_text("w679")
    page.get_by_role("button", name="tokens 680 to 1359").click()
    expect(words(page).first).to_have_text("w680")
    page = text_page(open_page, "query=2050", html)
    expect(page.locator(".text-token.kept")).to_have_text("w2050")
    expect(page.locator(".text-token.kept")).to_be_in_viewport()


def test_only_the_heads_and_tokens_that_take_part_count(open_page: Open) -> None:
    page = text_page(open_page, "layer=1&heads=2")
    check_shades(page, drawn_attention()[1, 2].mean(0))
    color = words(page).first.evaluate("(item) => getComputedStyle(item).backgroundColor")
    assert color.startswith("rgba(20, 153, 115")
    page.get_by_role("button", name="Head 1", exact=True).click()
    expect(page.locator(".where")).to_have_text("Layer 1, mean of 2 heads")
    check_shades(page, drawn_attention()[1, 1:].mean((0, 1)))
    page = text_page(open_page, "heads=none")
    assert max(alphas(page)) == 0
    expect(page.locator(".details")).to_contain_text("No head is switched on.")
    page = text_page(open_page, "layer=1&special=off&filter=ab")
    queries = [i for i in range(B_START) if i not in SPECIAL]
    values = drawn_attention()[1].mean(0)[queries].mean(0)
    shades = alphas(page)
    assert [i for i in range(N) if shades[i]] == [4, 5]
    assert shades[5] / shades[4] == pytest.approx(values[5] / values[4], rel=0.05)


def test_where_a_token_looks_and_who_looks_at_it(open_page: Open) -> None:
    page = text_page(open_page, "layer=1&shade=from")
    assert max(alphas(page)) == 0
    expect(page.locator(".details")).to_contain_text("Point at a token to see where it looks")
    words(page).nth(2).hover()
    check_shades(page, drawn_attention()[1, :, 2].mean(0))
    words(page).nth(4).click()
    check_shades(page, drawn_attention()[1, :, 4].mean(0))
    expect(words(page).nth(4)).to_have_class(re.compile("kept"))
    words(page).nth(1).hover()
    expect(page.locator(".details h2")).to_have_text("rain looks at straw")
    shown = float(page.locator(".details .big").get_attribute("value") or "nan")
    assert shown == pytest.approx(drawn_attention()[1, :, 4, 1].mean(), abs=4e-3)
    page = text_page(open_page, "layer=1&shade=to&key=5")
    check_shades(page, drawn_attention()[1, :, :, 5].mean(0))
    expect(page.locator(".details h2")).to_have_text("falls is looked at by")


def test_tokens_are_kept_for_all_views_by_click_and_by_keys(open_page: Open) -> None:
    page = text_page(open_page)
    words(page).nth(4).click()
    assert state(page) == {"query": "4"}
    page.get_by_role("button", name="who looks at it").click()
    words(page).nth(1).click()
    assert state(page) == {"shade": "to", "query": "4", "key": "1"}
    page.get_by_role("tab", name="Head", exact=True).click()
    page.wait_for_selector(".lower[data-drawn]", state="attached")
    expect(page.locator(".query .token.kept")).to_have_text("rain")
    page = text_page(open_page)
    words(page).first.focus()
    press(page, "ArrowDown", "ArrowDown", "Enter")
    assert state(page) == {"query": "2"}
    press(page, "ArrowUp")
    assert words(page).nth(1).get_attribute("aria-selected") == "true"
    press(page, "ArrowRight")
    assert state(page) == {"layer": "1", "query": "1"}
    press(page, "Escape")
    assert state(page) == {"layer": "1"}


def test_text_runs_as_it_is_written_whoever_wrote_it(open_page: Open) -> None:
    def of(tokens: list[str], hash: str = "", **options: Any) -> Page:
        weights = softmax((1, 1, len(tokens), len(tokens)), **options)
        return text_page(open_page, hash, attention_page(weights, tokens, view="text").html)

    tokens = ["<|endoftext|>", "The", "Ġfox", ".", "\n", "Now", "Ġ", "Ġthe", "Ġend"]
    page = of(tokens, causal=True)
    shown = page.locator(".text-line").inner_text().replace("\u200b", "")
    assert shown == "<|endoftext|> The fox.↵\nNow· the end"
    expect(page.locator(".legend")).to_contain_text("reads in one direction")
    page = of(["[CLS]", "ذهبت", "إلى", "المتجر", "[SEP]"])
    lefts = words(page).evaluate_all("(all) => all.map((w) => w.getBoundingClientRect().left)")
    assert lefts == sorted(lefts, reverse=True)
    page = of(list(HOSTILE), "find=script")
    assert page.evaluate("window.pwned") is None
    assert words(page).nth(0).inner_text() == HOSTILE[0]
    assert words(page).nth(3).inner_text() == "⟨U+202E⟩gnp.exe"
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


@pytest.fixture(scope="module")
def trace() -> Trace:
    """[CLS] the horse quickly ran away . [SEP], and the gradient of a word's logit."""
    trace = minibert.load().trace("the horse quickly ran away .", grad=True)
    trace.backward(trace.logits[0, 2].amax())
    return trace


def test_a_page_with_relevance_shades_by_it_at_once(open_page: Open, trace: Trace) -> None:
    found = relevance_of(trace, 2)
    values = found.values[0, 0].double().numpy()
    page = open_page(trace.view(view="text", relevance=found).html, ready=READY)
    expect(page.locator("[data-choice=relevance]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".details h2")).to_have_text("relevance for horse")
    check_shades(page, values, (1, 3, 4, 5, 6))
    strings = trace.tokens.strings[0]
    strongest = np.argsort(-values)[:5]
    expected = {strings[i]: pytest.approx(values[i], rel=1e-4) for i in strongest}
    assert numbers(page) == expected
    page.locator("[data-choice=received]").click()
    expect(page.locator("[data-choice=received]")).to_have_attribute("aria-pressed", "true")


def test_of_a_table_the_row_of_the_chosen_token_is_shown(open_page: Open, trace: Trace) -> None:
    found = relevance(trace).values[0].double().numpy()
    page = open_page(trace.view(view="text", relevance=relevance(trace)).html, ready=READY)
    expect(page.locator(".details h2")).to_have_text("relevance for [CLS]")
    check_shades(page, found[0], range(1, 7))
    page.locator(".text-token").nth(2).click()
    page.mouse.move(0, 0)
    expect(page.locator(".details h2")).to_have_text("relevance for horse")
    check_shades(page, found[2], (1, 3, 4, 5, 6))
    assert numbers(page)["horse"] == pytest.approx(found[2, 2], rel=1e-4)
    page.locator(".text-token").nth(4).hover()
    expect(page.locator(".details h2")).to_have_text("ran · relevance for horse")
    value = page.locator(".details data.big").get_attribute("value")
    assert float(value or "nan") == pytest.approx(found[2, 4], rel=1e-4)
