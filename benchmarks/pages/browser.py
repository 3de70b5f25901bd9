"""A page in a real Chromium: are its numbers those given, when is it on screen, what does it hold.

Every visit has a browser of its own, warmed by a page of nothing, without a network. BertViz'
scripts are recorded at a first visit and answered from that file at all others. Times are of the
page's own clock, see probe.js. Of minibert's pages only what they promise is used: `data-drawn` on
the root of a drawn view, the menu of layers, the state in the address; of BertViz', what its
functions add last.
"""

import base64
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Browser, Error, Page, Playwright, Route, ViewportSize

from benchmarks.pages.making import BERTVIZ, MINIBERT, Case, Shape, trace_of
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import GateError, Row, WrongError, within


def recording() -> Path:
    """The file in the user's cache that has BertViz' scripts, as an HTTP archive."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "minibert-benchmarks" / "bertviz.har"


@dataclass(frozen=True)
class Screen:
    """One view of one program."""

    drawn: tuple[str, ...]
    """Selectors that all match when the picture is there."""
    address: str = ""
    menu: str = ""
    """The menu of layers; empty where there is none."""
    changed: tuple[str, ...] = ()
    """What matches when the last layer is shown."""


def screen(case: Case) -> Screen:
    """The view of a case."""
    last, address = case.shape.layers - 1, f"view={case.view}"
    if case.program == MINIBERT and case.view == "head":
        drawn = ".lower[data-drawn]"
        changed = (drawn, f'[data-layer="{last}"]')
        return Screen((drawn,), address, 'select[aria-label="Layer"]', changed)
    if case.program == MINIBERT:
        return Screen(("[data-drawn]",), address)
    if case.view == "head":
        boxes = ("#vis #attention + g > rect:last-child",)
        return Screen(boxes, "", "#layer", boxes)
    return Screen((f"#attn_background_{last}_{case.shape.heads - 1} ~ rect",))


CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
WINDOW: ViewportSize = {"width": 1280, "height": 900}
PROBE = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
# Milliseconds of rest before memory is read and another layer is chosen.
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
        """Bytes of the browser's largest renderer: its proportional share of memory, by Linux."""
        tools = self.browser.new_browser_cdp_session()
        processes = tools.send("SystemInfo.getProcessInfo")["processInfo"]
        folders = [Path(f"/proc/{one['id']}") for one in processes if one["type"] == "renderer"]
        texts = [(folder / "smaps_rollup").read_text() for folder in folders]
        shares = [int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) for text in texts]
        return {"renderer_bytes": 1024 * max(shares)}

    def layer(self, screen: Screen) -> Row:
        """Milliseconds from the choice of the last layer to its picture, where there is a menu."""
        if not screen.menu:
            return {}
        given = [screen.menu, "[data-drawn]", list(screen.changed)]
        if not self.page.evaluate("(given) => measurement.lastLayer(...given)", given):
            raise GateError("no menu of layers")
        return {"layer_ms": self.wait("layer")}


@contextmanager
def visiting(playwright: Playwright, limit: float, *, online: bool = False) -> Iterator[Visit]:
    """A new browser with one page; `online` answers it from the recording, or makes that."""
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
    try:
        context = browser.new_context(viewport=WINDOW)
        if online:
            record = not recording().exists()
            context.route_from_har(recording(), not_found="abort", update=record)
        else:
            context.set_offline(True)
        page = context.new_page()
        page.goto("data:text/html,<canvas></canvas>Nothing")
        visit = Visit(browser, page, limit)
        visit.rest()
        yield visit
        # Writes the recording.
        context.close()
    except Error as error:
        raise GateError(str(error).strip().split("\n")[0][:200]) from error
    finally:
        browser.close()


TOLERANCE = 4e-3
Numbers = npt.NDArray[np.float64]

