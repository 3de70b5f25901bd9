"""The report of a survey in a browser: opens offline, fits a phone, leads to its examples."""

import csv
import io
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from attention_pages import HOSTILE
from browser.conftest import watch
from PIL import Image
from playwright.sync_api import Page, TimeoutError, expect
from survey.made_surveys import patterns_of, survey_of

from minibert import load
from minibert.survey.documents import Document
from minibert.survey.patterns import Example
from minibert.viz.survey_folder import survey_report, wanted_examples, write_example_pages

pytestmark = pytest.mark.browser

LAYERS, HEADS = 4, 4
NAMES = (
    "entropy", "entropy_cls", "to_cls", "to_sep", "to_punctuation", "to_self", "to_previous",
    "to_next", "to_sep_by_norm",
)  # fmt: skip
TEXT = "the horse quickly ran away"
IDS = (HOSTILE[0], HOSTILE[1], HOSTILE[3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report and its examples, with texts from strangers wherever text can be."""
    folder = tmp_path_factory.mktemp("survey")
    means = np.random.default_rng(4).uniform(0.02, 0.3, size=(len(NAMES), LAYERS, HEADS))
    means[NAMES.index("to_previous"), 2, 1] = 0.875
    manifest = {"model": {"name": HOSTILE[1]}, "corpus": {"files": list(HOSTILE)}, "options": {}}
    survey = survey_of(means, NAMES, manifest=manifest, documents=IDS, reach=30)
    scores = np.zeros((LAYERS, HEADS))
    scores[2, 1] = 0.9
    example = Example(IDS[1], 3, HOSTILE[0], 2, "quickly", 0.7, 0.8)
    patterns = patterns_of({"previous": scores, "delimiter": 0.9 - scores / 2}, [example])
    documents = [Document(one, TEXT + " and far" * i) for i, one in enumerate(IDS)]
    pages = write_example_pages(
        folder / "examples.html", wanted_examples(survey, patterns), documents, load()
    )
    report = survey_report(survey, patterns=patterns, pages=pages)
    report.save(folder / "report.html")
    return folder


@pytest.fixture
def show(browser, folder, complaints):
    contexts = []

    def opened(hash: str = "", file: str = "report.html", **options: Any) -> Page:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        address = (folder / file).as_uri()
        watch(page, address, complaints)
        page.goto(f"{address}#{hash}")
        page.wait_for_selector("[aria-labelledby=surveyed], .token")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


CLIPPED = """(width) => [...document.querySelectorAll("#page *")]
  .filter((item) => item.checkVisibility() && !item.matches("select, option, .text"))
  .filter((item) => {
    const box = item.getBoundingClientRect();
    const cut = getComputedStyle(item).overflowX !== "visible"
      && item.scrollWidth > item.clientWidth + 1;
    return box.left < -0.5 || box.right > width + 0.5 || cut;
  }).map((item) => item.outerHTML.slice(0, 200))"""


def sections(page: Page) -> list[str]:
    return page.locator("h2").evaluate_all("(all) => all.map((one) => one.id)")


def test_everything_is_there_and_nothing_is_clipped(show):
    page = show(viewport={"width": 1400, "height": 800})
    assert sections(page) == ["all-heads", "patterns", "one-head", "distance-profile", "surveyed"]
    sentences = page.locator(".seen").all_inner_texts()
    assert len(sentences) == 4
    assert all(sentence.endswith(".") for sentence in sentences)
    for width, scheme in ((1400, "light"), (1400, "dark"), (360, "dark"), (360, "light")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(100)
        # The bar that Firefox scrolls with has a width.
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth === {root}.clientWidth")
        assert page.evaluate(CLIPPED, width) == []
        paper = page.locator("#page").evaluate("(page) => getComputedStyle(page).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 22, 25)"}[scheme]
        # No figure is blank.
        for board in page.locator(".grid, .profile").all():
            image = np.asarray(Image.open(io.BytesIO(board.screenshot())).convert("L"), dtype=int)
            assert np.ptp(image) > 100


def test_text_from_strangers_does_nothing(show):
    page = show()
    assert page.evaluate("window.pwned") is None
    assert page.locator("#page :is(img, script, svg, iframe, object)").count() == 0
    expect(page.locator(".texts")).to_contain_text("onerror=window.pwned=1>")
    expect(page.locator("#page")).to_contain_text("⟨U+202E⟩gnp.exe")
    links = page.locator("#page a").evaluate_all("(all) => all.map((a) => a.getAttribute('href'))")
    assert links
    assert all(link.startswith("examples.html#example=") for link in links)


def test_a_head_is_chosen_by_pointer_or_keys_and_leads_to_its_examples(show):
    page = show(viewport={"width": 1400, "height": 900})
    grid = page.locator("[aria-labelledby=all-heads]")
    # It begins with the head that looks most at the token before.
    expect(grid.locator(".seen")).to_contain_text("head 2‑1 has most, 87.5\u202f%")
    expect(grid.locator(".readout")).to_contain_text(
        "Head 2‑1: 87.5\u202f% (95\u202f% interval 87.3"
    )
    grid.locator("[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("location.hash") == "#head=3-2"
    expect(page.locator("[aria-labelledby=distance-profile] .seen")).to_contain_text("Head 3‑2")
    grid.locator("tbody tr").nth(2).locator("button").nth(1).click()
    assert page.evaluate("location.hash") == ""
    first = grid.locator(".examples a").first
    expect(first).to_be_focused()
    expect(first).to_have_text(HOSTILE[0])
    address = first.evaluate("(a) => a.href")
    opened = page.context.new_page()
    opened.goto(address)
    opened.wait_for_selector(".lower[data-drawn]", state="attached")
    expect(opened.locator(".stage")).to_have_attribute("data-layer", "2")
    expect(opened.get_by_role("button", name="Head 1", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(opened.locator(".texts")).to_have_text(TEXT)


def test_figures_and_their_numbers_can_be_saved(show):
    page = show("measure=to_sep&theme=dark")
    means = page.locator("[aria-labelledby=all-heads]")

    def taken(section: Any, way: str) -> bytes:
        section.locator(".opener").click()
        with page.expect_download() as started:
            section.get_by_role("button", name=way).click()
        found = Path(started.value.path()).read_bytes()
        page.keyboard.press("Escape")
        return found

    rows = list(csv.reader(io.StringIO(taken(means, "CSV table").decode(), newline="")))
    assert rows[0] == ["measure", "layer", "head", "mean", "low", "high", "documents"]
    assert [row[:3] for row in rows[1:]] == [
        ["to_sep", str(layer), str(head)] for layer in range(LAYERS) for head in range(HEADS)
    ]
    drawn = np.random.default_rng(4).uniform(0.02, 0.3, size=(len(NAMES), LAYERS, HEADS))
    found = np.array([float(row[3]) for row in rows[1:]]).reshape(LAYERS, HEADS)
    np.testing.assert_allclose(found, drawn[NAMES.index("to_sep")], rtol=1e-6)
    # What is drawn in the grid is in the file: a ground a head, and its number in percent.
    svg = ET.fromstring(taken(means, "SVG drawing"))
    texts = [one.text for one in svg.findall("{http://www.w3.org/2000/svg}text")]
    assert {f"{value:.0%}"[:-1] for value in found.ravel()} <= set(texts)
    image = Image.open(io.BytesIO(taken(means, "PNG image"))).convert("RGB")
    assert image.getpixel((0, 0)) == (0x15, 0x16, 0x19)


def test_the_chosen_head_stands_in_every_measure_with_its_rank(show):
    page = show("head=1-2", viewport={"width": 1400, "height": 900})
    drawn = np.random.default_rng(4).uniform(0.02, 0.3, size=(len(NAMES), LAYERS, HEADS))
    drawn[NAMES.index("to_previous"), 2, 1] = 0.875
    rows = page.locator("[aria-labelledby=one-head] tbody tr")
    # Those of the two patterns follow; what is not measured has no row.
    expect(rows).to_have_count(len(NAMES) + 2)
    for name in ("to_sep", "to_previous"):
        row = rows.nth(NAMES.index(name)).locator("td")
        mean = drawn[NAMES.index(name)]
        expect(row.nth(0)).to_have_text(f"{100 * mean[1, 2]:.1f}\u202f%")
        expect(row.nth(3)).to_have_text(str(1 + (mean > mean[1, 2]).sum()))
    rows.nth(NAMES.index("to_sep")).get_by_role("button").click()
    assert page.evaluate("location.hash") == "#head=1-2&measure=to_sep"
    mean = drawn[NAMES.index("to_sep")].mean(axis=1)
    expect(page.locator(".grid tbody tr").nth(3).locator("td").last).to_have_text(
        f"{100 * mean[3]:.0f}"
    )


CONTROLS = "button, select, input, summary, canvas, label, [role], [tabindex], a[href^='#']"


@pytest.mark.parametrize("width", [1400, 360])
def test_no_click_on_the_examples_is_an_error(show, width):
    seed = time.time_ns() % 10**9
    print(f"seed {seed}")
    draw = Random(seed)
    page = show(file="examples.html", viewport={"width": width, "height": 900})
    for _ in range(60):
        controls = page.locator(CONTROLS).locator("visible=true")
        one = controls.nth(draw.randrange(controls.count()))
        # It may be gone by now: what was clicked before is still being drawn.
        with suppress(TimeoutError):
            if one.evaluate("(one) => one.localName === 'select'", timeout=500):
                options = one.locator("option").count()
                one.select_option(index=draw.randrange(options), timeout=500)
            elif box := one.bounding_box(timeout=500):
                place = {"x": draw.random() * box["width"], "y": draw.random() * box["height"]}
                one.click(position=place, force=True, timeout=500)
        page.keyboard.press(draw.choice(["ArrowDown", "ArrowRight", "Escape", "Enter", "n", "p"]))
