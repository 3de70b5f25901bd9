"""The live page in real browsers: what one types and changes, against the same in Python."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from browser.firefox import firefox
from browser.head_view import Open
from playwright.sync_api import Locator, Page

import minibert
from minibert.trace.edit import zero
from minibert.viz.live import live_page

TEXT = "The boys [MASK] very tired."
PLACE = 3
WORDS = "red horse blue door green tree red horse blue"
# One of each kind, as the page's address writes them.
EDITS = (
    "z-zero-L0-H1", "attn_out-mean-L2", "mlp_out-text-L3", "scores-hide-K4",
    "scores-hide-L1-H0-P3-K1", "scores-hide-L1-H0-P2-K1", "probs-set-L0-H2-P3-K2-V0.35",
    "mlp_post-zero-L2-N17", "mlp_post-mean-L2-P3-N18", "mlp_post-mean-L2-N19",
    "mlp_post-text-L2-N20", "z-mean-L3-H2", "z-text-L2-H1", "z-zero-L1-H3-P2",
    "mlp_out-mean-L0-P4", "attn_out-text-L1-P3",
)  # fmt: skip
# Counts the frames in which no drawn picture is seen.
WATCH = """() => {
  window.watched = { frames: 0, empty: 0 };
  const look = () => {
    watched.frames += 1;
    const picture = document.querySelector(".pictures:not(.arriving) .lower");
    watched.empty += Number(!picture?.matches("[data-drawn]"));
    requestAnimationFrame(look);
  };
  look();
}"""
# Of an engine in single precision.
NEAR = 1e-4


@pytest.fixture(scope="module")
def bert() -> minibert.Model:
    return minibert.load("tiny-bert")


@pytest.fixture(scope="module")
def gpt2() -> minibert.Model:
    return minibert.load("tiny-gpt2")


@pytest.fixture(scope="module")
def bert_page(bert: minibert.Model) -> str:
    return live_page(bert, [TEXT]).html


@pytest.fixture(scope="module")
def gpt2_page(gpt2: minibert.Model) -> str:
    return live_page(gpt2, [WORDS]).html


def settled(page: Page) -> Page:
    """The page when it has answered all that it was asked, and written its address."""
    page.wait_for_timeout(30)
    page.wait_for_selector("#page[aria-busy=false]")
    page.wait_for_timeout(300)
    return page


@pytest.fixture
def opened(open_page: Open) -> Callable[..., Page]:
    def opened(html: str, hash: str = "", **options: Any) -> Page:
        return settled(open_page(html, hash, ready="[data-drawn]", **options))

    return opened


def field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Text", exact=True)


def cell(page: Page, layer: int, head: int) -> Locator:
    return page.locator(f'.live-cell[data-layer="{layer}"][data-head="{head}"]')


def bars(page: Page, of: str) -> dict[int, float]:
    """The probabilities in the bars, by token id."""
    found = page.locator(".live-bar[data-id]").evaluate_all(
        "(all, of) => all.map((bar) => [bar.dataset.id, "
        "bar.querySelector(`[data-of=${of}]`)?.value])",
        of,
    )
    return {int(token): float(value) for token, value in found if value}


def probs_of(trace: Any, place: int) -> torch.Tensor:
    return trace.logits[0, place].softmax(-1)


def check_bars(page: Page, of: str, probs: torch.Tensor) -> None:
    """The bars are the model's probabilities, the five most probable tokens among them."""
    shown = bars(page, of)
    assert set(probs.topk(5).indices.tolist()) <= set(shown)
    for token, prob in shown.items():
        assert abs(prob - float(probs[token])) < NEAR