STATIC = REPOSITORY / "viz" / "static"
# A place that is nowhere: all of it is answered here.
ORIGIN = "https://page.invalid/"
DECODE = """async ([layer, head]) => {
  const { blocksOfText } = await import("./core/data/packed.js");
  const { Example } = await import("./core/data/example.js");
  const { fromBase85, inflate } = await import("./core/data/packed.js");
  const text = await (await fetch("./page.html")).text();
  const file = new DOMParser().parseFromString(text, "text/html");
  const read = (name) => file.getElementById(name).textContent;
  const header = await inflate(fromBase85(read("header"))).json();
  const example = new Example(header.examples[0], blocksOfText(async (name) => read(name)), 0);
  const weights = await example.head(layer, head);
  const bytes = new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength);
  let written = "";
  for (let i = 0; i < bytes.length; i += 8192) {
    written += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(written);
}"""


def compared(found: Numbers, wanted: Numbers, what: str) -> float:
    """The largest difference. Raises WrongError above 4e-3, for other sizes, and for NaN."""
    if found.size != wanted.size or not found.size:
        raise WrongError(f"{what}: {found.size} numbers, expected {wanted.size}")
    error = float(np.abs(found.reshape(wanted.shape) - wanted).max())
    return within(what, error, TOLERANCE)


def checked(case: Case, path: Path, playwright: Playwright, limit: float) -> Row:
    """How far the page's numbers are from those given. Raises WrongError where too far."""
    shape = case.shape
    if case.program == BERTVIZ:
        errors = embedded_errors(shape, path)
    else:
        # The first head of the first layer, one in the middle, the last of the last.
        last = (shape.layers - 1, shape.heads - 1)
        heads = [(0, 0), (last[0] // 2, last[1] // 2), last]
        places = [(i, j, layer(shape, i)[j]) for i, j in heads]
        errors = decoded_errors(path, playwright, limit, places)
    return {"max_error": max(errors), "compared": len(errors)}


def layer(shape: Shape, number: int) -> Numbers:
    """The given weights of a layer, (head, query, key)."""
    weights: Numbers = trace_of(shape).attentions[number][0].double().numpy()
    return weights


def decoded_errors(
    path: Path, playwright: Playwright, limit: float, places: Sequence[tuple[int, int, Numbers]]
) -> list[float]:
    """Of what the modules of the page decode from its file."""
    errors = []
    with visiting(playwright, limit) as visit:
        visit.page.context.set_offline(False)
        visit.page.route("**", source(path))
        visit.page.goto(ORIGIN)
        for number, head, wanted in places:
            text = visit.page.evaluate(DECODE, [number, head])
            found = np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)
            errors.append(compared(found, wanted, f"decoded weights of {number}-{head}"))
    return errors


def source(path: Path) -> Callable[[Route], Any]:
    """Answers with the page, or with a module of it."""

    def answered(route: Route) -> None:
        name = route.request.url.removeprefix(ORIGIN)
        if not name:
            route.fulfill(body="<!doctype html>", content_type="text/html")
        elif name == "page.html":
            route.fulfill(path=path, content_type="text/plain; charset=utf-8")
        else:
            route.fulfill(path=STATIC / name, content_type="text/javascript")

    return answered


def embedded_errors(shape: Shape, path: Path) -> list[float]:
    """Of the JSON in BertViz' page, layer by layer."""
    text = path.read_text(encoding="utf-8")
    begin = text.index('"attn": [') + len('"attn": ')
    end = text.index(', "left_text"', begin)
    # A layer ends with three brackets; the rest of them is not a number.
    layers = text[begin + 1 : end - 1].split("]]], [[[")
    del text
    if len(layers) != shape.layers:
        raise WrongError(f"the page has {len(layers)} layers, expected {shape.layers}")
    plain = str.maketrans("", "", "[] ")
    errors = []
    for number, one in enumerate(layers):
        found = np.fromstring(one.translate(plain), sep=",", dtype=np.float64)
        errors.append(compared(found, layer(shape, number), f"weights of layer {number}"))
    return errors
