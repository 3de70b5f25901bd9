"""The addresses of the server: the page, and the engine's websocket."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minibert.errors import MinibertError, how_to_install
from minibert.viz.serve.connection import Connection
from minibert.viz.serve.engine import Engine
from minibert.viz.serve.gate import Gate
from minibert.viz.serve.model_thread import ModelThread
from minibert.viz.serve.page import served_page

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["ENGINE_PATH", "MOST_PAGES", "application", "check_installed"]

ENGINE_PATH = "/engine"
MOST_PAGES = 100
_TRY_LATER = 1013
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
    engine: Engine,
    thread: ModelThread,
    gate: Gate,
    *,
    framed: bool = False,
    abort: Callable[[Any], None] = lambda client: None,
) -> "Starlette":
    """The ASGI application. `framed`: other pages, as a notebook is, may show it in a frame.

    `abort` closes the connection of a client, an ASGI scope's `client`, without a word.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket

    headers = _HEADERS if framed else {**_HEADERS, "X-Frame-Options": "DENY"}
    pages: set[Connection] = set()

    async def page(request: Request) -> Response:
        refusal = gate.refusal(request.scope["query_string"], request.headers.raw, websocket=False)
        if refusal:
            return PlainTextResponse(refusal + "\n", 403, headers)
        html = served_page(request.headers["host"], engine.first_text, pairs=engine.takes_pairs)
        return HTMLResponse(html, headers=headers)

    async def engine_socket(websocket: WebSocket) -> None:
        query, raw = websocket.scope["query_string"], websocket.headers.raw
        if gate.refusal(query, raw, websocket=True):
            # Before it is accepted: the answer is 403.
            return await websocket.close()
        await websocket.accept()
        if len(pages) >= MOST_PAGES:
            return await websocket.close(_TRY_LATER, f"{MOST_PAGES} pages are open already.")
        connection = Connection(websocket, engine, thread, abort)
        pages.add(connection)
        try:
            await connection.run()
        finally:
            pages.discard(connection)

    return Starlette(routes=[Route("/", page), WebSocketRoute(ENGINE_PATH, engine_socket)])
