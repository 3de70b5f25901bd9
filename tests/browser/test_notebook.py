"""A page in a cell of a notebook: in a frame where it is trusted, an image and a text where not."""

import pytest
from attention_pages import HOSTILE, names, softmax
from playwright.sync_api import Page, expect

from minibert.viz import attention_page

pytestmark = pytest.mark.browser

# What a notebook that does not trust an output leaves of it.
SANITISED = """(html) => {
  const output = new DOMParser().parseFromString(html, "text/html").body;
  for (const one of output.querySelectorAll("script, style, iframe")) one.remove();
  for (const one of output.querySelectorAll("*")) {
    for (const { name } of [...one.attributes]) {
      if (!["alt", "src", "title"].includes(name)) one.removeAttribute(name);
    }
  }
  document.querySelector("#cells").append(...output.childNodes);
}"""
TRUSTED = "(html) => document.querySelector('#cells').insertAdjacentHTML('beforeend', html)"
AROUND = """<!doctype html><title>cells</title>
<style>p, ul, button, div { margin: 40px; color: red; font: 30px serif }</style><div id="cells">"""


@pytest.fixture
def notebook(browser, complaints):
    """A page like a notebook, with cells put in."""
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 900})

    def open_cells(run: str, *cells: str) -> Page:
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_content(AROUND)
        for html in cells:
            page.evaluate(run, html)
        return page

    yield open_cells
    context.close()
    assert complaints == []


def test_pages_in_frames_work_beside_each_other_and_keep_their_keys(notebook):
    cells = [attention_page(softmax((2, 3, n, n)), names(n))._repr_html_() for n in (5, 6)]
    page = notebook(TRUSTED, *cells)
    page.evaluate("window.heard = []; addEventListener('keydown', ({ key }) => heard.push(key))")
    five, six = (page.frame_locator("iframe >> nth=0"), page.frame_locator("iframe >> nth=1"))
    for frame in (six, five):
        expect(frame.locator(".lower[data-drawn]")).to_be_attached()
    five.locator(".query .token").nth(2).click()
    expect(five.locator(".details h2")).to_have_text("t2 looks at")
    page.keyboard.press("ArrowRight")
    expect(five.locator(".stage")).to_have_attribute("data-layer", "1")
    expect(six.locator(".stage")).to_have_attribute("data-layer", "0")
    expect(six.locator(".details")).to_contain_text("Point at a token")
    assert page.evaluate("heard") == []
    assert "#" not in page.url
    # The picture below the frame is not seen, and takes no room of its own.
    boxes = [
        page.locator(f"#cells > div {part}").first.bounding_box() for part in ("div", "iframe")
    ]
    assert boxes[0] == boxes[1]


def test_what_is_not_trusted_is_an_image_and_a_text(notebook):
    html = attention_page(softmax((2, 3, 10, 10)), HOSTILE, model=HOSTILE[1])._repr_html_()
    page = notebook(SANITISED, html)
    for said in ("2 of 2 layers, 3 of 3 heads, 10 tokens", "trust this notebook", HOSTILE[0]):
        expect(page.locator("#cells")).to_contain_text(said)
    image = page.locator("#cells img")
    assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 3 * 34
    assert page.evaluate("window.pwned") is None
