"""What tests of pages share: random attention, hostile text, and what a file holds, read back."""

import base64
import json
import re
import zlib
from typing import Any

import numpy as np

from minibert.viz import Page

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"'`${window.pwned=1}",
    "\u202egnp.exe",
    "👩‍👩‍👧",
    "a\x00b",
    "\ud800",
    "<!--",
    "{{script}}",
    "x" * 10_000,
)


def softmax(shape: tuple[int, ...], *, causal: bool = False, seed: int = 0) -> np.ndarray:
    """Random attention: rows add up to one."""
    scores = np.random.default_rng(seed).normal(0, 2, shape)
    if causal:
        scores = np.where(np.tril(np.ones(shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def names(n: int) -> list[str]:
    return [f"t{i}" for i in range(n)]


def undigited(digits: str) -> bytes:
    """The bytes of a page's digits: those of RFC 1924 but for four."""
    return base64.b85decode(digits.translate(str.maketrans(",:./", "<>&`")))


def unpacked_text(packed: str) -> str:
    """What `document.packed_text` packed, unpacked."""
    return zlib.decompress(undigited(packed)).decode()


def code_of(html: str) -> tuple[str, str]:
    """Style and script of a page."""
    style, script = packed_in(html, "code").split("\0")
    return style, script


def packed_in(html: str, id: str) -> str:
    """A packed text of a page, unpacked."""
    found = re.search(rf'<script type="application/octet-stream" id="{id}">(.*?)</script>', html)
    assert found
    return unpacked_text(found[1])


def header_of(page: Page) -> dict[str, Any]:
    """The whole header as it stands in the file."""
    return json.loads(packed_in(page.html, "header"))


def example_of(page: Page, index: int = 0) -> dict[str, Any]:
    return header_of(page)["examples"][index]


def arrays(page: Page, quantity: str, index: int = 0) -> list[dict[str, Any]]:
    return [one for one in example_of(page, index)["arrays"] if one["quantity"] == quantity]


def unpacked(
    page: Page, quantity: str, layer: int | None, head: int | None = None, index: int = 0
) -> np.ndarray:
    """What the page holds, unpacked by the description in its header alone."""
    entry = next(
        entry
        for entry in arrays(page, quantity, index)
        if (entry["layer"], entry["head"]) == (layer, head)
    )
    pattern = rf'<script type="application/octet-stream" id="{entry["block"]}">([^<>&]*)</script>'
    found = re.search(pattern, page.html)
    assert found
    data = undigited(found[1])
    data = zlib.decompress(data) if entry["packing"] == "deflate" else data
    if entry["coding"].endswith("bits"):
        width = int(entry["coding"][0])
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(-1, width)
        # Two's complement: the highest bit counts below zero.
        parts = bits @ np.array([*(2 ** np.arange(width - 1)), -(2 ** (width - 1))])
        return (parts[: int(np.prod(entry["shape"]))].reshape(entry["shape"]) + 0.5) / 2**width
    if entry["coding"] == "steps":
        return steps_read(data, entry["shape"])
    cells = np.frombuffer(data, np.dtype(entry["dtype"]).newbyteorder("<"))
    numbers = np.zeros(entry["shape"], cells.dtype)
    if entry["triangle"]:
        where = np.tri(*entry["shape"][-2:], dtype=bool)
        numbers[:, where] = cells.reshape(len(numbers), -1)
    else:
        numbers = cells.reshape(entry["shape"])
    return (numbers / 255.0) ** 2 if entry["coding"] == "sqrt" else numbers


def steps_read(data: bytes, shape: list[int]) -> np.ndarray:
    """Numbers of codes and steps."""
    n_steps = int(np.prod(shape[:-1]))
    steps = np.frombuffer(data[: 2 * n_steps], "<f2").astype(np.float32)
    codes = np.frombuffer(data[2 * n_steps :], np.int8)
    return codes.reshape(shape) * steps.reshape(shape[:-1])[..., None]


def held(page: Any, name: str, layer: int, head: int, index: int = 0) -> np.ndarray:
    """query, key or value that a head reads, in double precision, as the page's entries say."""
    example = example_of(page, index)
    sizes, heads = example["sizes"], example["heads"]
    shared = sizes["n_heads"] // sizes.get("n_kv_heads", sizes["n_heads"])
    if name != "query":
        head, heads = head // shared, sorted({other // shared for other in heads})
    entries = {one["head"]: one for one in arrays(page, name, index) if one["layer"] == layer}
    if head in entries:
        return unpacked(page, name, layer, head, index).astype(np.float64)
    place = heads.index(head)
    numbers = unpacked(page, name, layer, index=index)[place].astype(np.float64)
    rests = {
        one["head"]: one for one in arrays(page, f"{name} rest", index) if one["layer"] == layer
    }
    if head not in rests:
        return numbers
    rest = unpacked(page, f"{name} rest", layer, head, index)
    if entries[None]["coding"] == "steps":
        return numbers + rest * (np.abs(numbers).max(-1, keepdims=True) / 100)
    exponents = np.maximum(np.frexp(numbers)[1] - 1, -14)
    return numbers + rest * 2.0 ** (exponents - 18)


def weights(page: Any, layer: int, head: int, index: int = 0) -> np.ndarray:
    """The softmax of what the page holds, after the cap and the mask that it names."""
    example = example_of(page, index)
    place = example["layers"].index(layer)
    scores = held(page, "query", layer, head, index) @ held(page, "key", layer, head, index).T
    scores *= example["scale"][place]
    if cap := example.get("soft_cap"):
        scores = cap * np.tanh(scores / cap)
    distance = np.subtract.outer(np.arange(len(scores)), np.arange(len(scores)))
    before, after = example.get("windows", {place: None})[place] or (len(scores), len(scores))
    seen = (distance <= before) & (distance >= (0 if example["causal"] else -after))
    exps = np.where(
        seen, np.exp(scores - scores.max(-1, keepdims=True, where=seen, initial=-np.inf)), 0
    )
    return exps / exps.sum(-1, keepdims=True)
