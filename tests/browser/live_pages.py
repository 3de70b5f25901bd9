"""The live page as tests meet it: fields, cells, bars, boxes, numbers, and the same in Python."""

from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page

TEXT = "The boys [MASK] very tired."
PLACE = 3
WORDS = "red horse blue door green tree red horse blue"
# Of an engine in single precision.
NEAR = 1e-4


def settled(page: Page) -> Page:
    """The page when it has answered all that it was asked, and written its address."""
    page.wait_for_timeout(30)
    page.wait_for_selector("#page[aria-busy=false]")
    page.wait_for_timeout(300)
    return page


def field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Text", exact=True)


def cell(page: Page, layer: int, head: int) -> Locator:
    return page.locator(f'.live-cell[data-layer="{layer}"][data-head="{head}"]')


def bars(page: Page, of: str) -> dict[int, float]:
    """The probabilities in the bars, by token id; a full track is 100 %."""
    found = page.locator(".live-bar[data-id]").evaluate_all(
        "(all, of) => all.map((bar) => [bar.dataset.id, "
        "bar.querySelector(`[data-of=${of}]`)?.value, "
        "bar.querySelector(`.live-fill.${of}`)?.style.width])",
        of,
    )
    for _, value, width in found:
        assert not value or float(width[:-1]) == pytest.approx(100 * float(value), abs=1e-3)
    return {int(token): float(value) for token, value, _ in found if value}


def probs_of(trace: Any, place: int) -> torch.Tensor:
    return trace.logits[0, place].softmax(-1)


def check_bars(page: Page, of: str, probs: torch.Tensor) -> None:
    """The bars are the model's probabilities, the five most probable tokens among them."""
    shown = bars(page, of)
    assert set(probs.topk(5).indices.tolist()) <= set(shown)
    for token, prob in shown.items():
        assert abs(prob - float(probs[token])) < NEAR


def asked(page: Page) -> dict[str, str]:
    """What the address says of the picture."""
    settled(page)
    found = page.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
    return {name: value for name, value in found if name != "text"}


def shown(page: Page, box: str) -> str:
    return page.locator(f'.whole-box[data-box="{box}"] .whole-fact').inner_text()


def worked(page: Page) -> float:
    return float(page.locator("data[data-name=answer]:visible").get_attribute("value") or "nan")
