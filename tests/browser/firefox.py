"""The Firefox of the system, driven by Playwright over WebDriver BiDi, Firefox's own protocol.

Playwright sends one command that this Firefox lacks, and none for some of what tests emulate. A
relay between the two does both with the browser's own overrides, in its privileged scope.
"""

import itertools
import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Playwright
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, serve

PROGRAM = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
# What Playwright starts: Firefox, except that it says it listens where the relay does.
STARTED = """#!/bin/sh
"{program}" "$@" 2>&1 | sed -u 's#ws://127.0.0.1:\\([0-9]*\\)#ws://127.0.0.1:{port}/\\1#'
"""
# A context's options that Playwright has no command for, and what Firefox calls them.
OVERRIDES = {
    "color_scheme": "prefersColorSchemeOverride",
    "forced_colors": "forcedColorsOverride",
    "has_touch": "touchEventsOverride",
    "media": "mediumOverride",
    "reduced_motion": "prefersReducedMotionOverride",
}
OVERRIDE = """(id, values) => {
  const { NavigableManager } = ChromeUtils.importESModule(
    "chrome://remote/content/shared/NavigableManager.sys.mjs");
  Object.assign(NavigableManager.getBrowsingContextById(id), JSON.parse(values));
}"""
# Playwright counts its commands from 1; the answers to ours are told apart by their number.
FIRST_OF_OURS = 10**12
UNLIMITED: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None}

Message = dict[str, Any]


class Relay:
    """Passes messages on in both directions, and answers what Firefox does not know."""

    def __init__(self) -> None:
        """A relay that is to be asked for its port, and closed."""
        self.server: Server = serve(self._between, "127.0.0.1", 0, **UNLIMITED)
        self.port: int = self.server.socket.getsockname()[1]
        self.wanted: dict[str, str] = {}
        self._of_contexts: dict[str, dict[str, str]] = {}
        self._of_tabs: dict[str, dict[str, str]] = {}
        self._numbers = itertools.count(FIRST_OF_OURS)
        self._answers: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of Playwright whose emulation options are noted before it runs."""

        def noted(of: object, *positional: Any, **options: Any) -> Any:
            names = {name: options[name] for name in OVERRIDES if options.get(name) is not None}
            self.wanted = {OVERRIDES[name]: _value(value) for name, value in names.items()}
            return method(of, *positional, **options)

        return noted

    def _between(self, playwright: ServerConnection) -> None:
        """Serves one connection of Playwright, to the Firefox whose port its address names."""
        assert playwright.request
        port = playwright.request.path.split("/")[1]
        with connect(f"ws://127.0.0.1:{port}/session", **UNLIMITED) as self._firefox:
            back = threading.Thread(target=self._back, args=(self._firefox, playwright))
            back.start()
            for text in playwright:
                self._forth(playwright, str(text))
        back.join()

    def _back(self, firefox: ClientConnection, playwright: ServerConnection) -> None:
        for text in firefox:
            if f'"id":{FIRST_OF_OURS // 10**6}' in text and self._is_ours(str(text)):
                continue
            if '"method":"browsingContext.download' in text:
                text = _numbered(str(text))
            try:
                playwright.send(text)
            except ConnectionClosed:
                return
        playwright.close()

    def _is_ours(self, text: str) -> bool:
        answer = json.loads(text)
        if ours := (answer.get("id") or 0) >= FIRST_OF_OURS:
            self._answers.put(answer)
        return ours

    def _forth(self, playwright: ServerConnection, text: str) -> None:
        asked: Message = json.loads(text)
        method, params = asked["method"], asked["params"]
        if method == "browsingContext.create":
            result = self._ask(method, **params)
            tab = result["context"]
            self._override(tab, self._of_contexts.get(params["userContext"], {}))
        elif method == "emulation.setMediaFeaturesOverride":
            self._emulate(params)
            result = {}
        else:
            self._firefox.send(text)
            return
        playwright.send(json.dumps({"type": "success", "id": asked["id"], "result": result}))

    def _emulate(self, params: Message) -> None:
        for context in params.get("userContexts", ()):
            self._of_contexts[context] = self.wanted
        # Of the tabs of a page the first is its own, the others are frames in it.
        for tab in params.get("contexts", ())[:1]:
            self._override(tab, self.wanted)
        self.wanted = {}

    def _override(self, tab: str, values: dict[str, str]) -> None:
        if not values:
            return
        (window, *_) = self._ask("browsingContext.getTree", **{"moz:scope": "chrome"})["contexts"]
        given = [{"type": "string", "value": value} for value in (tab, json.dumps(values))]
        answer = self._ask(
            "script.callFunction",
            functionDeclaration=OVERRIDE,
            arguments=given,
            target={"context": window["context"]},
            awaitPromise=False,
        )
        assert answer["type"] == "success", answer

    def _ask(self, method: str, **params: Any) -> Message:
        """The result of a command of our own."""
        number = next(self._numbers)
        self._firefox.send(json.dumps({"id": number, "method": method, "params": params}))
        answer = self._answers.get(timeout=60)
        assert (answer["id"], answer["type"]) == (number, "success"), answer
        return dict(answer["result"])


def _numbered(text: str) -> str:
    """An event of a download, with the number that Playwright tells downloads apart by."""
    event = json.loads(text)
    event["params"].setdefault("download", event["params"]["url"])
    return json.dumps(event)


def _value(option: str | bool) -> str:
    """An option as Firefox says it."""
    return {True: "enabled", False: "none"}[option] if isinstance(option, bool) else option


@contextmanager
def firefox(playwright: Playwright, folder: Path) -> Iterator[Browser]:
    """An installed Firefox without a window; the test is skipped where there is none."""
    if PROGRAM is None:
        pytest.skip("Firefox is not installed")
    relay = Relay()
    started = folder / "firefox"
    started.write_text(STARTED.format(program=PROGRAM, port=relay.port))
    started.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Browser, "new_context"),
            (Browser, "new_page"),
            (Page, "emulate_media"),
        ):
            patch.setattr(owner, name, relay.noting(getattr(owner, name)))
        browser = playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=started,
            args=["--remote-allow-system-access"],
            timeout=300_000,
        )
        yield browser
        browser.close()
    relay.server.shutdown()
