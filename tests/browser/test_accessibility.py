"""What axe-core finds in the pages: nothing, in every view, light and dark.

axe-core checks rules of WCAG 2 and of good practice: contrast, names, roles, headings, landmarks.
"""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page
from survey.made_surveys import patterns_of, survey_of

from minibert import load
from minibert.survey.patterns import Example
from minibert.viz.live import live_page, story_page
from minibert.viz.survey_folder import survey_report

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "viz" / "node_modules" / "axe-core" / "axe.min.js"
# A narrow window has the colours of a wide one.
SIZES = {1280: ("light", "dark"), 360: ("dark",)}
# A token of each side is chosen, so that every view has something to say.
CHOSEN = "query=2&key=3&beside=1"
# What an address opens of the live page: two pictures, the marks of edits, another prompt.
EDITED = (
    "text=The+boys+%5BMASK%5D+very+tired.&other=The+girl+%5BMASK%5D+very+tired."
    "&edits=z-text-L0-H1*mlp_out-mean-L1*scores-hide-K4"
)
CLOSED = "[aria-expanded=false]:visible, details:not([open]) > summary:visible"
FOUND = """async () => (await axe.run(document, {
  resultTypes: ["violations"], rules: { "label-content-name-mismatch": { enabled: true } },
})).violations
  .flatMap(({ id, nodes }) => nodes.map(({ html, any, all, none }) =>
    `${id}: ${html.slice(0, 160)}: ${[...any, ...all, ...none].map(({ message }) => message)}`))"""


@pytest.fixture
def found(open_page):
    """Opens a page that axe-core can run in: its own script is not one that the page allows."""
    if not AXE.exists():
        pytest.skip(f"no {AXE}; `npm ci` in viz/ installs it")

    def opened(html: str, hash: str, ready: str) -> Page:
        page = open_page(html, hash, ready=ready, bypass_csp=True, reduced_motion="reduce")
        page.evaluate(AXE.read_text())
        return page

    return opened


def findings(page: Page, themes: tuple[str, ...]) -> list[str]:
    """What axe-core finds in each view, all that can be opened open, in each theme."""
    tabs = page.get_by_role("tablist", name="Picture").get_by_role("tab")
    views = [tab.get_attribute("data-view") for tab in tabs.all() if tab.is_visible()] or [None]
    every = []
    for view in views:
        if view:
            page.locator(f'.tab[data-view="{view}"]').click()
            page.wait_for_selector(".body [data-drawn], .body .missing", state="attached")
            page.wait_for_selector(".sum-view:not([data-drawn])", state="detached")
        # What is opened may hold more that can be.
        for _ in range(2):
            for closed in page.locator(CLOSED).element_handles():
                if closed.is_visible():
                    closed.click()
        for theme in themes:
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(60)
            every += [f"{view}, {theme}: {what}" for what in page.evaluate(FOUND)]
    return every


def report() -> str:
    names = ("entropy", "to_cls", "to_previous")
    means = np.random.default_rng(4).uniform(0.02, 0.3, size=(len(names), 4, 4))
    survey = survey_of(means, names, documents=("one", "two", "three"), reach=30)
    scores = np.zeros((4, 4))
    scores[2, 1] = 0.9
    example = Example("one", 3, "the", 2, "horse", 0.7, 0.8)
    patterns = patterns_of({"previous": scores, "delimiter": 0.9 - scores / 2}, [example])
    return survey_report(survey, patterns=patterns).html


@pytest.mark.parametrize("kind", ["view", "live", "story", "survey"])
def test_axe_finds_nothing(found, kind):
    model = load("tiny-bert")
    if kind == "view":
        trace = model.trace(["the horse ran away", "the boat [MASK]"], ["it was afraid", "it sank"])
        page = found(trace.view().html, CHOSEN, ".lower[data-drawn]")
    elif kind == "live":
        html = live_page(model, ["The boys [MASK] very tired."]).html
        page = found(html, EDITED, "[data-drawn]")
        page.wait_for_selector("#page[aria-busy=false]")
        for tab in page.locator(".live-tabbed [role=tab]").all():
            tab.click()
            assert page.evaluate(FOUND) == []
    elif kind == "story":
        page = found(story_page(model, load("tiny-gpt2")).html, "step=13", "[data-drawn]")
        page.locator("#step-13 input").fill("0.1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#step-13 [data-right]")
        page.wait_for_selector("#page[aria-busy=false]")
    else:
        page = found(report(), "", "h1")
    for width, themes in SIZES.items():
        page.set_viewport_size({"width": width, "height": 800})
        assert findings(page, themes) == [], width
