"""The site of docs/ in a browser, opened from its folder: its search, its theme, what axe finds."""

import pytest
from browser.test_accessibility import AXE, FOUND

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = ("index.html", "reading.html", "course/3_heads_positions_segments.html", "speed.html")
PAGES = (*PAGES, "reference/minibert.analysis.html", "404.html")


@pytest.fixture
def at(browser, site):
    """A window on the site, which nothing scrolls sideways."""
    contexts, complaints = [], []

    def opened(name, width, scheme="light"):
        size = {"width": width, "height": 800}
        contexts.append(
            browser.new_context(offline=True, viewport=size, color_scheme=scheme, bypass_csp=True)
        )
        page = contexts[-1].new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.on("requestfailed", lambda asked: complaints.append(f"not found: {asked.url}"))
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        return page

    yield opened
    assert complaints == []
    for context in contexts:
        context.close()


# A narrow window has the colours of a wide one.
@pytest.mark.parametrize(("width", "schemes"), [(1400, ("light", "dark")), (360, ("dark",))])
def test_axe_finds_nothing_in_the_site(at, width, schemes):
    if not AXE.exists():
        pytest.skip(f"no {AXE}; `npm ci` in viz/ installs it")
    for scheme in schemes:
        for name in PAGES:
            page = at(name, width, scheme)
            page.evaluate(AXE.read_text())
            assert page.evaluate(FOUND.replace("resultTypes", "preload: false, resultTypes")) == []


def test_a_page_is_found_and_opened_by_keyboard(at):
    page = at("lessons/induction.html", 360)
    page.keyboard.press("/")
    page.keyboard.type("factored matrix")
    page.wait_for_selector("#found a")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('#found') !== null")
    page.keyboard.press("Escape")
    assert page.locator("#found").is_hidden()
    page.keyboard.press("Enter")
    page.wait_for_selector("main h1")
    assert "factored" in page.locator("main").inner_text().lower()


def test_a_chosen_theme_is_kept(at):
    page = at("index.html", 1400)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after
