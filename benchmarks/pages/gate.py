"""Right first: the numbers of a page are those that were given, within 4e-3.

minibert's are read by the page's own decoder from the page's file, three whole heads, and those
that the page writes beside its tokens from the screen, of one token. BertViz' are read from the
JSON in its page, all of them.
"""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page, Playwright, Route

from benchmarks.pages import given
from benchmarks.pages.browser import visiting
from benchmarks.pages.plan import BERTVIZ, THUMBNAILS, Case, Shape
from benchmarks.pages.views import Screen
from benchmarks.session import REPOSITORY
from minibert.bench.gate import WrongError, within
from minibert.bench.result_rows import Row

TOLERANCE = 4e-3
Numbers = npt.NDArray[np.float64]

STATIC = REPOSITORY / "viz" / "static"
# A place that is nowhere: all of it is answered here.
ORIGIN = "https://page.invalid/"
DECODE = """async ([layer, head]) => {
  const { blocksOfText } = await import("./core/data/base64.js");
  const { Example } = await import("./core/data/example.js");
  const { fromBase85, inflate } = await import("./core/data/packed.js");
  const text = await (await fetch("./page.html")).text();
  const file = new DOMParser().parseFromString(text, "text/html");
  const read = (name) => file.getElementById(name).textContent;
  const header = await inflate(fromBase85(read("header"))).json();
  const example = new Example(header.examples[0], blocksOfText(async (name) => read(name)), 0);
  const weights = head === null
    ? Float32Array.from((await example.thumbnails()).codes, (code) => (code / 255) ** 2)
    : await example.head(layer, head);
  const bytes = new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength);
  let written = "";
  for (let i = 0; i < bytes.length; i += 8192) {
    written += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(written);
}"""
WRITTEN = """[...document.querySelectorAll(".key .token > .weight")]
  .map((weight) => [Number(weight.parentElement.dataset.index), Number(weight.value)])"""


def compared(found: Numbers, wanted: Numbers, what: str) -> float:
    """The largest difference. Raises WrongError above 4e-3, for other sizes, and for NaN."""
    if found.size != wanted.size or not found.size:
        raise WrongError(f"{what}: {found.size} numbers, expected {wanted.size}")
    error = float(np.abs(found.reshape(wanted.shape) - wanted).max())
    return within(what, error, TOLERANCE)


def checked(case: Case, path: Path, playwright: Playwright, limit: float) -> Row:
    """How far the page's numbers are from those given. Raises WrongError where too far."""
    if case.program == BERTVIZ:
        errors = embedded_errors(case.shape, path)
    elif case.holds == THUMBNAILS:
        wanted = np.stack([pooled(layer(case.shape, i)) for i in range(case.shape.layers)])
        errors = decoded_errors(path, playwright, limit, [(None, None, wanted)])
    else:
        heads = sample(case.shape)
        places = [(i, j, layer(case.shape, i)[j]) for i, j in heads]
        errors = decoded_errors(path, playwright, limit, places)
        errors.append(written_error(path, playwright, limit, places[-1]))
    return {"max_error": max(errors), "compared": len(errors)}


def layer(shape: Shape, number: int) -> Numbers:
    """The given weights of a layer, (head, query, key)."""
    weights: Numbers = given.probs(shape, number).double().numpy()
    return weights


def sample(shape: Shape) -> list[tuple[int, int]]:
    """Three heads: the first of the first layer, one in the middle, the last of the last."""
    last = (shape.layers - 1, shape.heads - 1)
    return [(0, 0), (last[0] // 2, last[1] // 2), last]


def pooled(weights: Numbers, size: int = 64) -> Numbers:
    """The largest weight of each of `size` x `size` blocks of a head."""
    for axis in (-2, -1):
        starts = np.arange(size) * weights.shape[axis] // size
        weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights


def decoded_errors(
    path: Path,
    playwright: Playwright,
    limit: float,
    places: Sequence[tuple[int | None, int | None, Numbers]],
) -> list[float]:
    """Of what the modules of the page decode from its file."""
    with visiting(playwright, {}, limit) as visit:
        page = visit.page
        page.route(f"{ORIGIN}**", source(path))
        page.goto(ORIGIN)
        errors = []
        for number, head, wanted in places:
            text = page.evaluate(DECODE, [number, head])
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


def written_error(
    path: Path, playwright: Playwright, limit: float, place: tuple[int, int, Numbers]
) -> float:
    """Of what the head view writes beside the tokens that a token looks at."""
    number, head, wanted = place
    query = (number + head) % len(wanted)
    address = f"view=head&layer={number}&heads={head}&query={query}"
    with visiting(playwright, None, limit) as visit:
        visit.open(path, Screen((".upper[data-drawn]", ".key .token > .weight"), address))
        shown = written(visit.page)
    values, right = np.array(list(shown.values())), wanted[query, list(shown)]
    return compared(values, right, f"written weights of {number}-{head}")


def written(page: Page) -> dict[int, float]:
    """The weights on screen by token."""
    return {int(place): float(value) for place, value in page.evaluate(WRITTEN)}


def embedded_errors(shape: Shape, path: Path) -> list[float]:
    """Of the JSON in BertViz' page, layer by layer."""
    text = path.read_text(encoding="utf-8")
    begin = text.index('"attn": [') + len('"attn": ')
    end = text.index(', "left_text"', begin)
    # A layer ends with three brackets; the rest of them is no number.
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
