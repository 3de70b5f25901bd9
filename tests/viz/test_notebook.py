"""What a notebook gets of a page, as bytes: the HTML of its cell, and the image in it.

What browsers and notebooks make of it is in tests/browser/test_notebook.py.
"""

import base64
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from attention_pages import HOSTILE, names, softmax
from PIL import Image

from minibert.viz import attention_page


class Seen(HTMLParser):
    """The tags of HTML, and what stands outside its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags[-1][0] != "script":
            self.text += data

    @property
    def pixels(self) -> np.ndarray:
        (source,) = (held["src"] for tag, held in self.tags if tag == "img")
        data = base64.b64decode(str(source).removeprefix("data:image/png;base64,"))
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_head_is_as_dark_as_its_weights() -> None:
    following = np.roll(np.eye(9), 1, axis=1)
    probs = np.stack([[np.eye(9), following]] * 3).astype(np.float32)
    html = attention_page(probs, names(9))._repr_mimebundle_()["text/html"]
    pixels = Seen(html).pixels
    assert pixels.shape == (3 * 40, 2 * 40, 3)
    for place, wanted in ((slice(36), np.arange(9)), (slice(40, 76), (np.arange(9) + 1) % 9)):
        assert (pixels[:36, place][2::4, 2::4].sum(-1).argmin(1) == wanted).all()
    assert tuple(pixels[2, 2]) == (29, 60, 110)
    assert tuple(pixels[38, 38]) == (255, 255, 255)


def test_a_page_that_cannot_fit_is_its_image_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = attention_page(softmax((2, 3, 7, 7)), names(7))
    shown = page._repr_mimebundle_()["text/html"], page._mime_()[1]
    assert [Seen(html).tags[0][0] for html in shown] == ["div", "iframe"]
    monkeypatch.setattr("minibert.viz.page.CELL_BYTES", min(map(len, shown)) - 1)
    for html in (page._repr_mimebundle_()["text/html"], page._mime_()[1]):
        seen = Seen(html)
        assert "too large for a notebook. `.save(path)`" in seen.text
        assert seen.pixels.size
        assert not {"script", "iframe"} & {tag for tag, _ in seen.tags}


def test_the_frame_holds_the_page_and_nothing_of_it_outside_its_attribute() -> None:
    page = attention_page(softmax((1, 2, 10, 10)), HOSTILE)
    mime, html = page._mime_()
    assert mime == "text/html"
    [(tag, held)] = Seen(html).tags
    assert tag == "iframe"
    assert held["srcdoc"] == page.html
    assert held["sandbox"] == "allow-scripts allow-downloads"
    assert held["title"] == "Attention"