def test_tokens_weights_and_prediction_follow_each_key(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    check_bars(page, "before", probs_of(bert.trace(TEXT), PLACE))
    field(page).press("End")
    page.evaluate(WATCH)
    page.keyboard.type(" It rained", delay=40)
    trace = bert.trace(text := f"{TEXT} It rained")
    settled(page)
    assert page.locator(".live-token").all_inner_texts() == list(trace.tokens.raw[0])
    check_bars(page, "before", probs_of(trace, PLACE))
    assert field(page).input_value() == text
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    assert page.evaluate("watched.frames") > 10
    assert page.evaluate("watched.empty") == 0
    page.locator(".live-token").nth(2).click()
    page.get_by_role("tab", name="Weights").click()
    settled(page)
    shown = page.locator(".live-weights output").all_inner_texts()
    weights = trace[0, 0].probs[0, 2].tolist()
    assert [float(one.split("\u202f")[0]) for one in shown] == pytest.approx(
        [100 * weight for weight in weights], abs=0.06
    )


def test_a_head_is_switched_off_and_on_again_by_keyboard_alone(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    cell(page, 0, 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    settled(page)
    assert cell(page, 0, 1).get_attribute("aria-pressed") == "true"
    after = bert.trace(TEXT, edit={("z", 0, 1): zero})
    check_bars(page, "before", probs_of(bert.trace(TEXT), PLACE))
    check_bars(page, "after", probs_of(after, PLACE))
    assert page.locator(".which").all_inner_texts()[:2] == ["Before", "After"]
    before = bert.trace(TEXT)
    moved = (after[1, 2].probs - before[1, 2].probs).abs().sum(-1).mean() / 2
    assert float(cell(page, 1, 2).get_attribute("data-value") or "nan") == pytest.approx(
        float(moved), abs=4e-3
    )
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0
    assert bars(page, "after") == {}
    assert page.locator("section.picture").count() == 0
    page.keyboard.press("Control+Shift+Z")
    settled(page)
    check_bars(page, "after", probs_of(after, PLACE))


def test_a_sweep_says_how_much_each_head_matters(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    page.wait_for_selector(".live-cell[data-value]")
    clean = probs_of(bert.trace(TEXT), PLACE)
    word = int(clean.argmax())
    for layer, head in ((0, 1), (1, 3), (3, 0)):
        without = probs_of(bert.trace(TEXT, edit={("z", layer, head): zero}), PLACE)
        shown = float(cell(page, layer, head).get_attribute("data-value") or "nan")
        assert shown == pytest.approx(math.log(without[word] / clean[word]), abs=1e-3)


def executed(page: Page) -> dict[str, Any]:
    """What the Python that the page writes leaves behind."""
    page.get_by_role("tab", name="Python").click()
    known: dict[str, Any] = {}
    exec(page.locator(".live-python").inner_text(), known)
    return known


def test_the_python_of_the_page_gives_its_numbers(
    bert_page: str, opened: Callable[..., Page], capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened(bert_page, f"edits={'*'.join(EDITS)}&other=The+men+were+very+tired.")
    assert page.locator(".live-changes li").count() == len(EDITS)
    known = executed(page)
    check_bars(page, "before", probs_of(known["before"], PLACE))
    check_bars(page, "after", probs_of(known["after"], PLACE))
    assert "after 3 {" in capsys.readouterr().out


def test_the_python_of_a_causal_model_and_of_a_pair_gives_their_numbers(
    bert: minibert.Model, bert_page: str, gpt2_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(gpt2_page, "edits=z-zero-L1-H0*scores-hide-K2*probs-set-L0-H3-P8-K1-V0.9")
    check_bars(page, "after", probs_of(executed(page)["after"], -1))
    pair = opened(bert_page, "text=A+[MASK]+ran.&second=It+was+fast.&edits=mlp_out-zero-L1")
    known = executed(pair)
    assert known["after"].tokens.texts[0] == ("A [MASK] ran.", "It was fast.")
    check_bars(pair, "after", probs_of(known["after"], 2))


def test_a_drawn_bar_sets_a_weight_and_scales_the_others(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "query=3&heads=2")
    page.get_by_role("tab", name="Weights").click()
    settled(page)
    before = bert.trace(TEXT)[0, 2].probs[0, 3]
    page.locator(".live-weights li[data-key='2'] input").fill("400")
    settled(page)
    shown = [float(one[:-2]) for one in page.locator(".live-weights output").all_inner_texts()]
    expected = before * (0.6 / (1 - before[2]))
    expected[2] = 0.4
    assert shown == pytest.approx((100 * expected).tolist(), abs=0.06)
    # One step, however often the bar was moved.
    page.locator(".live-weights li[data-key='2'] input").press("ArrowRight")
    page.get_by_role("button", name="this layer").click()
    page.locator(".live-weights li[data-key='4'] button").click()
    settled(page)
    assert "scores-hide-L0-P3-K4" in page.evaluate("location.hash")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0


def test_words_are_masked_tokens_hidden_and_changes_follow_their_tokens(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    page.locator(".live-token", has_text="tired").click()
    page.get_by_role("button", name="Mask this word").click()
    settled(page)
    text = "The boys [MASK] very [MASK]."
    assert field(page).input_value() == text
    page.get_by_role("button", name="Masked word 2").click()
    settled(page)
    check_bars(page, "before", probs_of(bert.trace(text), 5))
    page.locator(".live-token", has_text="boys").click()
    page.get_by_role("button", name="Hide this token").click()
    settled(page)
    assert "edits=scores-hide-K2" in page.evaluate("location.hash")
    field(page).press("Home")
    page.keyboard.type("Now ")
    settled(page)
    assert "edits=scores-hide-K3" in page.evaluate("location.hash")
    assert "hidden-token" in (
        page.locator(".live-token", has_text="boys").get_attribute("class") or ""
    )


def test_a_reload_gives_the_same(bert_page: str, opened: Callable[..., Page]) -> None:
    page = opened(bert_page, "view=model")
    cell(page, 0, 1).click()
    page.locator(".live-token").nth(2).click()
    settled(page)
    there = (bars(page, "after"), page.evaluate("location.hash"))
    page = opened(bert_page, there[1][1:])
    assert (bars(page, "after"), page.evaluate("location.hash")) == there
    assert page.locator(".picture .model-board").count() == 2
    assert page.locator(".live-token[aria-selected=true]").inner_text() == "boys"


def test_one_picture_alone_and_a_pair_come_back_too(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "text=A+[MASK]+ran.&second=It+slept.&edits=z-zero-L0-H1")
    assert page.locator(".picture").count() == 2
    page.get_by_role("combobox", name="Compare with").select_option("")
    settled(page)
    page = opened(bert_page, page.evaluate("location.hash")[1:])
    assert page.locator(".picture").count() == 0
    assert page.get_by_role("textbox", name="Second sentence").input_value() == "It slept."


def test_the_next_token_is_drawn_as_its_bars_say(
    gpt2: minibert.Model, gpt2_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(gpt2_page, "temperature=0")
    (best,) = gpt2.predict(WORDS, top=1)
    page.get_by_role("button", name="Add “").click()
    settled(page)
    assert field(page).input_value() == f"{WORDS}{best.choices[0].label}"
    page = opened(gpt2_page, "temperature=1.5&topk=3")
    logits = gpt2.trace(WORDS).logits[0, -1] / 1.5
    top = logits.topk(3)
    drawn = page.locator(".live-bar .live-change").all_inner_texts()[:3]
    assert [float(one.split()[1].split("\u202f")[0]) for one in drawn] == pytest.approx(
        (100 * top.values.softmax(-1)).tolist(), abs=0.06
    )


def test_a_saved_page_has_the_numbers_and_no_model(
    bert_page: str, opened: Callable[..., Page], open_page: Open, tmp_path: Path
) -> None:
    page = opened(bert_page, "edits=z-zero-L0-H1&layer=1")
    page.get_by_role("tab", name="Python").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save without the model").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    assert saved.stat().st_size < len(bert_page) / 4
    alone = open_page(saved.read_text(), "layer=1&beside=1")
    assert alone.locator(".which").all_inner_texts()[:2] == ["Before", "After"]
    assert alone.locator("textarea").count() == 0
    said = alone.locator(".note").all_inner_texts()
    assert said[0].startswith("Predicted at “[MASK]”, token 3: “are” 58.7")
    assert said[1] == "Changed: Layer 0, head 1 to zero."
    assert said[2].startswith("Predicted at “[MASK]”, token 3: “was” 69.5")
    lines = [one.locator(".lower").first for one in (page, alone)]
    assert lines[0].get_attribute("data-lines") == lines[1].get_attribute("data-lines")


def test_what_cannot_be_run_is_said_and_the_picture_stays(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page)
    field(page).fill("")
    settled(page)
    assert "at least one word" in page.get_by_role("alert").first.inner_text()
    assert page.locator(".live-token").count() == 8
    field(page).fill("The boys")
    settled(page)
    assert not page.locator(".live-wrong").is_visible()
    assert "mask it" in page.locator(".live-prediction").inner_text()


def test_an_address_that_asks_for_what_the_model_lacks_opens_all_the_same(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "text=A+horse&edits=z-zero-L7-H0")
    assert "7" in page.locator(".live-wrong").inner_text()
    assert page.locator(".live-token").all_inner_texts() == ["[CLS]", "a", "horse", "[SEP]"]
    assert page.locator(".live-changes li").count() == 0


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_window(
    bert_page: str, opened: Callable[..., Page], width: int
) -> None:
    long = "edits=z-zero-L0-H1&other=" + "a+rather+long+text+" * 6
    page = opened(bert_page, long, viewport={"width": width, "height": 800})
    for name in ("Changes", "Heads and layers"):
        if (button := page.locator(".live-switch").get_by_role("button", name=name)).is_visible():
            button.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_heads_are_changed_in_the_model_view_and_nothing_has_no_name(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "view=model")
    page.get_by_role("button", name="changes it").click()
    left, top, pitch, drop, side, _ = map(
        float, (page.locator(".model-board").get_attribute("data-grid") or "").split()
    )
    at = {"x": left + pitch + side / 2, "y": top + 2 * drop + side / 2}
    page.locator(".model-board").click(position=at)
    settled(page)
    assert cell(page, 2, 1).get_attribute("aria-pressed") == "true"
    assert "view=model" in page.evaluate("location.hash")
    nameless = page.locator(".live-top :is(button, input, textarea, select)").evaluate_all(
        "(all) => all.filter((one) => !(one.ariaLabel || one.textContent.trim())).length"
    )
    assert nameless == 0
    assert re.search("Layer 2, head 1, set to zero", cell(page, 2, 1).get_attribute("aria-label"))


def test_firefox_runs_the_model_too(bert: minibert.Model, bert_page: str, tmp_path: Path) -> None:
    path = tmp_path / "live.html"
    path.write_text(bert_page, encoding="utf-8")
    (profile := tmp_path / "profile").mkdir()
    idle = "document.querySelector('#page[aria-busy=false] [data-drawn]')"
    type_it = (
        "(() => { const field = document.querySelector('.live-text');"
        f" field.value = {TEXT.replace('boys', 'men')!r};"
        " field.dispatchEvent(new Event('input')); })()"
    )
    with firefox(profile) as tab:
        tab.open(path)
        tab.wait(idle)
        tab.value(type_it)
        tab.wait(f"{idle} && document.querySelectorAll('.live-token')[2].textContent === 'men'")
        tab.value('document.querySelector(\'[data-layer="0"][data-head="1"]\').click()')
        tab.wait(f"{idle} && document.querySelector('.live-bar [data-of=after]')")
        shown = tab.value(
            "[...document.querySelectorAll('.live-bar')].map((bar) => [bar.dataset.id,"
            " bar.querySelector('[data-of=after]').value])"
        )
        assert tab.said == []
    probs = probs_of(bert.trace(TEXT.replace("boys", "men"), edit={("z", 0, 1): zero}), PLACE)
    assert {int(token) for token, _ in shown} >= set(probs.topk(5).indices.tolist())
    for token, value in shown:
        assert abs(float(value) - float(probs[int(token)])) < NEAR
