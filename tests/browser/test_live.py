"""The live page in real browsers: what one types and changes, against the same in Python."""

from itertools import pairwise
from typing import Any

import pytest
from browser.live_pages import PLACE, TEXT, WORDS, bars, cell, check_bars, field, probs_of, settled
from playwright.sync_api import Page

from minibert.trace.edit import zero

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


def test_tokens_weights_and_prediction_follow_each_key(bert, bert_page, opened):
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


def test_a_head_is_switched_off_and_on_again_by_keyboard_alone(bert, bert_page, opened):
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
    assert float(cell(page, 1, 2).inner_text()) == pytest.approx(100 * float(moved), abs=0.95)
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0
    assert bars(page, "after") == {}
    assert page.locator("section.picture").count() == 0
    page.keyboard.press("Control+Shift+Z")
    settled(page)
    check_bars(page, "after", probs_of(after, PLACE))


def test_a_drawn_bar_sets_a_weight_and_scales_the_others(bert, bert_page, opened):
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
    page.get_by_role("button", name="this layer").click()
    page.locator(".live-weights li[data-key='4'] button").click()
    settled(page)
    assert "scores-hide-L0-P3-K4" in page.evaluate("location.hash")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator(".live-changes li").count() == 0


def test_words_are_masked_tokens_hidden_and_changes_follow_their_tokens(bert, bert_page, opened):
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


def test_what_cannot_be_run_is_said_and_the_picture_stays(bert_page, opened):
    page = opened(bert_page)
    field(page).fill("")
    settled(page)
    assert "at least one word" in page.get_by_role("alert").first.inner_text()
    assert page.locator(".live-token").count() == 8
    field(page).fill("The boys")
    settled(page)
    assert not page.locator(".live-wrong").is_visible()
    assert "mask it" in page.locator(".live-prediction").inner_text()


# One of each kind, as the page's address writes them.
EDITS = (
    "z-zero-L0-H1", "attn_out-mean-L2", "mlp_out-text-L3", "scores-hide-K4",
    "scores-hide-L1-H0-P3-K1", "scores-hide-L1-H0-P2-K1", "probs-set-L0-H2-P3-K2-V0.35",
    "mlp_post-zero-L2-N17", "mlp_post-mean-L2-P3-N18", "mlp_post-mean-L2-N19",
    "mlp_post-text-L2-N20", "z-mean-L3-H2", "z-text-L2-H1", "z-zero-L1-H3-P2",
    "mlp_out-mean-L0-P4", "attn_out-text-L1-P3",
)  # fmt: skip


def executed(page: Page) -> dict[str, Any]:
    """What the Python that the page writes leaves behind."""
    page.get_by_role("tab", name="Python").click()
    known: dict[str, Any] = {}
    exec(page.locator(".live-python").inner_text(), known)
    return known


def test_the_python_of_the_page_gives_its_numbers(bert_page, opened, capsys):
    page = opened(bert_page, f"edits={'*'.join(EDITS)}&other=The+men+were+very+tired.")
    assert page.locator(".live-changes li").count() == len(EDITS)
    known = executed(page)
    check_bars(page, "before", probs_of(known["before"], PLACE))
    check_bars(page, "after", probs_of(known["after"], PLACE))
    assert "after 3 {" in capsys.readouterr().out


def test_the_python_of_a_causal_model_and_of_a_pair_gives_their_numbers(
    bert, bert_page, gpt2_page, opened
):
    page = opened(gpt2_page, "edits=z-zero-L1-H0*scores-hide-K2*probs-set-L0-H3-P8-K1-V0.9")
    check_bars(page, "after", probs_of(executed(page)["after"], -1))
    pair = opened(bert_page, "text=A+[MASK]+ran.&second=It+was+fast.&edits=mlp_out-zero-L1")
    known = executed(pair)
    assert known["after"].tokens.texts[0] == ("A [MASK] ran.", "It was fast.")
    check_bars(pair, "after", probs_of(known["after"], 2))


