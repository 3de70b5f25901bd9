"""A page in a real Chromium: on screen when, how much memory, how many elements, how quick.

Every visit has a browser of its own, warmed by a page of nothing, without a network; BertViz'
scripts come from a folder. Times are of the page's own clock, see probe.js.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Error, Page, Playwright, ViewportSize

from benchmarks.pages.views import Screen, Spot
from minibert.bench.gate import GateError
from minibert.bench.result_rows import Row

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
WINDOW: ViewportSize = {"width": 1280, "height": 900}
PROBE = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
# Milliseconds of rest before memory is read and before something is pointed at.
REST = 200
TOLD = "measured "


class Visit:
    """One page in one browser, and what it tells."""

    def __init__(self, browser: Browser, page: Page, limit: float) -> None:
        self.browser, self.page, self.limit = browser, page, limit
        self.told: dict[str, Row] = {}
        self.complaint = ""
        page.on("console", lambda message: self._hear(message.text))
        page.on("pageerror", lambda error: self._complain(f"exception: {error}"))
        page.on("crash", lambda _: self._complain("the renderer crashed"))
        page.add_init_script(PROBE)

    def _hear(self, text: str) -> None:
        if text.startswith(TOLD):
            found = json.loads(text.removeprefix(TOLD))
            self.told[found["name"]] = found

    def _complain(self, why: str) -> None:
        self.complaint = self.complaint or why

    def open(self, path: Path, screen: Screen) -> float:
        """Milliseconds from the start of the navigation until the picture is on screen."""
        selectors = json.dumps(list(screen.drawn))
        self.page.add_init_script(f"measurement.painted({selectors})")
        address = path.as_uri() + (f"#{screen.address}" if screen.address else "")
        self.page.goto(address, wait_until="commit", timeout=self.limit * 1e3)
        return self.wait("painted")

    def wait(self, name: str) -> float:
        """What the page tells under a name, in milliseconds. Raises GateError where it does not.

        The page is not asked: one that is busy for minutes would not answer.
        """
        end = time.monotonic() + self.limit
        while name not in self.told:
            if self.complaint:
                raise GateError(self.complaint[:200])
            if time.monotonic() > end:
                raise GateError(f"not {name} after {self.limit:.0f} s")
            self.page.wait_for_timeout(10)
        return float(self.told.pop(name)["ms"])

    def rest(self) -> None:
        self.page.wait_for_timeout(REST)

    def memory(self) -> Row:
        """Bytes of the page's renderer, now and at most, of its JavaScript; elements."""
        tools = self.page.context.new_cdp_session(self.page)
        tools.send("Performance.enable")
        metrics = tools.send("Performance.getMetrics")["metrics"]
        heap = {metric["name"]: metric["value"] for metric in metrics}["JSHeapUsedSize"]
        return {
            **renderer_bytes(self.browser.new_browser_cdp_session()),
            "heap_bytes": int(heap),
            "elements": self.page.evaluate("document.getElementsByTagName('*').length"),
        }

    def hover(self, screen: Screen) -> float | None:
        """Milliseconds from the pointer's move onto the picture to what it shows."""
        if screen.hover is None:
            return None
        self.page.mouse.move(1, 1)
        x, y = self.place(screen.hover)
        self.arm("hover", "mousemove", screen.hovered)
        self.page.mouse.move(x, y)
        return self.wait("hover")

    def layer(self, screen: Screen) -> float | None:
        """Milliseconds from the choice of the last layer to its picture."""
        if not screen.menu:
            return None
        given = [screen.menu, "[data-drawn]", list(screen.changed)]
        if not self.page.evaluate("(given) => measurement.lastLayer(...given)", given):
            raise GateError("no menu of layers")
        return self.wait("layer")

    def opened(self, screen: Screen) -> float | None:
        """Milliseconds from a click on a head to its large picture."""
        if screen.tile is None:
            return None
        x, y = self.place(screen.tile)
        self.page.mouse.move(x, y)
        self.rest()
        self.arm("opened", "click", screen.opened)
        self.page.mouse.click(x, y)
        return self.wait("opened")

    def arm(self, name: str, event: str, selectors: Sequence[str]) -> None:
        self.page.evaluate("(given) => measurement.arm(...given)", [name, event, list(selectors)])

    def place(self, spot: Spot) -> tuple[float, float]:
        """A spot in CSS pixels of the window. Raises GateError where there is nothing."""
        found = self.page.evaluate(BOX, [spot.selector, spot.index])
        if found is None:
            raise GateError(f"nothing to point at: {spot.selector}")
        left, top, width, height = found
        down = height / 2 if spot.down is None else min(spot.down, height - 1)
        return left + spot.across * width, min(top + down, WINDOW["height"] - 5)


BOX = """([selector, index]) => {
  const found = document.querySelectorAll(selector)[index];
  const box = found?.getBoundingClientRect();
  return box ? [box.left, box.top, box.width, box.height] : null;
}"""


@contextmanager
def visiting(
    playwright: Playwright, scripts: Mapping[str, str] | None, limit: float
) -> Iterator[Visit]:
    """A new browser with one page; with scripts, those addresses are answered, all others not."""
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
    try:
        context = browser.new_context(viewport=WINDOW)
        if scripts is None:
            context.set_offline(True)
        else:
            context.route(re.compile("^https?:"), lambda route: answer(route, scripts))
        page = context.new_page()
        page.goto("data:text/html,<canvas></canvas>Nothing")
        visit = Visit(browser, page, limit)
        visit.rest()
        yield visit
    except Error as error:
        raise GateError(str(error).strip().split("\n")[0][:200]) from error
    finally:
        browser.close()


def answer(route: Any, scripts: Mapping[str, str]) -> None:
    text = scripts.get(route.request.url)
    if text is None:
        route.abort()
    else:
        headers = {"access-control-allow-origin": "*"}
        route.fulfill(body=text, content_type="text/javascript", headers=headers)


def renderer_bytes(tools: CDPSession) -> Row:
    """Bytes of the browser's largest renderer: its share of memory now, the most ever resident."""
    processes = tools.send("SystemInfo.getProcessInfo")["processInfo"]
    found = [shares(int(one["id"])) for one in processes if one["type"] == "renderer"]
    now, peak = max(found)
    return {"renderer_bytes": now, "renderer_peak_bytes": peak}


def shares(process: int) -> tuple[int, int]:
    """Proportional set size and the most resident memory of a process, in bytes, by Linux."""
    folder = Path("/proc") / str(process)
    share = re.search(r"^Pss:\s+(\d+)", (folder / "smaps_rollup").read_text(), re.MULTILINE)
    peak = re.search(r"^VmHWM:\s+(\d+)", (folder / "status").read_text(), re.MULTILINE)
    assert share
    assert peak
    return int(share[1]) * 1024, int(peak[1]) * 1024
