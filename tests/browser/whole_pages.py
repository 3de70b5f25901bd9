"""The picture of the whole, and the numbers worked out, as tests meet them."""

import pytest
from browser.live_pages import settled
from playwright.sync_api import Page

__all__ = ["asked", "boxes", "shown", "total", "worked"]


def asked(page: Page) -> dict[str, str]:
    """What the address says of the picture."""
    settled(page)
    found = page.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
    return {name: value for name, value in found if name != "text"}


def boxes(page: Page) -> list[str]:
    """The parts of the open layer in the order of the data."""
    found = page.locator(".whole-inside .whole-box").evaluate_all(
        "(all) => all.map((box) => box.dataset.box)"
    )
    return list(found)


def shown(page: Page, box: str) -> str:
    return page.locator(f'.whole-box[data-box="{box}"] .whole-fact').inner_text()


def worked(page: Page) -> float:
    return float(page.locator("data[data-name=answer]:visible").get_attribute("value") or "nan")


def total(page: Page, step: str) -> float:
    """The sum below the rows of a step, after a look at the rows: they add up to it."""
    found = page.locator(f"[data-step={step}]:visible")
    rows = found.locator("tbody tr td:nth-last-child(2)").evaluate_all(
        "(all) => all.map((one) => +one.dataset.value)"
    )
    value = float(found.locator("tfoot td[data-value]").get_attribute("data-value") or "nan")
    assert sum(rows) == pytest.approx(value, abs=1e-6)
    return value