def test_a_reload_gives_the_same(bert_page, opened):
    page = opened(bert_page, "view=model")
    cell(page, 0, 1).click()
    page.locator(".live-token").nth(2).click()
    settled(page)
    there = (bars(page, "after"), page.evaluate("location.hash"))
    page = opened(bert_page, there[1][1:])
    assert (bars(page, "after"), page.evaluate("location.hash")) == there
    assert page.locator(".picture .model-board").count() == 2
    assert page.locator(".live-token[aria-selected=true]").inner_text() == "boys"
    page = opened(bert_page, "text=A+[MASK]+ran.&second=It+slept.&edits=z-zero-L0-H1")
    page.get_by_role("combobox", name="Compare with").select_option("")
    settled(page)
    page = opened(bert_page, page.evaluate("location.hash")[1:])
    assert page.locator(".picture").count() == 0
    assert page.get_by_role("textbox", name="Second sentence").input_value() == "It slept."


def test_the_next_token_is_drawn_as_its_bars_say(gpt2, gpt2_page, opened):
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


def test_an_address_that_asks_for_what_the_model_lacks_opens_all_the_same(bert_page, opened):
    page = opened(bert_page, "text=A+horse&edits=z-zero-L7-H0")
    assert "7" in page.locator(".live-wrong").inner_text()
    assert page.locator(".live-token").all_inner_texts() == ["[CLS]", "a", "horse", "[SEP]"]
    assert page.locator(".live-changes li").count() == 0


# One does and sees it on one screen: 90 % of the picture at least.
SEEN = """() => {
  const box = document.querySelector(".pictures").getBoundingClientRect();
  const [x, y] = [(box.left + box.right) / 2, Math.min(box.bottom, innerHeight) - 4];
  if (!document.elementFromPoint(x, y)?.closest(".pictures")) return 0;
  const part = (from, to, end) => Math.max(0, Math.min(to, end) - Math.max(from, 0)) / (to - from);
  return part(box.left, box.right, innerWidth) * part(box.top, box.bottom, innerHeight);
}"""
WIDE = ((1280, 720), (1366, 768), (1440, 900))
NARROW = ((360, 800),)


def check(page: Page, sizes: tuple[tuple[int, int], ...], what: object) -> None:
    for width, height in sizes:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(100)
        assert page.evaluate(SEEN) >= 0.9, (what, width, height)
    page.set_viewport_size({"width": sizes[0][0], "height": sizes[0][1]})


VIEWS = ("head", "whole", "model", "neuron", "map", "layers", "arithmetic")


def check_views(page: Page, sizes: tuple[tuple[int, int], ...], state: str) -> None:
    """Each view is seen; what zooms is at each level at most as high as the window."""
    for view in VIEWS:
        page.locator(f'.tab[data-view="{view}"]').click()
        page.wait_for_selector(f'#page[data-view="{view}"] .pictures [data-drawn]')
        settled(page)
        if view == "whole":
            check(page, sizes, (state, view))
            page.locator('[data-box="layer 1"]').first.click()
            settled(page)
        if view != "arithmetic":
            check(page, sizes, (state, view))
            continue
        pictures = page.locator(".sum-view")
        for level in pictures.first.locator(".sum-fold:visible").all():
            level.click()
            page.wait_for_timeout(60)
            assert page.locator(".sum-inside:visible").count() == pictures.count()
            high = page.locator(".pictures").bounding_box() or {}
            assert high["height"] <= sizes[0][1], (state, level.inner_text())


@pytest.mark.parametrize("sizes", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_the_picture_is_seen_when_the_page_opens_and_after_an_edit(opened, request, model, sizes):
    width, height = sizes[0]
    html = request.getfixturevalue(f"{model}_page")
    page = opened(html, viewport={"width": width, "height": height})
    check(page, sizes, "opened")
    parts = (".live-fields", ".pictures", ".live-prediction", ".live-heads")
    if width < 900:
        order = [page.locator(part).bounding_box() or {} for part in parts]
        assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(order))
    check_views(page, sizes, "opened")
    page.locator('.tab[data-view="head"]').click()
    cell(settled(page), 0, 1).click()
    check(settled(page), sizes, "edited")
    check_views(page, sizes, "edited")
    if width > 1100:
        # The picture stays beside a bench that is scrolled to its end.
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert page.evaluate("scrollY") > 100
        assert page.evaluate(SEEN) >= 0.9, "scrolled"
