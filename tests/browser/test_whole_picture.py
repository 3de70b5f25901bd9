"""The whole model in one diagram, every number worked out, and queries and keys of many texts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser.head_view import Open
from browser.live_pages import PLACE, TEXT, WORDS, asked, boxes, settled, shown, total, worked
from live.drawn import random_model
from playwright.sync_api import Page

import minibert
from minibert.survey.sample_texts import SAMPLE_PAIRS
from minibert.viz.live import live_page


def test_the_diagram_is_wired_as_the_model_is(
    bert_page: str, gpt2_page: str, opened: Callable[..., Page]
) -> None:
    attention, mlp = ["vectors", "probs", "z", "attn_out"], ["mlp_pre", "mlp_post", "mlp_out"]
    after = opened(bert_page, "view=whole")
    assert boxes(after) == [
        *("resid_pre", *attention, "attention sum", "resid_mid"),
        *(*mlp, "mlp sum", "resid_post"),
    ]
    assert "LayerNorm" in after.locator('[data-box="attention sum"]').inner_text()
    before = opened(gpt2_page, "view=whole")
    assert boxes(before) == [
        *("resid_pre", "attention norm", *attention, "attention sum", "resid_mid"),
        *("mlp norm", *mlp, "mlp sum", "resid_post"),
    ]
    assert "LayerNorm" not in before.locator('[data-box="attention sum"]').inner_text()
    small = opened(bert_page, "view=whole", viewport={"width": 360, "height": 740})
    assert small.evaluate("document.documentElement.scrollWidth") == 360
    lefts = small.locator(".whole-row .whole-box").evaluate_all(
        "(all) => all.map((box) => Math.round(box.getBoundingClientRect().left))"
    )
    assert len(set(lefts)) == 1


def test_boxes_have_the_numbers_of_the_chosen_token_and_open_their_views(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "view=whole&layer=1")
    trace = bert.trace(TEXT)
    assert shown(page, "embed") == f"length {float(trace.embed[0, PLACE].norm()):.1f}"
    page.locator('[data-box="token 2"]').click()
    settled(page)
    assert shown(page, "resid_mid") == f"length {float(trace[1].resid_mid[0, 2].norm()):.1f}"
    weights = trace[1].probs[0, :, 2]
    head, key = divmod(int(weights.argmax()), weights.shape[-1])
    assert shown(page, "probs").startswith(f"head {head}: {trace.tokens.strings[0][key]} ")
    probs = trace.logits[0, 2].softmax(-1)
    bars = page.locator(".whole-bar data").evaluate_all("(all) => all.map((one) => +one.value)")
    assert bars == pytest.approx(probs.topk(5).values.tolist(), abs=1e-4)
    page.locator('[data-box="layer 3"]').focus()
    page.keyboard.press("Enter")
    assert asked(page)["layer"] == "3"
    page.locator('[data-box="resid_pre"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    found = asked(page)
    assert (found["view"], found["layer"], found["query"]) == ("neuron", "3", "2")
    page = opened(bert_page, "view=whole&layer=2&query=1")
    page.locator("[data-box=mlp_out]").click()
    found = asked(page)
    assert (found["view"], found["number"], found["layer"]) == ("arithmetic", "mlp_out", "2")


def test_every_number_is_worked_out_and_leads_to_those_that_it_is_made_of(
    gpt2: minibert.Model, gpt2_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(gpt2_page, "view=arithmetic&layer=1&query=4")
    trace = gpt2.trace(WORDS)
    page.get_by_role("combobox", name="Number").select_option("mlp_post")
    page.get_by_role("spinbutton", name="neuron").fill("17")
    page.keyboard.press("Enter")
    settled(page)
    assert worked(page) == pytest.approx(float(trace[1].mlp_post[0, 4, 17]), abs=1e-4)
    steps = [one.get_attribute("data-step") for one in page.locator(".sum-step:visible").all()]
    assert steps == ["layer-norm", "products", "bias", "activation"]
    rows = page.locator("[data-step=products] tbody tr td:nth-last-child(2)").evaluate_all(
        "(all) => all.map((one) => +one.dataset.value)"
    )
    assert len(rows) == 9
    assert "… and 120 more" in page.locator("[data-step=products] .rest").inner_text()
    pre = float(trace[1].mlp_pre[0, 4, 17])
    bias = float(dict(gpt2.named_parameters())["body.groups.1.mlp.up.bias"][17])
    assert sum(rows) == pytest.approx(pre - bias, abs=1e-4)
    page.locator("[data-step=products] tbody button").first.click()
    assert asked(page)["number"] == "mlp_input"
    assert page.locator("[data-step=variance]").count() == 1
    page.locator("[data-step=mean] tbody button").first.click()
    found = asked(page)
    assert found["number"] == "resid_mid"
    expected = float(trace[1].resid_mid[0, 4, int(found["dim"])])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    page.get_by_role("combobox", name="Number").select_option("logits")
    settled(page)
    best = int(trace.logits[0, 4].argmax())
    assert worked(page) == pytest.approx(float(trace.logits[0, 4, best]), abs=1e-4)
    prob = page.locator("[data-step=softmax] p:last-child data:last-child").get_attribute("value")
    assert float(prob or "nan") == pytest.approx(
        float(trace.logits[0, 4].softmax(-1)[best]), abs=1e-4
    )


def test_what_a_change_left_is_said_beside_what_would_have_been_computed(
    bert: minibert.Model, bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(
        bert_page, "edits=z-zero-L1-H0&view=arithmetic&example=1&layer=1&number=z&query=2&dim=5"
    )
    expected = float(bert.trace(TEXT)[1, 0].z[0, 2, 5])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    assert page.locator(".sum-edited data:visible").get_attribute("value") == "0"


def test_a_mark_shows_its_token_and_opens_its_sentence(
    bert_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(bert_page, "view=joint&layer=0&heads=2")
    texts = 2 * len(SAMPLE_PAIRS) + 1
    assert f"over {texts} texts" in page.locator(".joint-lead").inner_text()
    page.locator(".joint-room canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    about = page.locator(".joint-about")
    # The first sentence: [CLS] i went to the market …
    assert "query of went, position 2" in about.inner_text()
    assert "looks most at to" in about.inner_text()
    box = page.locator(".joint-room canvas").bounding_box()
    assert box is not None
    places = [(box["width"] * (0.3 + 0.01 * i), box["height"] * 0.5) for i in range(40)]
    for x, y in places:
        page.mouse.move(box["x"] + x, box["y"] + y)
        if page.locator(".joint-room.pointed").count():
            break
    chosen = page.locator(".joint-sentence").inner_text()
    page.mouse.down()
    page.mouse.up()
    settled(page)
    text = page.get_by_role("textbox", name="Text", exact=True).input_value()
    assert text != TEXT
    assert text.split()[0].lower() in chosen
    page = opened(bert_page, "view=joint")
    lines = page.get_by_role("textbox", name="Sentences of your own")
    lines.fill("The cat sat.\n\nThe dog ran.")
    lines.blur()
    page.wait_for_timeout(600)
    assert f"over {texts + 2} texts" in page.locator(".joint-lead").inner_text()


def test_a_page_without_its_model_says_why_it_has_no_whole(
    bert_page: str, opened: Callable[..., Page], open_page: Open
) -> None:
    page = opened(bert_page, "view=whole")
    with page.expect_download() as saved:
        page.get_by_role("tab", name="Python").click()
        page.get_by_role("button", name="Save without the model").click()
    html = Path(saved.value.path()).read_text(encoding="utf-8")
    static = open_page(html, "", ready="[data-drawn]")
    tab = static.get_by_role("tab", name="Whole")
    assert tab.get_attribute("aria-disabled") == "true"
    assert "no model" in (tab.get_attribute("title") or "")


@pytest.fixture(scope="module")
def llama() -> minibert.Model:
    return minibert.load("tiny-llama")


@pytest.fixture(scope="module")
def llama_page(llama: minibert.Model) -> str:
    return live_page(llama, [WORDS]).html


def test_a_rotary_grouped_and_gated_model_is_drawn_with_its_own_steps(
    llama: minibert.Model, llama_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(llama_page, "view=whole&layer=2&query=6")
    at = llama.trace(WORDS)[2]
    attention = ["attention norm", "vectors", "turned", "probs", "z", "attn_out"]
    assert boxes(page) == [
        *("resid_pre", *attention, "attention sum", "resid_mid"),
        *("mlp norm", "mlp_pre", "mlp_post", "mlp_out", "mlp sum", "resid_post"),
    ]
    assert "RMSNorm" in page.locator('[data-box="attention norm"]').inner_text()
    for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
        assert shown(page, name) == f"length {float(getattr(at, name)[0, 6].norm()):.1f}"
    assert "heads 2–3 read key-value head 1" in shown(page, "vectors")
    neuron = int(at.mlp_post[0, 6].abs().argmax())
    assert shown(page, "mlp_post").startswith(f"the strongest: neuron {neuron}, ")
    page.locator("[data-box=vectors]").click()
    assert asked(page)["number"] == "query_unrotated"
    small = opened(llama_page, "view=whole&layer=2", viewport={"width": 360, "height": 740})
    assert small.evaluate("document.documentElement.scrollWidth") == 360


def test_a_turned_query_and_a_gated_neuron_are_worked_out(
    llama: minibert.Model, llama_page: str, opened: Callable[..., Page]
) -> None:
    page = opened(
        llama_page,
        "view=arithmetic&layer=1&query=5&heads=3&number=key&dim=20",
        viewport={"width": 360, "height": 740},
    )
    trace = llama.trace(WORDS)
    expected = float(trace[1, 3].key[0, 5, 20])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    assert total(page, "turn") == pytest.approx(expected, abs=1e-4)
    page.locator("[data-step=turn] tbody button").first.click()
    assert asked(page)["number"] == "key_unrotated"
    unturned = float(trace[1, 3].key_unrotated[0, 5, 20])
    assert total(page, "products") == pytest.approx(unturned, abs=1e-4)
    assert "Heads 2 and 3 share key-value head 1" in page.locator(".sum-steps:visible").inner_text()
    page.get_by_role("combobox", name="Number").select_option("mlp_post")
    settled(page)
    neuron = int(asked(page).get("dim", trace[1].mlp_post[0, 5].abs().argmax()))
    expected = float(trace[1].mlp_post[0, 5, neuron])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    steps = [one.get_attribute("data-step") for one in page.locator(".sum-step:visible").all()]
    assert steps == ["rms-norm", "products", "activation", "gate"]
    gate = float(trace[1].mlp_gate[0, 5, neuron])
    assert total(page, "products") == pytest.approx(gate, abs=1e-4)
    assert total(page, "gate") == pytest.approx(expected, abs=1e-4)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.locator("[data-step=gate] tbody button").click()
    assert asked(page)["number"] == "mlp_pre"


@pytest.mark.parametrize("kind", ["gemma2", "gpt_neox"])
def test_norms_behind_a_branch_and_branches_beside_one_another(
    kind: str, opened: Callable[..., Page]
) -> None:
    model = random_model(kind)
    page = opened(live_page(model, [WORDS]).html, "view=whole&layer=1&query=4")
    trace, found = model.trace(WORDS), boxes(page)
    parallel, norm = model.config.parallel, model.config.norm_place
    assert (found.index("mlp norm") < found.index("attention sum")) == parallel
    assert ("attention output norm" in found) == (norm == "both")
    # Of branches beside one another the first leads to the second, and not into the stream.
    rows = page.locator(".whole-branch").evaluate_all("(all) => all.map((one) => one.className)")
    assert [("first" in row, "second" in row) for row in rows] == (
        [(True, False), (False, True)] if parallel else [(False, False)] * 2
    )
    probs = trace.logits[0, 4].softmax(-1)
    bars = page.locator(".whole-bar data").evaluate_all("(all) => all.map((one) => +one.value)")
    assert bars == pytest.approx(probs.topk(5).values.tolist(), abs=1e-4)
    page.locator('[data-box="mlp sum"]').click()
    settled(page)
    place = int(trace[1].resid_post[0, 4].abs().argmax())
    expected = float(trace[1].resid_post[0, 4, place])
    assert worked(page) == pytest.approx(expected, abs=1e-4)
    assert total(page, "sum") == pytest.approx(expected, abs=1e-4)
    page.locator("[data-step=sum] tbody button").nth(1).click()
    assert asked(page)["number"] == ("mlp_output" if norm == "both" else "mlp_out")
