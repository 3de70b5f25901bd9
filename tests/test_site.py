"""The site of docs/ is built without a network, and strictly: a wrong link or anchor is an error.

Needs the extra `docs`; `make docs` builds the same site into build/site.
"""

import importlib
import re
import subprocess
import sys
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
# A proxy where nobody listens: what wants the network fails.
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")


class Parsed(HTMLParser):
    """The links and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name"):
                self.ids.add(value or "")
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")


@cache
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built strictly and without a network."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"} | NO_NETWORK,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


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
