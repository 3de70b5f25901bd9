"""The whole model in one diagram of one window, and every number worked out."""

import pytest
from browser.live_pages import PLACE, TEXT, WORDS, asked, cell, field, settled, shown, worked
from playwright.sync_api import expect

import minibert
from minibert.viz.live import live_page


def test_boxes_have_the_numbers_of_the_chosen_token_and_open_their_views(bert, bert_page, opened):
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
    for width, height in ((1280, 720), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        box = page.locator(".whole-view").bounding_box()
        assert box["y"] + box["height"] <= height
    page.locator("[data-box=mlp_post]").hover()
    expect(page.locator(".whole-lead")).to_contain_text("lets numbers above zero through")
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


def test_every_number_is_worked_out_and_leads_to_those_that_it_is_made_of(gpt2, gpt2_page, opened):
    page = opened(gpt2_page, "view=arithmetic&layer=1&query=4")
    trace = gpt2.trace(WORDS)
    page.get_by_role("combobox", name="Number").select_option("mlp_post")
    page.get_by_role("spinbutton", name="neuron").fill("17")
    page.keyboard.press("Enter")
    settled(page)
    assert worked(page) == pytest.approx(float(trace[1].mlp_post[0, 4, 17]), abs=1e-4)
    steps = [one.get_attribute("data-step") for one in page.locator(".sum-step:visible").all()]
    assert steps == ["layer-norm", "products", "bias", "activation"]
    assert page.locator("[data-step=products] tbody tr").count() == 9
    assert "… and 120 more" in page.locator("[data-step=products] .rest").inner_text()
    page.locator("[data-step=products] tbody button").first.click()
    assert asked(page)["number"] == "mlp_input"
    assert page.locator("[data-step=variance]").count() == 1
    page.locator("[data-step=mean] tbody button").first.click()
    found = asked(page)
    assert found["number"] == "resid_mid"
    expected = float(trace[1].resid_mid[0, 4, int(found["dim"])])
    assert worked(page) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["live", "saved"])
def test_above_the_arithmetic_stands_why_and_a_head_leads_to_what_it_read(
    kind, gpt2, gpt2_page, open_page
):
    trace = gpt2.trace(WORDS)
    html = gpt2_page if kind == "live" else trace.view(why=(1, 3)).html
    place = "view=arithmetic&layer=1&heads=3&query=4&key=2"
    page = open_page(html, place, ready=".because[data-drawn]")
    pairs = page.locator(".because data[data-name=pair]").evaluate_all(
        "(a) => a.map((x) => +x.value)"
    )
    why = trace.why(1, 3, query=4, key=2)
    top = why.top(6 if kind == "live" else 4)
    assert pairs[:-1] == pytest.approx([part for _, _, part in top], abs=1e-3, rel=1e-3)
    assert sum(pairs) == pytest.approx(why.score, abs=1e-2)
    said = page.locator(".because-said").inner_text()
    (query, key, part), tokens = top[0], trace.tokens.strings[0]
    assert f"The score is +{why.score:.2f}. Its largest part is +{part:.2f}: what {query}" in said
    layer, head = map(int, key.removeprefix("head ").split("-"))
    read = trace[layer, head].probs[0, 2]
    assert f"At ·{tokens[2].strip()}, {key} read mostly ·{tokens[read.argmax()].strip()}" in said
    assert f"(weight {100 * read.max():.1f}" in said
    way = page.locator(".because-way").first
    head = way.inner_text().removeprefix("head ")
    way.click()
    layer, head = head.split("-")
    expect(page.locator(".sum-answer .where")).to_have_text(f"Layer {layer}, head {head}")


def test_the_choice_by_features_stays_in_the_address_and_with_another_text(gpt2, opened):
    html = live_page(gpt2, [WORDS], features=minibert.features.load("tiny-gpt2")).html
    page = opened(html, "view=arithmetic&layer=1&heads=3&query=4&key=2")
    page.get_by_role("button", name="By features").click()
    field(page).fill(f"{WORDS} door")
    cell(page, 1, 2).click()
    assert asked(page)["split"] == "features"
    page = opened(html, page.evaluate("location.hash.slice(1)"))
    expect(field(page)).to_have_value(f"{WORDS} door")
    page.get_by_role("button", name="Take all back").click()
    settled(page)
    expect(page.locator(".because [aria-pressed=true]")).to_have_text("By features")
    expect(page.locator(".because-pairs")).to_contain_text("feature 1-")
    page.get_by_role("button", name="By heads and MLPs").click()
    assert "split" not in asked(page)
