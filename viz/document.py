"""The HTML of a page: what `npm run build` left in `built/`, a header and blocks of numbers.

text -> zlib -> five characters for four bytes -> static/core/data/packed.js in the browser
"""

import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files

__all__ = [
    "LIVE_PARTS",
    "PARTS",
    "SERVED_PARTS",
    "cell",
    "document",
    "packed_text",
    "worker_block",
]

# What built/ has a script and a style of: the frame with the views of attention weights, the views
# that need query and key, and the view of what each layer would predict.
PARTS = ("page", "vectors", "layers")
# The same with fields to type in, before a model that runs in a worker.
LIVE_PARTS = ("page", "vectors", "layers", "live")
# The same before a model behind a server.
SERVED_PARTS = ("page", "vectors", "layers", "served")

_PLACE = re.compile(r"\{\{(\w+)\}\}")
# Neither in a page's HTML nor in its attributes: four digits are written as others.
_SAFE = str.maketrans("<>&`", ",:./")


def _text(name: str) -> str:
    return (files("minibert.viz") / name).read_text(encoding="utf-8")


def _joined(names: Iterable[str]) -> str:
    return "".join(_text(f"built/{name}") for name in names)


def packed_text(text: str) -> str:
    """The text deflated, four bytes in five characters that mean nothing to HTML or JSON.

    The digits are those of RFC 1924, with four of them replaced. Base64 takes 5.3 characters.
    """
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode("ascii").translate(_SAFE)


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@lru_cache(maxsize=8)
def _shell(parts: tuple[str, ...]) -> dict[str, str]:
    """What is the same in every page with these parts: all of it but its numbers."""
    style, script = (_joined(f"{part}.{kind}" for part in parts) for kind in ("css", "js"))
    opening = _text("built/open_page.js")
    # A worker has no file to come from: the page makes one of its own text.
    worker = "worker-src blob:; " if "live" in parts else ""
    policy = (
        f"{worker}default-src 'none'; script-src {_hash(opening)} {_hash(script)}; "
        f"style-src {_hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return {"policy": policy, "opening": opening, "code": packed_text(f"{style}\0{script}")}


def document(
    header: str,
    blocks: Iterable[tuple[str, str]],
    *,
    parts: tuple[str, ...] = PARTS,
    connect: tuple[str, ...] = (),
) -> Iterator[str]:
    """The HTML file, a piece at a time.

    `header` is JSON. Blocks are (name, base64) and put in as they are. `connect` are the addresses
    that the page may ask, by default none.
    """
    values = {**_shell(parts), "header": packed_text(header)}
    if connect:
        values["policy"] += f"; connect-src {' '.join(connect)}"
    # Split once: text that was put in is never searched for places again.
    for i, piece in enumerate(_PLACE.split(_text("page.html"))):
        if i % 2 == 0:
            yield piece
        elif piece != "blocks":
            yield values[piece]
        else:
            for name, data in blocks:
                yield f'<script type="application/octet-stream" id="{name}">'
                yield data
                yield "</script>\n"


def worker_block() -> tuple[str, str]:
    """The block with the script of the worker that runs a live page's model."""
    return "worker", packed_text(_text("built/worker.js"))


@lru_cache(maxsize=8)
def _cell_shell(parts: tuple[str, ...]) -> tuple[str, str, str]:
    """What a cell's script begins with and ends with, and packed style and script."""
    style = _joined((*(f"{part}.cell.css" for part in parts), "cell.css"))
    script = _joined(f"{part}.js" for part in parts)
    before, after = _text("built/open_cell.js").split('"{{cell}}"')
    return before, after, packed_text(f"{style}\0{script}")


def cell(
    identity: str,
    header: str,
    blocks: Iterable[tuple[str, str]],
    *,
    height: int,
    parts: tuple[str, ...] = PARTS,
) -> Iterator[str]:
    """A classic script that shows a page in the element `data-minibert="identity"`, in pieces.

    Blocks are as in `document`; the header is put in as it is, and `payload.header_json` makes it
    safe. `height` is the most it takes, in CSS pixels.
    """
    before, after, code = _cell_shell(parts)
    yield before
    yield f'{{id: "{identity}", height: {height}, code: "{code}"'
    yield f",\nheader: {header},\nblocks: {{"
    for name, data in blocks:
        yield f'"{name}": "{data}",\n'
    yield "}}"
    yield after
