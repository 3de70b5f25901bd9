"""uvicorn around the application: until Ctrl-C, or in the background of a notebook."""

import asyncio
import ipaddress
import socket
import threading
import time
from typing import Any

from minibert.errors import MinibertError
from minibert.model import Model
from minibert.viz.serve.app import application, check_installed
from minibert.viz.serve.engine import Engine
from minibert.viz.serve.gate import Gate
from minibert.viz.serve.model_thread import ModelThread
from minibert.viz.serve.requests import MOST_MESSAGE_BYTES

__all__ = ["PageServer", "ServedPage", "served"]

# An answer over HTTP takes milliseconds; a connection that is no websocket has no reason to last.
_HTTP_SECONDS = 15.0
_LOOK_SECONDS = 5
_MOST_CONNECTIONS = 400


class PageServer:
    """A model, and the address of a page before it.

    Raises MinibertError where starlette or uvicorn is missing, the model has no tokenizer, or the
    host and port cannot be had.
    """

    def __init__(
        self, model: Model, *, host: str = "127.0.0.1", port: int = 0, framed: bool = False
    ) -> None:
        check_installed()
        import uvicorn

        engine = Engine(model)
        gate = Gate()
        gate = Gate(gate.token, gate.names | {host.lower()})
        self._socket = _listening(host, port)
        self.thread = ModelThread()
        app = application(engine, self.thread, gate, framed=framed, abort=self._abort)
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
            callback_notify=self._drop_idle,
            timeout_notify=_LOOK_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._since: dict[Any, float] = {}
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
            self.thread.stop()

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

    def _abort(self, client: Any) -> None:
        """Close a connection without waiting for what it has not read."""
        for connection in list(self._server.server_state.connections):
            if client is not None and getattr(connection, "client", None) == tuple(client):
                connection.transport.abort()

    async def _drop_idle(self) -> None:
        """Close connections that never become a request."""
        now = time.monotonic()
        there = {
            connection
            for connection in self._server.server_state.connections
            if ".protocols.http." in type(connection).__module__
        }
        self._since = {one: self._since.get(one, now) for one in there}
        for connection, since in self._since.items():
            if now - since > _HTTP_SECONDS:
                connection.transport.abort()
        await asyncio.sleep(0)


class ServedPage:
    """A page that runs a model, in a cell of a notebook: type, change, and see attention follow.

    It is served by this process, in a thread, until `close()` or the kernel's end. So it needs a
    browser on this machine, and is not saved with the notebook.
    """

    def __init__(self, server: PageServer, height: int = 720) -> None:
        self._server = server
        self._thread = server.start()
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
        return f"<ServedPage at {self.address}; close() ends it>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{self.address}" title="A live page of attention"'
            f' style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def served(model: Model, height: int) -> ServedPage:
    """A page that runs the model, for a cell of a notebook; `Model.live` opens it."""
    return ServedPage(PageServer(model, framed=True), height)


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
