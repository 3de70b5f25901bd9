"""A page in a cell of a notebook: in a frame where it is trusted, an image and a text where not."""

import io

import nbformat
import numpy as np
import pytest
from attention_pages import HOSTILE, names, softmax
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from PIL import Image
from playwright.sync_api import Page, expect

from minibert import load
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
    assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 3 * 204
    assert page.evaluate("window.pwned") is None


EXPORTED = (
    "import minibert\nmodel = minibert.load()\nmodel.live()",
    "model.trace('the horse ran away').view(view='map')",
    "import minibert.viz.serve.server as server\nserver.CELL_BYTES = 0\nmodel.live(height=400)",
)


def test_an_exported_notebook_runs_the_model_and_is_blank_nowhere(notebook, complaints):
    cells = [nbformat.v4.new_code_cell(code) for code in EXPORTED]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120).execute()
    held = [cell.outputs[-1]["data"] for cell in book.cells]
    assert all({"text/html", "image/png", "text/plain"} <= set(data) for data in held)
    # The kernel has ended, and the browser has no network.
    page = notebook(TRUSTED, HTMLExporter(template_name="basic").from_notebook_node(book)[0])
    live, below = (page.frame_locator("iframe >> nth=0"), page.frame_locator("iframe >> nth=1"))
    expect(live.locator(".lower[data-drawn]")).to_be_attached(timeout=60_000)
    text = "The small bird [MASK] in the old tree."
    live.get_by_role("textbox").first.fill(text)
    expect(live.locator("#page[aria-busy=false] .query .token")).to_have_text(
        list(load().tokenize(text).strings[0])
    )
    best = load().predict(text)[0].choices[0].label
    expect(live.locator(".live-sentence")).to_contain_text(f"“{best}”")
    # A frame that is not in sight is given no frames to draw in.
    page.locator("iframe").nth(1).scroll_into_view_if_needed()
    expect(below.locator(".map-view[data-drawn]")).to_be_attached()
    expect(page.get_by_text("run this cell again. A file")).to_be_visible()
    assert complaints == []
    shot = page.screenshot(full_page=True)
    # Firefox names the style that Playwright adds for it, and the frames' policy refuses.
    complaints.clear()
    whole = np.asarray(Image.open(io.BytesIO(shot)).convert("L"))
    for output in page.locator("iframe, object").all():
        box = output.bounding_box()
        part = whole[int(box["y"]) : int(box["y"] + 300), int(box["x"]) : int(box["x"] + 300)]
        assert part.std() > 5, "nothing is seen"
