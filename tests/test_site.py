"""What the site of docs/ holds; the fixture `site` builds it strictly and without a network.

tests/browser/test_site.py reads it in a browser. Needs the extra `docs`; `make docs` builds the
same site into build/site.
"""

import importlib
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.packages import REPOSITORY

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

SETTINGS = REPOSITORY / "mkdocs.yml"
# What the reference lacks: griffe does not follow kernels/, a link to a folder without __init__.py.
UNREACHED = {"minibert.attend", "minibert.implementations", "minibert.register"}
# Bytes of a page before the live page is opened: HTML, style, script and pictures in sight.
MOST_BYTES = 100_000


class Parsed(HTMLParser):
    """The links and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name"):
                self.ids.add(value or "")
            if (tag, name) in {("link", "href"), ("script", "src")} and "data:" not in (
                value or ""
            ):
                self.parts.append(value or "")
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")


@cache
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_page_of_docs_stands_in_the_navigation(site):
    written = {
        page.relative_to(REPOSITORY / "docs").with_suffix(".html").as_posix()
        for page in (REPOSITORY / "docs").rglob("*.md")
    }
    written = {re.sub(r"README\.html$", "index.html", name) for name in written}
    assert (
        written - {unquote(link.partition("#")[0]) for link in parsed(site / "index.html").links}
        == set()
    )


def reference_modules() -> list[str]:
    """The modules that the reference is made of."""
    listed = re.search(
        r"^  reference:\n((?:    - \S+\n)+)", SETTINGS.read_text(encoding="utf-8"), re.M
    )
    assert listed
    return re.findall(r"- (\S+)", listed[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", reference_modules())
def test_the_reference_has_every_public_name_with_its_docstring(site, name):
    module = importlib.import_module(name)
    page = site / "reference" / f"{name}.html"
    text = page.read_text(encoding="utf-8")
    ids = parsed(page).ids
    # A function named like its module stands there under both names.
    both = {one.rpartition(".")[0] for one in ids if len({*one.split(".")[-2:]}) == 1}
    missing = {f"{name}.{member}" for member in module.__all__} - ids - both
    assert missing <= UNREACHED
    assert text.count('class="doc doc-contents') > len(module.__all__)
    assert "<blockquote>" not in text, "an example is shown as a quotation"


@pytest.mark.slow
def test_a_page_is_small_and_all_of_it_lies_beside_it(site):
    made = [site / f"{name}{end}.html" for name in ("live", "story") for end in ("", ".de")]
    pages = [
        one
        for one in site.rglob("*.html")
        if one not in made and not {"slides", "handouts"} & {*one.parts}
    ]
    assert all(one.stat().st_size > 1_000_000 for one in made)
    for page in pages:
        parts = [page.parent / one for one in parsed(page).parts]
        assert len(parts) == 2, page
        size = sum(one.stat().st_size for one in (page, *parts))
        if page == site / "index.html":
            size += (site / "live.png").stat().st_size
        # A page of the reference holds every docstring of its module.
        assert size <= MOST_BYTES or page.parent.name == "reference", (page, size)


@pytest.mark.slow
def test_404_leads_to_the_site_in_whatever_folder_it_lies(site):
    links = parsed(site / "404.html").links
    assert len(links) > 70
    for link in links:
        assert link.startswith("#") or (site / unquote(link)).exists(), link


@pytest.mark.slow
def test_every_unit_links_its_notebook_slides_and_handout(site):
    units = sorted((site / "course").glob("[0-9]_*.html"))
    assert len(units) == len(list((REPOSITORY / "docs" / "course").glob("[0-9]_*.md"))) > 8
    for unit in units:
        sheets = [f"{folder}/{unit.stem}.html" for folder in ("slides", "handouts")]
        for link in (f"notebooks/{unit.stem}.ipynb", *sheets):
            assert link in parsed(unit).links
            assert (unit.parent / link).exists()


@pytest.mark.slow
def test_the_reference_begins_with_load(site):
    names = re.findall(
        r'id="minibert\.(\w+)"', (site / "reference/minibert.html").read_text("utf-8")
    )
    assert names[0] == "load"
