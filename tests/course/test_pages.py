"""What is made of the pages of the course is up to date; test_documents.py runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.course import BLOCK, COURSE, PAGES, UNITS, minutes_of, outputs
from scripts.course_handouts import handout_of
from scripts.course_notebooks import FIRST_CELL, code_cells, notebook_of
from scripts.course_slides import slides_of
from tests.test_links import anchors_of, links_of, slug_of

REPOSITORY = COURSE.parents[1]
SYLLABUS = COURSE / "syllabus.md"
ROWS = 47


@pytest.mark.parametrize("page", UNITS, ids=lambda page: page.stem)
def test_notebook_and_slides_are_those_of_the_page(page):
    text = page.read_text(encoding="utf-8")
    notebook = (COURSE / "notebooks" / f"{page.stem}.ipynb").read_text(encoding="utf-8")
    assert notebook == notebook_of(text, COURSE)
    slides = (COURSE / "slides" / f"{page.stem}.html").read_text(encoding="utf-8")
    assert slides == slides_of(text, COURSE)
    handout = (COURSE / "handouts" / f"{page.stem}.html").read_text(encoding="utf-8")
    assert handout == handout_of(text, COURSE)
    # No question is left out, and no answer stands on the sheet.
    assert handout.count('<div class="ask">') == text.count("](solutions.md#")
    assert "solutions.md" not in handout
    # Its code is that of the page, which test_documents.py runs; nothing was computed before.
    cells = [cell for cell in code_cells(notebook) if cell.strip() and not cell.startswith("#")]
    blocks = [match["code"] for match in BLOCK.finditer(text)]
    assert [cell.strip() for cell in cells] == [code.strip() for code in blocks]
    assert all(not cell.get("outputs") for cell in json.loads(notebook)["cells"])
    said = re.match(
        r"# .+\n\n\*\*(\d+) minutes\.\*\* You need: .+ Afterwards you can: .+\.\n", text
    )
    assert said, f"{page.name} says no minutes, needs or aims"
    assert int(said[1]) == minutes_of(text)
    listed = (COURSE / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {page.stem[0]} [^|]+\| {said[1]} \|", listed, re.MULTILINE)


def test_minutes_are_counted_from_words_code_and_exercises():
    words = " ".join(["word"] * 1500)
    assert minutes_of(words) == 10
    asked = "".join(f"[Solution](solutions.md#1-{n})\n" for n in range(5))
    assert minutes_of(f"{words}\n{asked}") == 25
    code = "```python\n" + "x = 1\n" * 40 + "```\n"
    assert minutes_of(f"{words}\n{code}") == 20


def test_the_notebooks_first_cell_says_what_to_do_where_there_is_no_minibert(tmp_path):
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # Nothing is fetched, and what is installed here does not count.
    alone |= {"PIP_NO_INDEX": "1", "PIP_TARGET": str(tmp_path / "packages")}
    # -S: without the site packages, as on a fresh machine.
    command = [sys.executable, "-S", "-c", FIRST_CELL]
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Put the wheel of minibert-attention beside this notebook." in done.stderr


def section(page: Path, anchor: str) -> str:
    """The text below a heading, up to the next one of its level."""
    parts = re.split(r"^(#+) (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found, level = "", ""
    for marks, heading, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if level and len(marks) <= len(level):
            break
        if not level and slug_of(heading) == anchor:
            level = marks
        found += body if level else ""
    return found


def test_slides_link_to_what_exists():
    for page in (COURSE / "slides").glob("*.html"):
        for target in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve()
            assert found.exists(), target
            assert not anchor or anchor in anchors_of(found), target


def rows() -> list[list[str]]:
    """The rows of the syllabus that are items."""
    lines = [line for line in SYLLABUS.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    cells = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines]
    return [row for row in cells[1:] if not row[0].startswith("**")]


def test_the_syllabus_has_every_item_and_each_is_linked_or_says_why_not():
    assert len(rows()) == ROWS
    assert len({row[0] for row in rows()}) == ROWS
    for item, *cells in rows():
        assert len(cells) == 3, item
        for cell in cells:
            linked = re.fullmatch(r"\[.+\]\((\S+)\)", cell)
            assert linked or (cell.startswith("No: ") and len(cell) > 24), f"{item}: {cell}"


def test_what_runs_in_the_syllabus_has_code_that_a_test_runs():
    run = {*PAGES, REPOSITORY / "docs" / "bertviz.md"}
    for item, runs, *_ in rows():
        for target in re.findall(r"\]\(([^)\s]+)\)", runs):
            path, _, anchor = target.partition("#")
            page = (COURSE / path).resolve()
            assert page in run, item
            text = section(page, anchor) if anchor else page.read_text(encoding="utf-8")
            assert re.search(r"```(python|sh)", text), f"{item}: no code at {target}"


def test_every_term_of_the_glossary_is_linked_from_a_unit_and_they_are_in_order():
    glossary = COURSE / "glossary.md"
    heads = re.findall(r"^## (.+)$", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads == sorted(heads, key=str.lower)
    targets = [target.partition("#") for page in UNITS for target in links_of(page)]
    linked = {anchor for name, _, anchor in targets if Path(name).stem == "glossary"}
    assert set(map(slug_of, heads)) == linked


@pytest.mark.network
def test_the_blocks_that_need_a_network_run():
    for page in UNITS:
        text = page.read_text(encoding="utf-8")
        for code in re.findall(r"```python network\n(.*?)```", text, re.DOTALL):
            list(outputs([code]))
