"""What a notebook gets of a page, as bytes: the HTML of its cell, what is left out, the image.

What browsers and notebooks make of it is in tests/browser/test_notebook.py.
"""

import base64
import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from attention_pages import HOSTILE, names, softmax
from PIL import Image

from minibert.viz import attention_page
from minibert.viz.example import Example
from minibert.viz.page import CELL_BYTES, cell_html, fitting, picture, surroundings
from minibert.viz.payload import (
    cells_of,
    header_json,
    pack_layer,
    pack_thumbnails,
    pack_vectors,
    pool,
)

LAYERS, HEADS, WIDTH = 2, 3, 5


def example(n: int, *held: str, noise: bool = False) -> Example:
    """An example of n tokens that holds what is named, of zeros or of what cannot be deflated."""
    page = attention_page(softmax((LAYERS, HEADS, n, n)), names(n))
    about = {**page.examples[0].about, "notes": []}
    probs = softmax((LAYERS, HEADS, n, n))
    vectors = np.zeros((HEADS, n, WIDTH), np.float32)
    if noise:
        vectors = np.random.default_rng(1).normal(0, 1, vectors.shape).astype(np.float32)
    blocks = [pack_thumbnails([pool(weights) for weights in probs])]
    blocks += [pack_layer(i, weights) for i, weights in enumerate(probs) if "probs" in held]
    for name in ("query", "key", "value"):
        blocks += [pack_vectors(name, i, vectors) for i in range(LAYERS) if name in held]
    return Example(about, tuple(blocks))


def quantities(examples: tuple[Example, ...]) -> set[str]:
    return {block.entry["quantity"] for one in examples for block in one.blocks}


def codes_of(one: Example) -> list[np.ndarray]:
    return [cells_of(block) for block in one.blocks if block.entry["quantity"] == "probs"]


def limit_for(wanted: Example) -> int:
    """Room for this example, its header and a note."""
    return surroundings() + wanted.size + len(json.dumps(wanted.about)) + 200


class Seen(HTMLParser):
    """What stands in HTML outside its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.script = ""
        self.image = b""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        source = dict(attrs).get("src")
        if tag == "img" and source:
            self.image = base64.b64decode(source.removeprefix("data:image/png;base64,"))

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "script":
            self.script += data
        else:
            self.text += data


class TestBundle:
    def test_marimo_gets_a_frame(self) -> None:
        page = attention_page(softmax((2, 3, 7, 7)), names(7))
        mime, html = page._mime_()
        assert mime == "text/html"
        assert html.startswith("<iframe srcdoc=")
        large = attention_page(softmax((12, 12, 260, 260)), names(260))
        assert len(large._mime_()[1].encode()) <= CELL_BYTES


class TestSize:
    @pytest.mark.parametrize(
        ("left", "said"),
        [
            (("probs", "query", "key"), "small: value."),
            (("probs",), "query, key and value."),
            ((), "Only the overview"),
        ],
        ids=["no value", "no vectors", "overview"],
    )
    def test_vectors_go_first_and_weights_last_and_a_note_says_so(
        self, left: tuple[str, ...], said: str
    ) -> None:
        whole = example(200, "probs", "query", "key", "value", noise=True)
        held = fitting([whole], limit_for(example(200, *left, noise=True)))
        assert quantities(held) == {"thumbnails", *left}
        (note,) = held[0].about["notes"]
        assert said in note
        assert ".save(path)" in note

    def test_of_weights_the_largest_stay_longest(self) -> None:
        whole = example(200, "probs", "query", "key", noise=True)
        few = example(200).size + LAYERS * HEADS * 200 * 16 * 2
        held = fitting([whole], surroundings() + few)
        assert quantities(held) == {"thumbnails", "probs"}
        (note,) = held[0].about["notes"]
        count = int(note.split("Only the ")[1].split(" ")[0])
        for before, after in zip(codes_of(whole), codes_of(held[0]), strict=True):
            assert ((after == 0) | (after == before)).all()
            assert (np.count_nonzero(after, -1) <= count).all()
            rows = np.sort(before, -1)[..., -count:].astype(int).sum(-1)
            assert (after.astype(int).sum(-1) == rows).all()

    def test_the_head_view_of_a_long_text_fits_a_cell(self) -> None:
        page = attention_page(softmax((12, 12, 260, 260)), names(260))
        html = page._repr_mimebundle_()["text/html"]
        assert len(html.encode()) <= CELL_BYTES
        assert "largest weights of each token" in Seen(html).script
        held = fitting(page.examples)
        assert sum(block.entry["quantity"] == "probs" for block in held[0].blocks) == 12

    def test_a_page_that_cannot_fit_is_its_image_and_what_to_do(self) -> None:
        page = attention_page(softmax((2, 3, 7, 7)), names(7))
        seen = Seen(cell_html(page.examples, lambda held: header_json({}), limit=1000))
        assert "too large for a notebook" in seen.text
        assert ".save(path)" in seen.text
        assert seen.image
        assert not seen.script


class TestPicture:
    def test_a_head_is_as_dark_as_its_weights(self) -> None:
        following = np.roll(np.eye(9), 1, axis=1)
        probs = np.stack([[np.eye(9), following]] * 3).astype(np.float32)
        image = Image.open(io.BytesIO(picture(attention_page(probs, names(9)).examples[0])))
        assert image.size == (2 * 40, 3 * 40)
        pixels = np.asarray(image.convert("RGB"))[:36, :36]
        cells = pixels[2::4, 2::4].sum(-1)
        assert (cells.argmin(1) == np.arange(9)).all()
        assert tuple(pixels[2, 2]) == (29, 60, 110)
        assert tuple(np.asarray(image.convert("RGB"))[38, 38]) == (255, 255, 255)


class TestFrame:
    def test_the_frame_holds_the_page_and_nothing_of_it_outside_its_attribute(self) -> None:
        page = attention_page(softmax((1, 2, 10, 10)), HOSTILE)
        frames: list[dict[str, str | None]] = []

        class Reader(HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                frames.append({"tag": tag, **dict(attrs)})

        Reader().feed(page._repr_html_())
        (frame,) = frames
        assert frame["tag"] == "iframe"
        assert frame["srcdoc"] == page.html
        assert frame["sandbox"] == "allow-scripts allow-downloads"
        assert frame["title"] == "Attention"
        assert "height: " in str(frame["style"])
