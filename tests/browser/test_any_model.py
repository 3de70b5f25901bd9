"""A page that is given a folder: what cannot be run is said as text, and the next folder runs."""

import base64
import re
import shutil
from pathlib import Path

import pytest
from browser.conftest import BROWSER
from browser.head_view import Open
from browser.live_pages import cell, check_bars, field, probs_of, settled
from live.folders import HOSTILE, drawn_folder
from playwright.sync_api import Page, expect

import minibert
from minibert.trace.edit import zero
from minibert.viz.any_model import any_page

DROP = """(files) => {
  const data = new DataTransfer();
  for (const [name, bytes] of files) {
    data.items.add(new File([Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0))], name));
  }
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""


def chosen(page: Page, folder: Path) -> None:
    """By the button, as with a keyboard; Firefox lets a test choose the files and no folder."""
    field = page.locator("input[type=file]")
    if BROWSER == "chromium":
        field.set_input_files(folder)
    else:
        field.evaluate("(one) => Object.assign(one, { webkitdirectory: false, multiple: true })")
        field.set_input_files([*folder.iterdir()])


def files_dropped(page: Page, folder: Path) -> None:
    """The files of the folder, by a made event."""
    files = [(one.name, base64.b64encode(one.read_bytes()).decode()) for one in folder.iterdir()]
    page.evaluate(DROP, files)


def folder_dropped(page: Page, folder: Path) -> None:
    """The folder itself, from outside of the browser."""
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 100, "y": 300, "data": data})


WAYS = {chosen: 360, files_dropped: 1280, folder_dropped: 1280}


@pytest.mark.parametrize("give", WAYS)
def test_a_folder_runs_after_all_that_are_refused(open_page: Open, tmp_path: Path, give) -> None:
    """Each damage is given in one of the ways; all of them in tests/live."""
    width, turn = WAYS[give], list(WAYS).index(give)
    if give is folder_dropped and BROWSER != "chromium":
        pytest.skip("only Chromium lets a test drop a folder")
    page = open_page(
        any_page().html, viewport={"width": width, "height": 720}, ready=".drop button"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    good = tmp_path / "good"
    drawn_folder("gpt2", good, 0, "LMHeadModel")
    for number, (damage, message) in enumerate([*HOSTILE.values()][turn::3]):
        bad = tmp_path / f"bad-{number}"
        shutil.copytree(good, bad)
        damage(bad)
        give(page, bad)
        said = page.get_by_role("status")
        expect(said).to_contain_text(re.compile(f"^This folder cannot be run: .*(?:{message})"))
        assert page.title() != "run"
        page.evaluate("document.querySelector('.drop-said').textContent = ''")
    give(page, good)
    page.wait_for_selector("[data-drawn]")
    field(page).fill("The horse was")
    model = minibert.load(good)
    trace = model.trace("The horse was")
    last = trace.tokens.lengths[0] - 1
    check_bars(settled(page), "before", probs_of(trace, last))
    cell(page, 0, 1).click()
    edited = model.trace("The horse was", edit={("z", 0, 1): zero})
    check_bars(settled(page), "after", probs_of(edited, last))
