"""The live page before a served model, in a real browser; numbers of every kind: tests/live."""

import re
from contextlib import ExitStack

import pytest
from browser.conftest import watch
from playwright.sync_api import Page, expect

import minibert
from minibert.trace.edit import zero
from minibert.viz.serve.server import PageServer
from tests.served import serving

pytestmark = pytest.mark.browser

TEXT = "the horse [MASK] away ."


@pytest.fixture
def opened(browser, complaints):
    """Opens the page of a model's server."""
    with ExitStack() as stack:

        def show(model: minibert.Model, hash: str = "") -> tuple[Page, PageServer]:
            server = stack.enter_context(serving(model))
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            stack.callback(context.close)
            page = context.new_page()
            watch(page, server.address, complaints)
            page.goto(f"{server.address}#{hash}")
            page.wait_for_selector("[data-drawn]")
            return page, server

        yield show


def best(edit: dict[tuple[str, int, int], object]) -> str:
    """The most probable word in percent, as the page writes it."""
    trace = minibert.load().trace(TEXT, edit=edit)
    share = trace.logits[0, 3].softmax(-1).max().item()
    return f"{100 * share:.1f}"


def test_a_served_page_follows_text_and_edits_and_says_when_its_server_is_gone(opened, complaints):
    page, server = opened(minibert.load())
    field = page.get_by_role("textbox", name="Text")
    field.fill(TEXT)
    expect(page.get_by_role("listbox", name="Tokens", exact=True)).to_contain_text("away")
    prediction = page.get_by_label("Prediction", exact=True)
    expect(prediction).to_contain_text(best({}))
    page.get_by_role("button", name=re.compile("^Layer 1, head 2")).click()
    expect(prediction).to_contain_text(best({("z", 1, 2): zero}))
    # Another layer of the page is asked for when it is looked at.
    page.get_by_label("Next layer").click()
    page.wait_for_selector("[data-drawn]")
    # Firefox names the socket that the page talks to its server by.
    asked = f"request: {server.address.split('?')[0]}engine"
    assert [one for one in complaints if not one.startswith(asked)] == []
    # Not wait_for_function: it evaluates text in the page, which its policy forbids.
    expect(page).to_have_url(re.compile("away.*edits=z-zero-L1-H2"))
    page.reload()
    expect(prediction).to_contain_text(best({("z", 1, 2): zero}))
    field.fill("the horse " * 140)
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"tiny-bert has \d+ positions"))
    server.stop()
    page.wait_for_timeout(500)
    field.fill("the boat")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer", timeout=15000)
