"""A page that is given a folder: what cannot be run is said as text, and the next folder runs."""

import json
import struct
from pathlib import Path

import pytest
from browser.head_view import Open
from browser.live_pages import cell, check_bars, field, probs_of, settled
from live.folders import drawn_folder
from playwright.sync_api import expect

import minibert
from minibert.trace.edit import zero
from minibert.viz.any_model import any_page

SCRIPT = "<img src=x onerror=document.title='run'>"


def hostile(folder: Path) -> None:
    """A name of a tensor is a script."""
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header[SCRIPT] = header.pop("transformer.wte.weight")
    written = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])


@pytest.mark.parametrize("width", [1280, 360])
def test_a_folder_runs_after_one_that_is_refused(
    open_page: Open, tmp_path: Path, width: int
) -> None:
    page = open_page(
        any_page().html, viewport={"width": width, "height": 720}, ready=".drop button"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        drawn_folder("gpt2", folder, 0, "LMHeadModel")
    hostile(bad)
    page.set_input_files("input[type=file]", bad)
    said = page.get_by_role("status")
    expect(said).to_contain_text(SCRIPT)
    assert page.title() != "run"
    page.set_input_files("input[type=file]", good)
    page.wait_for_selector("[data-drawn]")
    field(page).fill("The horse was")
    model = minibert.load(good)
    trace = model.trace("The horse was")
    last = trace.tokens.lengths[0] - 1
    check_bars(settled(page), "before", probs_of(trace, last))
    cell(page, 0, 1).click()
    edited = model.trace("The horse was", edit={("z", 0, 1): zero})
    check_bars(settled(page), "after", probs_of(edited, last))
