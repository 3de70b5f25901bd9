"""The page of the server: the views of every page, and an engine that asks the server."""

from functools import lru_cache

from minibert.viz.document import SERVED_PARTS, document
from minibert.viz.live import live_samples
from minibert.viz.payload import header_json

__all__ = ["served_page"]

_FORMAT = 2


@lru_cache(maxsize=8)
def served_page(host: str, text: str, *, pairs: bool) -> str:
    """The HTML of the page at `host`, which may be asked and nothing else; it opens with `text`.

    `pairs`: the model takes a second text.
    """
    header = {
        "examples": [],
        "format": _FORMAT,
        "live": {"texts": [text], "samples": live_samples(pairs=pairs)},
        "title": None,
        "view": "head",
    }
    # Not every browser counts a websocket of the same host as 'self'.
    connect = (f"ws://{host}", f"wss://{host}")
    return "".join(document(header_json(header), (), parts=SERVED_PARTS, connect=connect))
