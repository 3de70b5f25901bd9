"""The whole model in one diagram of one window, and every number worked out."""

import random
import re

import pytest
from browser.live_pages import PLACE, TEXT, WORDS, asked, cell, field, settled, shown, worked
from playwright.sync_api import expect

import minibert
from minibert.trace.edit import zero
from minibert.viz.live import live_page

TEXTS = {
    "tiny-gpt2": " river window summer horse river window",
    "tiny-llama": " the red horse ran and the red horse",
}


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


def test_a_head_and_the_mlp_are_set_to_zero_on_the_drawing(bert, bert_page, opened):
    page = opened(bert_page, "view=whole&layer=1")
    lengths = page.locator(".inside [data-box=attn_out] .whole-fact, .inside .stream .whole-fact")
    page.locator('[data-box="change z head 2"]').click()
    settled(page)
    page.locator('[data-box="change mlp_out all"]').nth(1).click()
    settled(page)
    edit = {("z", 1, 2): zero, ("mlp_out", 1): zero}
    runs = (bert.trace(TEXT), bert.trace(TEXT, edit=edit))
    names = ("resid_pre", "attn_out", "resid_mid", "resid_post")
    expected = [
        f"length {getattr(run[1], name)[0, PLACE].norm():.1f}" for run in runs for name in names
    ]
    assert lengths.all_text_contents() == expected
    pressed = page.locator(".picture").nth(1).locator(".inside .whole-token[aria-pressed=true]")
    assert pressed.all_inner_texts() == ["2", "all"]
    pressed.first.click()
    settled(page)
    assert asked(page)["edits"] == "mlp_out-zero-L1"


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
    assert page.locator("[data-step=products] tbody tr").count() == 7
    assert "… and 122 more" in page.locator("[data-step=products] .rest").inner_text()
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
    top = [pair for pair in why.top(50) if pair[1] not in why.same][:4]
    same = sum(float(why.at(key_component=each).sum()) for each in why.same)
    assert pairs[-1] == pytest.approx(same, abs=1e-3, rel=1e-3)
    assert pairs[:-2] == pytest.approx([part for _, _, part in top], abs=1e-3, rel=1e-3)
    assert sum(pairs) == pytest.approx(why.score, abs=1e-2)
    said = page.locator(".because-said").inner_text()
    (query, key, part), tokens = top[0], trace.tokens.strings[0]
    where = "{} (layer {}, head {})".format(query, *query.removeprefix("head ").split("-"))
    first = f"Its largest part, +{part:.2f}, is one match: what {where} wrote at "
    assert f"The score is +{why.score:.2f}. {first}" in said
    scores = trace[1, 3].scores[0, 4, :5].tolist()
    other = max(scores[:2] + scores[3:])
    assert f"counts: {scores[2]:+.2f} here, " in said.replace("−", "-")
    assert f" with {other:+.2f}." in said.replace("−", "-")
    layer, head = map(int, key.removeprefix("head ").split("-"))
    read = trace[layer, head].probs[0, 2]
    assert f"At ·{tokens[2].strip()}, {key} read mostly ·{tokens[read.argmax()].strip()}" in said
    assert f"(weight {100 * read.max():.1f}" in said
    tall = "document.querySelector('{}').getBoundingClientRect().{}"
    room = page.evaluate(f"{tall.format('.sum-view', 'top')} - {tall.format('.toolbar', 'bottom')}")
    assert room < 10
    if kind == "live":
        page.set_viewport_size({"width": 1280, "height": 720})
        page.locator(".work").evaluate("(work) => work.scrollTo(0, 300)")
        page.get_by_role("button", name="Switch to dark colours").click()
        expect(page.locator("#page")).to_have_attribute("data-theme", "dark")
    page.locator(".because summary").first.click()
    page.set_viewport_size({"width": 360, "height": 640})
    layer, head = query.removeprefix("head ").split("-")
    page.get_by_role("button", name=query, exact=True).click()
    where = page.locator(".sum-answer .where")
    expect(where).to_have_text(f"Layer {layer}, head {head}")
    expect(page.locator(".sum-title")).to_be_in_viewport(ratio=1)
    page.wait_for_timeout(400)
    page.go_back()
    expect(where).to_have_text("Layer 1, head 3")
    if kind == "live":
        expect(page.get_by_role("button", name="Undo")).to_be_disabled()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", ["live", "saved"])
