"""A served model in a test: the engine asked directly, and a server with a websocket."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

from minibert.features import Features
from minibert.model import Model
from minibert.viz.serve.server import PageServer


def request(texts: list[str], edits: Any = (), other: list[str] | None = None) -> dict[str, Any]:
    return {"texts": texts, "edits": list(edits), "other": other}


@contextmanager
def serving(model: Model, features: Features | None = None) -> Iterator[PageServer]:
    """The server of a model, until the end of the block."""
    server = PageServer(model, features=features)
    thread = server.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


class Client:
    """One page's websocket."""

    def __init__(self, server: PageServer | str, **options: Any) -> None:
        self.number = 0
        self.socket: ClientConnection = page_socket(server, **options)

    def send(self, ask: str, **question: Any) -> int:
        self.number += 1
        self.socket.send(json.dumps({"number": self.number, "ask": ask, **question}))
        return self.number

    def answer(self, timeout: float = 30) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The next answer's head and blocks."""
        frame = self.socket.recv(timeout)
        assert isinstance(frame, bytes)
        end = 4 + int.from_bytes(frame[:4], "little")
        head, blocks = json.loads(frame[4:end]), {}
        assert end % 8 == 0
        for block in head["blocks"]:
            blocks[block["name"]] = frame[end : end + block["bytes"]]
            end += block["bytes"]
        assert end == len(frame)
        return head, blocks

    def ask(self, ask: str, **question: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
        number = self.send(ask, **question)
        head, blocks = self.answer()
        assert head["number"] == number
        return head, blocks

    def close(self) -> None:
        self.socket.close()


def page_socket(
    server: PageServer | str, *, origin: str | None = "", token: str | None = None, **options: Any
) -> ClientConnection:
    """A websocket to a server, or to that of a page's address; `origin` "" is the page's own."""
    page = urlsplit(server if isinstance(server, str) else server.address)
    token = page.query.partition("=")[2] if token is None else token
    host = page.netloc
    own = f"http://{host}" if origin == "" else origin
    address = f"ws://{host}/engine?token={token}"
    options |= {"origin": own, "compression": None, "max_size": None, "close_timeout": 1}
    return connect(address, **options).__enter__()
