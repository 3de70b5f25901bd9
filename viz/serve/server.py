"""The server of a page before a model: who is let in, its addresses, and uvicorn around them.

The token stands in the address and is compared in constant time. A page of another origin that a
browser shows could guess the port, but not the token; and it could give its own name our address
(DNS rebinding), but its name then stands in Host. So a name is let in only where it is that of this
machine; an address is never somebody's name. Origin has to be what Host says.

It runs until Ctrl-C (`minibert serve`), or in the background of a notebook (`model.live()`).
"""

import ipaddress
import re
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from minibert.errors import MinibertError, how_to_install, whole_number
from minibert.features import Features
from minibert.layers.linear import held
from minibert.model import Model
from minibert.viz.document import SERVED_PARTS, document, page_header
from minibert.viz.example import Example
from minibert.viz.live import LivePage, first_text, live_page, still_of
from minibert.viz.page import CELL_BYTES, CELL_HEIGHT, picture, still
from minibert.viz.serve.connection import Connection
from minibert.viz.serve.engine import MOST_MESSAGE_BYTES, Engine

if TYPE_CHECKING:
    from starlette.applications import Starlette

Headers = list[tuple[bytes, bytes]]

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9.-]{1,253})(?::(\d{1,5}))?", re.IGNORECASE)


def _machine_names() -> frozenset[str]:
    return frozenset({"localhost", socket.gethostname().lower()})


@dataclass(frozen=True)
class Gate:
    """The token of a server, and the names that it has."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    names: frozenset[str] = field(default_factory=_machine_names)

    def refusal(self, query: bytes, headers: Headers, *, websocket: bool) -> str:
        """Why a request is not let in; "" for one that is."""
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return "The address has another name than this server."
        origins = _values(headers, b"origin")
        # Browsers send it with every websocket; a plain visit has none.
        if origins or websocket:
            ours = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
            if len(origins) != 1 or origins[0].lower() not in ours:
                return "The request comes from a page of another origin."
        if not self._has_token(query):
            return "The address has no token, or a wrong one; use the one that the server printed."
        return ""

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if not found:
            return False
        name = found[1].lower().strip("[]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True

    def _has_token(self, query: bytes) -> bool:
        try:
            given = parse_qs(query.decode("ascii"), max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(given) == 1 and secrets.compare_digest(given[0].encode(), self.token.encode())


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


@lru_cache(maxsize=8)
def served_page(host: str, text: str) -> str:
    """The HTML of the page at `host`, which may be asked and nothing else; it opens with `text`."""
    header = page_header(live={"texts": [text]})
    # Not every browser counts a websocket of the same host as 'self'.
    connect = (f"ws://{host}", f"wss://{host}")
    return "".join(document(header, (), parts=SERVED_PARTS, connect=connect))


_ELSEWHERE = (
    "The page that one can type in is served by the Python that made it, and is seen in a browser"
    " of the same machine while that runs: run this cell again. A file that needs no Python is"
    " written by minibert.viz.live.live_page(model).save(path)."
)
ENGINE_PATH = "/engine"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The token stands in the address.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def check_installed() -> None:
    """Raise MinibertError where starlette, uvicorn or websockets is missing."""
    for name in ("starlette", "uvicorn", "websockets"):
        try:
            __import__(name)
        except ImportError as error:
            raise MinibertError(
                f"A served page needs {name}, which is not installed: {how_to_install('serve')}. "
                "See docs/install.md#extras"
            ) from error


def application(
    engine: Engine, worker: ThreadPoolExecutor, gate: Gate, *, framed: bool = False
) -> "Starlette":
    """The ASGI application. `framed`: other pages, as a notebook is, may show it in a frame."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket

    headers = _HEADERS if framed else {**_HEADERS, "X-Frame-Options": "DENY"}

    async def page(request: Request) -> Response:
        refusal = gate.refusal(request.scope["query_string"], request.headers.raw, websocket=False)
        if refusal:
            return PlainTextResponse(refusal + "\n", 403, headers)
        text = first_text(engine.config, engine.tokenizer)
        html = served_page(request.headers["host"], text)
        return HTMLResponse(html, headers=headers)

    async def engine_socket(websocket: WebSocket) -> None:
        query, raw = websocket.scope["query_string"], websocket.headers.raw
        if gate.refusal(query, raw, websocket=True):
            # Before it is accepted: the answer is 403.
            return await websocket.close()
        await websocket.accept()
        await Connection(websocket, engine, worker).run()

    return Starlette(routes=[Route("/", page), WebSocketRoute(ENGINE_PATH, engine_socket)])