def test_parts_of_a_weight_open_down_to_the_words_and_to_their_product(kind, name, open_page):
    model = minibert.load(name)
    trace, draw = model.trace(TEXTS[name]), random.Random(f"{kind} {name}")
    heads = draw.sample([(n, head) for n in range(1, 4) for head in range(4)], 2)
    html = (live_page(model, [TEXTS[name]]) if kind == "live" else trace.view(why=heads)).html
    opened = 0
    for layer, head in heads:
        probs = trace[layer, head].probs[0, 2:]
        query, key = draw.choice(((probs > 0.01) & (probs < 1)).nonzero().tolist())
        place = f"view=arithmetic&layer={layer}&heads={head}&query={query + 2}&key={key}"
        page = open_page(html, place, ready=".because[data-drawn]")
        why = trace.why(layer, head, query=query + 2, key=key)
        largest = why.values.abs().max().item()
        # A saved page does not hold smaller ones.
        near, least = 2e-3 * largest, 0.1 * largest
        for found in unfolded(page)[0]:
            if " × " not in found["name"]:
                continue
            pair = found["name"].split(" × ")
            part = float(why.at(query_component=pair[0], key_component=pair[1]))
            assert found["value"] == pytest.approx(part, abs=near)
            assert found["product"] == pytest.approx(part, abs=near)
            read = [
                why.side(side, of=other).follow(own)
                for side, own, other in (("query", *pair), ("key", *pair[::-1]))
                if own.startswith("head") and (kind == "live" or abs(part) >= least)
            ]
            if kind == "saved":
                read = [one for one in read if one.by_token.abs().max() >= least]
            for rows, one in zip(found["lists"], read, strict=True):
                opened += check_read(rows, one, part, least, near)
    assert opened > 5


def unfolded(page):
    """The lists of parts, all opened: of each part its name, number, product and own lists."""
    closed = ".because-pairs details:not([open]) > summary.because-line"
    while page.locator(closed).count():
        page.locator(closed).evaluate_all("(all) => all.forEach((one) => one.click())")
        expect(page.locator(".because-pairs details[open]:not([data-drawn])")).to_have_count(0)
    return page.evaluate(
        """() => {
          const rowsOf = (list) => [...list.children].map((row) => ({
            name: row.querySelector(".because-name").innerText,
            value: +row.querySelector("data").value,
            product: +row.querySelector(":scope > details > .sum-formula data:last-child")?.value,
            lists: [...row.querySelectorAll(":scope > details > ul")].map(rowsOf),
          }));
          return [...document.querySelectorAll(".because-said > ul")].map(rowsOf);
        }"""
    )


def check_read(rows, read, whole, least, near):
    """The tokens that a head read are Python's, and so is what stands below; how many opened."""
    tokens = [one.strip() for one in read.reading.trace.tokens.strings[0]]
    assert sum(row["value"] for row in rows) == pytest.approx(whole, abs=2 * near)
    expected = {n: part for n, part in enumerate(read.by_token.tolist()) if abs(part) > least}
    found, opened = {}, 1
    for row in rows:
        if row["name"] == "all other words":
            continue
        text, at = re.fullmatch(r"(.+?)(?: at position (\d+))? \(weight .+\)", row["name"]).groups()
        token = int(at) if at else tokens.index(text.lstrip("·"))
        found[token] = row["value"]
        assert row["value"] == pytest.approx(float(read.by_token[token]), abs=near)
        below = read.at_token(token)
        for rest in row["lists"]:
            assert sum(one["value"] for one in rest) == pytest.approx(row["value"], abs=2 * near)
            wrote = {one["name"]: one for one in rest if one["name"] != "all else at this word"}
            assert {one for one, part in below.top(4) if abs(part) > least} <= set(wrote)
            for one, own in wrote.items():
                assert own["value"] == pytest.approx(float(below[one]), abs=near)
                for deeper in own["lists"]:
                    opened += check_read(deeper, below.follow(one), own["value"], least, near)
    assert set(sorted(expected, key=lambda n: -abs(expected[n]))[:4]) <= set(found)
    return opened


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
