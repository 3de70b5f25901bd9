"""Firefox over WebDriver BiDi, its own protocol: playwright drives a build of its own only."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websocket import WebSocket, create_connection

_NAMES = ("firefox-esr", "firefox")
_LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


class Tab:
    """A tab of Firefox; `said` is what its page wrote to the console or asked for."""

    def __init__(self, socket: WebSocket) -> None:
        """Open the tab."""
        self.socket = socket
        self.count = 0
        self.said: list[str] = []
        self.ask("session.new", capabilities={})
        events = ["log.entryAdded", "network.beforeRequestSent"]
        self.ask("session.subscribe", events=events)
        self.context = self.ask("browsingContext.create", type="tab")["context"]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:
                assert answer["type"] == "success", answer
                return dict(answer["result"])
            self.hear(answer)

    def hear(self, event: dict[str, Any]) -> None:
        """Note what the page said or asked for."""
        if event.get("method") == "log.entryAdded":
            self.said.append(event["params"]["text"])
        elif event.get("method") == "network.beforeRequestSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:null/")):
                self.said.append(f"request: {url}")

    def open(self, path: Path, hash: str = "") -> None:
        """Go to a file."""
        url = f"{path.as_uri()}#{hash}"
        self.ask("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON; of a promise what it is kept with."""
        asked = f"Promise.resolve({expression}).then(JSON.stringify)"
        target = {"context": self.context}
        answer = self.ask("script.evaluate", expression=asked, target=target, awaitPromise=True)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def wait(self, condition: str) -> None:
        """Return when a JavaScript expression is true; fail after 30 s."""
        look = f"const now = () => ({condition}) ? done(true) : setTimeout(now, 20); now();"
        late = "setTimeout(() => done(false), 30000);"
        assert self.value(f"new Promise((done) => {{ {look} {late} }})"), condition


@contextmanager
def firefox(profile: Path) -> Iterator[Tab]:
    """A tab of an installed Firefox without a window; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        pytest.skip("Firefox is not installed")
    command = [found, "--headless", "--no-remote", "--profile", str(profile)]
    log = profile / "log.txt"
    # Into a file: a pipe that nobody reads is full one day, and the browser waits.
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*command, "--remote-debugging-port=0"], stdout=out, stderr=out
        ) as process,
    ):
        try:
            socket = create_connection(_place(log), timeout=60, suppress_origin=True)
            yield Tab(socket)
            socket.close(timeout=1)
        finally:
            process.kill()


def _place(log: Path) -> str:
    """Where the browser listens, as it says when it is ready."""
    for _ in range(600):
        if found := _LISTENS.search(log.read_text(errors="replace")):
            return f"{found[1]}/session"
        time.sleep(0.1)
    raise TimeoutError(f"Firefox did not say where it listens: {log.read_text(errors='replace')}")