_MOST_CONNECTIONS = 400


class PageServer:
    """A model, and the address of a page before it; `features` are those it can split by.

    Raises MinibertError where starlette or uvicorn is missing, the model has no tokenizer, or the
    host and port cannot be had.
    """

    def __init__(
        self,
        model: Model,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        framed: bool = False,
        features: Features | None = None,
    ) -> None:
        check_installed()
        import uvicorn

        engine = Engine(model, features)
        gate = Gate()
        gate = Gate(gate.token, gate.names | {host.lower()})
        self._socket = _listening(host, port)
        self._worker = ThreadPoolExecutor(1, "minibert model")
        app = application(engine, self._worker, gate, framed=framed)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=MOST_MESSAGE_BYTES,
            # Numbers of attention hardly get smaller, and this machine is near.
            ws_per_message_deflate=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self.port: int = self._socket.getsockname()[1]
        shown = host if host not in ("0.0.0.0", "::", "") else socket.gethostname()
        named = f"[{shown}]" if ":" in shown else shown
        self.address = f"http://{named}:{self.port}/?token={gate.token}"

    def run(self) -> None:
        """Serve until Ctrl-C, which is raised again once everything is closed."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._worker.shutdown(cancel_futures=True)

    def start(self) -> threading.Thread:
        """The thread that serves now, until `stop`."""
        thread = threading.Thread(target=self.run, name="minibert page", daemon=True)
        thread.start()
        while not self._server.started and thread.is_alive():
            time.sleep(0.01)
        return thread

    def stop(self) -> None:
        """Have `run` end."""
        self._server.should_exit = True


class ServedPage:
    """A page before a model, in a cell of a notebook: type, change, and see attention follow.

    It is served by this process, in a thread, until `close()` or the kernel's end. So it needs a
    browser on this machine; elsewhere and later a picture is seen, which the notebook keeps.
    """

    def __init__(self, server: PageServer, example: Example, height: int = CELL_HEIGHT) -> None:
        self._server = server
        self._thread = server.start()
        self.example = example
        self.height = height

    @property
    def address(self) -> str:
        """Where the page is, token included; a browser of this machine opens it."""
        return self._server.address

    def close(self) -> None:
        """End the server."""
        self._server.stop()
        self._thread.join()

    def __repr__(self) -> str:
        return f"<ServedPage at {self.address}, a page before the model; close() ends it>"

    def _repr_html_(self) -> str:
        # Browsers show what stands in an object where they cannot load it.
        return (
            f'<object data="{self.address}" type="text/html" title="A live page of attention"'
            f' style="width: 100%; height: {self.height}px">{still((self.example,), _ELSEWHERE)}'
            "</object>"
        )

    def _repr_png_(self) -> bytes:
        """The picture of the first text, for what shows no HTML."""
        return picture(self.example)


def live_cell(model: Model, height: int, features: Features | None = None) -> LivePage | ServedPage:
    """The live page of a model for a cell of a notebook, as `Model.live` has it."""
    height = whole_number("height", height, MinibertError, least=1)
    # Less than two bytes a weight, and four characters for three bytes, no page takes.
    if sum(one.numel() for one in held(model)) * 2 * 4 / 3 < CELL_BYTES:
        with suppress(MinibertError):
            page = replace(live_page(model, features=features), height=height)
            if page.fits_cell:
                return replace(page, examples=(_first_example(model),))
    return ServedPage(
        PageServer(model, framed=True, features=features), _first_example(model), height
    )


def _first_example(model: Model) -> Example:
    assert model.tokenizer is not None
    return still_of(model, first_text(model.config, model.tokenizer))


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family = socket.AF_INET6 if _is_six(host) else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MinibertError(
            f"Cannot listen on {host}, port {port} ({reason}); take another --host or --port, "
            "or --port 0 for any free one."
        ) from error


def _is_six(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
