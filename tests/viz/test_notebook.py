"""What a notebook gets of a page: the HTML of its cell, the image in it, each page once.

What browsers make of it is in tests/browser/test_notebook.py.
"""

import base64
import io
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import pytest
from attention_pages import HOSTILE, names, softmax
from PIL import Image

from minibert.viz import attention_page


class Seen(HTMLParser):
    """The tags of HTML, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def pixels(self) -> np.ndarray:
        (source,) = (held["src"] for tag, held in self.tags if tag == "img")
        data = base64.b64decode(str(source).removeprefix("data:image/png;base64,"))
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_head_is_as_dark_as_its_weights():
    following = np.roll(np.eye(9), 1, axis=1)
    probs = np.stack([[np.eye(9), following]] * 3).astype(np.float32)
    html = attention_page(probs, names(9))._repr_html_()
    pixels = Seen(html).pixels
    side = 9 * 22
    assert pixels.shape == (3 * (side + 4), 2 * (side + 4), 3)
    for left, wanted in ((0, np.arange(9)), (side + 4, (np.arange(9) + 1) % 9)):
        middles = pixels[11:side:22, left + 11 : left + side : 22]
        assert (middles.sum(-1).argmin(1) == wanted).all()
    assert tuple(pixels[2, 2]) == (29, 60, 110)
    assert tuple(pixels[side + 2, side + 2]) == (255, 255, 255)


def test_a_page_that_cannot_fit_is_its_image_and_what_to_do(monkeypatch):
    page = attention_page(softmax((2, 3, 7, 7)), names(7))
    html = page._repr_html_()
    assert "iframe" in [tag for tag, _ in Seen(html).tags]
    monkeypatch.setattr("minibert.viz.page.CELL_BYTES", len(html) - 1)
    seen = Seen(page._repr_html_())
    assert "too large for a notebook. `.save(path)`" in seen.text
    assert seen.pixels.size
    assert not {"script", "iframe"} & {tag for tag, _ in seen.tags}


def test_the_frame_holds_the_page_and_nothing_of_it_outside_its_attribute():
    page = attention_page(softmax((1, 2, 10, 10)), HOSTILE)
    mime, html = page._mime_()
    assert mime == "text/html"
    frames = [held for tag, held in Seen(html).tags if tag == "iframe"]
    assert [held["srcdoc"] for held in frames] == [page.html]
    assert frames[0]["sandbox"] == "allow-scripts allow-downloads"
    assert not {"script", "style"} & {tag for tag, _ in Seen(html).tags}


Run = Callable[[str], list[str]]


@pytest.fixture
def run(monkeypatch, tmp_path_factory):
    """Runs a cell; what it shows as HTML."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    shell = shells.InteractiveShell.instance()
    # Off, as in a terminal without a screen; a notebook has it.
    shell.display_formatter.active_types = ["text/html", "text/plain"]
    shown: list[str] = []

    def show(data: dict[str, str], *_: object, **__: object) -> None:
        shown.append(data.get("text/html", ""))

    monkeypatch.setattr(shell.display_pub, "publish", show)
    monkeypatch.setattr(shell.displayhook, "write_format_data", show)
    shell.push({"attention": softmax((3, 2, 5, 5)), "tokens": names(5)})

    def cell(code: str) -> list[str]:
        shown.clear()
        shell.run_cell(code, store_history=True).raise_error()
        return list(shown)

    cell("from minibert.viz import head_view, model_view\nimport minibert.viz.neuron_view as n")
    yield cell
    shells.InteractiveShell.clear_instance()


def test_a_call_of_bertviz_is_shown_once_wherever_it_stands_in_a_cell(run):
    for code, pages in (
        ("head_view(attention, tokens)", 1),
        ("head_view(attention, tokens)\nmodel_view(attention, tokens)", 2),
        ("[model_view(attention, tokens) for _ in range(2)][0]", 2),
        ("page = head_view(attention, tokens)", 1),
        ("page = head_view(attention, tokens, html_action='return')", 0),
        ("import minibert\nn.show(minibert.load(), sentence_a='the horse')\n1 + 1;", 1),
    ):
        shown = run(code)
        assert len(shown) == pages, code
        assert all('title="Attention"' in html for html in shown)
    run("page = head_view(attention, tokens, layer=1)")
    [again] = run("page")
    [once_more] = run("from IPython.display import display\ndisplay(page)")
    assert again == once_more
