"""Real browsers with no network; whatever a page asks for or complains about fails its test.

Tests run in Chromium; with MINIBERT_BROWSER=firefox all run in Firefox and none in Chromium.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from browser import live_pages
from browser.firefox import firefox
from playwright.sync_api import Browser, Page, expect, sync_playwright

import minibert
from minibert.viz.live import live_page

BROWSER = os.environ.get("MINIBERT_BROWSER", "chromium")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# Of the style that Playwright adds for a screenshot, which policies refuse: Firefox says so.
OF_SCREENSHOTS = "sha256-YjaKGiklmzC6wjXA513HAMmzus8VE61XCOT+SmwNZWA="
# No test says how fast a machine is.
expect.set_options(timeout=60_000)
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="session")
def playwright():
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def in_chromium(playwright):
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; install it or set CHROMIUM to its path")
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def in_firefox(playwright, tmp_path_factory):
    with firefox(playwright, tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest.fixture
def browser_name():
    return BROWSER


@pytest.fixture
def browser(request, browser_name):
    found = request.getfixturevalue(f"in_{browser_name}")
    assert isinstance(found, Browser)
    return found


@pytest.fixture
def complaints():
    """What pages wrote to the console or asked the network for; must be empty at the end."""
    return []


@pytest.fixture
def open_page(browser, tmp_path, complaints):
    contexts = []

    def open_html(
        html: str, hash: str = "", ready: str = ".lower[data-drawn]", **options: Any
    ) -> Page:
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_bytes(html.encode())
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        watch(page, path.as_uri(), complaints)
        page.goto(f"{path.as_uri()}#{hash}")
        page.wait_for_selector(ready, state="attached")
        return page

    yield open_html
    for context in contexts:
        context.close()
    assert complaints == []


def watch(page: Page, address: str, complaints: list[str]) -> None:
    """Notes every request but the first, every console error, dialog and uncaught exception."""
    requests: list[str] = []

    def request(url: str) -> None:
        # A worker that the page makes of its own text: no host is asked.
        if url.startswith("blob:null/"):
            return
        if requests or url.split("#")[0] != address:
            complaints.append(f"request: {url}")
        requests.append(url)

    def threw(error: str) -> None:
        if OF_SCREENSHOTS not in error:
            complaints.append(f"exception: {error}")

    page.on("request", lambda asked: request(asked.url))
    page.on("console", lambda said: complaints.append(f"console {said.type}: {said.text}"))
    page.on("pageerror", lambda error: threw(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))


@pytest.fixture(scope="session")
def bert():
    return minibert.load("tiny-bert")


@pytest.fixture(scope="session")
def gpt2():
    return minibert.load("tiny-gpt2")


@pytest.fixture(scope="session")
def bert_page(bert):
    return live_page(bert, [live_pages.TEXT]).html


@pytest.fixture(scope="session")
def gpt2_page(gpt2):
    return live_page(gpt2, [live_pages.WORDS]).html


@pytest.fixture
def opened(open_page):
    def open_live(html: str, hash: str = "", **options: Any) -> Page:
        return live_pages.settled(open_page(html, hash, ready="[data-drawn]", **options))

    return open_live
