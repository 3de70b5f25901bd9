"""The live page before a served model, in a real browser."""

import re
from collections.abc import Iterator

import pytest
from browser.conftest import watch
from playwright.sync_api import Browser, Page, expect

import minibert
from minibert.trace.edit import zero
from minibert.viz.serve.server import PageServer
from tests.served import serving

pytestmark = pytest.mark.browser

TEXT = "the horse [MASK] away ."


@pytest.fixture
def served() -> Iterator[PageServer]:
    with serving(minibert.load()) as running:
        yield running


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, served: PageServer, complaints: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = context.new_page()
    watch(made, served.address, complaints)
    made.goto(served.address)
    made.wait_for_selector("[data-drawn]")
    yield made
    context.close()


def best(edit: dict[tuple[str, int, int], object]) -> str:
    """The most probable word in percent, as the page writes it."""
    trace = minibert.load().trace(TEXT, edit=edit)
    share = trace.logits[0, 3].softmax(-1).max().item()
    return f"{100 * share:.1f}"


def test_the_picture_follows_the_text_and_the_edits(page: Page, complaints: list[str]) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    expect(page.get_by_role("listbox", name="Tokens", exact=True)).to_contain_text("away")
    expect(page.get_by_label("Prediction", exact=True)).to_contain_text(best({}))
    page.get_by_role("button", name=re.compile("^Layer 1, head 2")).click()
    expect(page.get_by_label("Prediction", exact=True)).to_contain_text(best({("z", 1, 2): zero}))
    # Another layer of the page is asked for when it is looked at.
    page.get_by_label("Next layer").click()
    page.wait_for_selector("[data-drawn]")
    assert complaints == []


def test_a_page_is_loaded_again_with_its_text_and_its_edits(page: Page) -> None:
    page.get_by_role("textbox", name="Text").fill(TEXT)
    expect(page.get_by_label("Prediction", exact=True)).to_contain_text(best({}))
    # Not wait_for_function: it evaluates text in the page, which its policy forbids.
    expect(page).to_have_url(re.compile("away"))
    page.reload()
    expect(page.get_by_label("Prediction", exact=True)).to_contain_text(best({}))


def test_what_the_model_cannot_read_and_an_ended_server_are_said(
    page: Page, served: PageServer
) -> None:
    page.get_by_role("textbox", name="Text").fill("the horse " * 140)
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"tiny-bert has \d+ positions"))
    served.stop()
    page.wait_for_timeout(500)
    page.get_by_role("textbox", name="Text").fill("the boat")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer", timeout=15000)
