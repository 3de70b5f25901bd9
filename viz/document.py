"""The HTML of a page, and how it is written to a file.

What `npm run build` left in `built/`, a header and blocks of numbers: text -> zlib -> five
characters for four bytes -> static/core/data/packed.js in the browser
"""

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from minibert.errors import MinibertError
from minibert.languages import strings
from minibert.untrusted import Json
from minibert.writing import check_place, replacing


def write_page(pieces: Iterable[str], path: str | os.PathLike[str]) -> Path:
    """The path, now holding the pieces as UTF-8, one after the other; otherwise as `write_bytes`.

    Only one piece at a time is held as bytes.
    """
    return _write((piece.encode() for piece in pieces), path)


def write_bytes(content: bytes, path: str | os.PathLike[str]) -> Path:
    """The path, now written.

    It is replaced as a whole (`writing.replacing`). Raises MinibertError when the folder is
    missing, may not be written to, or is full, and for what is not a file.
    """
    return _write((content,), path)


def _write(parts: Iterable[bytes], path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    try:
        check_place(target)
        with replacing(target) as beside, beside.open("wb") as file:
            file.writelines(parts)
    except OSError as error:
        raise MinibertError(f"cannot save {target}: {error.strerror or error}") from error
    return target


class Written:
    """What is one HTML file that needs no network.

    It is kept in pieces: the file's text exists only while `html` is read.
    """

    def pieces(self) -> Iterator[str]:
        """The text of the file, a part at a time."""
        raise NotImplementedError

    @property
    def html(self) -> str:
        """The whole file as one text."""
        return "".join(self.pieces())

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(
            len(piece) if piece.isascii() else len(piece.encode()) for piece in self.pieces()
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The path of the file, now written whole or not at all; see `write_page`.

        Raises MinibertError when the folder is missing, may not be written to, or is full.
        """
        return write_page(self.pieces(), path)


# What built/ has a script and a style of: the frame with the views of attention weights, the views
# that need query and key, and the view of what each layer would predict.
PARTS = ("page", "vectors", "layers")
# The same with fields to type in, before a model that runs in a worker.
LIVE_PARTS = ("page", "vectors", "layers", "live")
# The story in place of the fields, before two models.
STORY_PARTS = ("page", "vectors", "layers", "story")
# The same with fields before a model behind a server.
SERVED_PARTS = ("page", "vectors", "layers", "served")

_FORMAT = 2
_OFF = (
    "This page draws its pictures with JavaScript, which is switched off here. It needs no "
    "network: everything is in this file."
)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def _text(name: str) -> str:
    return (files("minibert.viz") / name).read_text(encoding="utf-8")


def _joined(names: Iterable[str]) -> str:
    return "".join(_text(f"built/{name}") for name in names)


def packed_text(text: str | bytes) -> str:
    """Text or bytes, deflated, in the digits of `payload.digits`, which needs NumPy."""
    content = text.encode() if isinstance(text, str) else text
    spelled = base64.b85encode(zlib.compress(content, 9))
    return spelled.translate(bytes.maketrans(b"&<>`", b".,:/")).decode("ascii")


def theme() -> str:
    """`colors` for another document: light or dark, as its reader has it."""
    light, dark = colors()
    return f":root{light}@media(prefers-color-scheme:dark){{:root{dark}}}"


def colors() -> tuple[str, str]:
    """The colours and the font of pages, light and dark, as blocks of CSS.

    They are declared once, in static/core/frame/theme.css.
    """
    style = _text("built/page.css")
    ((light, dark),) = re.findall(r"^\.minibert(\{.*?\})\.minibert\[.*?\](\{.*?\})", style)
    return light, dark


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy names it."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@lru_cache(maxsize=8)
def _shell(parts: tuple[str, ...]) -> dict[str, str]:
    """What is the same in every page with these parts: all of it but its numbers."""
    style, script = (_joined(f"{part}.{kind}" for part in parts) for kind in ("css", "js"))
    opening = _text("built/open_page.js")
    # A worker has no file to come from: the page makes one of its own text.
    runs = parts in (LIVE_PARTS, STORY_PARTS)
    worker = "worker-src blob:; " if runs else ""
    # A worker has the policy of its page, and multiplies in WebAssembly.
    programs = " 'wasm-unsafe-eval'" if runs else ""
    policy = (
        f"{worker}default-src 'none'; script-src {_hash(opening)} {_hash(script)}{programs}; "
        f"style-src {_hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return {"policy": policy, "opening": opening, "code": packed_text(f"{style}\0{script}")}


def header_json(header: Json) -> str:
    """The header as JSON that cannot leave the HTML element it stands in.

    Plain ASCII, so that NUL, lone surrogates and direction marks survive any editor and any
    encoding; `<`, `>` and `&` are escaped, so that no text can close the element.
    """
    text = json.dumps(header, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_header(
    examples: Sequence[Json] = (), *, title: str | None = None, view: str = "head", **more: object
) -> str:
    """The header of a page, as `document` takes it."""
    about = {"examples": [*examples], "format": _FORMAT, "title": title, "view": view}
    return header_json(about | more)


def document(
    header: str,
    blocks: Iterable[tuple[str, str]],
    *,
    parts: tuple[str, ...] = PARTS,
    connect: tuple[str, ...] = (),
    language: str = "en",
) -> Iterator[str]:
    """The HTML file, a piece at a time.

    `header` is JSON. Blocks are (name, text) and put in as they are. `connect` are the addresses
    that the page may ask, by default none. `language` is one of `minibert.languages.LANGUAGES`.
    """
    texts = strings(language, "page")
    held = f'<script type="application/json" id="minibert-strings">{header_json(texts)}</script>\n'
    values = {
        **_shell(parts),
        "header": packed_text(header),
        "language": language,
        "off": texts.get(_OFF, _OFF),
        "strings": held if texts else "",
    }
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
