"""What people install is the wheel: it is whole, needs what it declares, and stands alone.

The wheel is built from the sdist, so both are complete.
"""

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import minibert
from tests.attention_pages import packed_in
from tests.packages import REPOSITORY, declared, environment, link, run

LINK = re.compile(r"\]\((?!#)([^)\s]+)\)")

LOAD_TRACE_RENDER = """
import html.parser, importlib.util, pathlib, sys
{before}
import minibert
from minibert.cli.main import main

home = pathlib.Path(minibert.__file__).resolve()
assert home.is_relative_to({home!r}), home
trace = minibert.load().trace("the rabbit quickly hopped", "the turtle slowly crawled")
rows = trace[0, 0].probs.sum(-1)
assert (rows - 1).abs().max() < 1e-5, rows
sys.argv = ["minibert", "view", "the rabbit quickly hopped", "-o", "page.html"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
page = pathlib.Path("page.html").read_text(encoding="utf-8")
assert len(page) > 10_000, page

class Outside(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        for name, address in attributes:
            assert name not in ("src", "href") or address.startswith(("data:", "#")), (tag, address)

Outside().feed(page)
"""


def shipped() -> dict[str, bytes]:
    """What the wheel must hold, by its path there, read from the repository."""
    found = {
        f"minibert/viz/{one}": REPOSITORY / "viz" / one for one in ("page.html", "stored.json")
    }
    found["minibert/py.typed"] = REPOSITORY / "minibert" / "py.typed"
    for folder, top, kind in (
        ("minibert", "minibert", "*.py"),
        ("minibert/kernels", "kernels", "*.py"),
        ("minibert/viz", "viz", "*.py"),
        ("minibert/embedded", "minibert/embedded", "*"),
        ("minibert/languages", "minibert/languages", "*.json"),
        ("minibert/viz/built", "viz/built", "*"),
    ):
        for path in (REPOSITORY / top).rglob(kind):
            if path.is_file() and "node_modules" not in path.parts:
                found[f"{folder}/{path.relative_to(REPOSITORY / top).as_posix()}"] = path
    return {name: path.read_bytes() for name, path in found.items()}


def test_the_wheel_holds_every_file_of_the_package_once_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" not in n]
        contents = {name: archive.read(name) for name in names}
    expected = shipped()
    assert sorted(names) == sorted(expected)
    assert [n for n in names if contents[n] != expected[n]] == []
    assert "minibert/embedded/tiny-bert/model.safetensors" in names


def test_the_metadata_says_what_the_project_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {n.rpartition("/")[2]: n for n in archive.namelist() if ".dist-info/" in n}
        metadata = archive.read(texts["METADATA"]).decode()
        entry_points = archive.read(texts["entry_points.txt"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "minibert = minibert.cli.main:main" in entry_points
    assert "LICENSE" in texts
    description = metadata.split("\n\n", 1)[1]
    assert "## Ten lines" in description
    assert [link for link in LINK.findall(description) if not link.startswith("https://")] == []


def test_the_sdist_builds_without_the_links_and_holds_no_environment(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = [m.name.split("/", 1)[1] for m in members if "/" in m.name]
    assert not [m.name for m in members if m.issym() or m.islnk()]
    assert not [n for n in names if n.startswith((".venv", "build/", "minibert/kernels"))]
    assert {"pyproject.toml", "LICENSE", "README.md", "CITATION.cff"} <= set(names)
    # What viz/built is made from.
    assert {"viz/build.js", "viz/package-lock.json", "viz/static/core/draw/dom.js"} <= set(names)


@pytest.mark.slow
def test_the_sdist_can_run_its_tests(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    (tree,) = tmp_path.iterdir()
    some = "tests/text/test_tokens.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", some]
    assert " passed" in run(command, where=tree, path=tree).stdout


def test_relative_links_of_the_description_become_addresses():
    described = runpy.run_path(str(REPOSITORY / "setup.py"))["described"]
    readme = "![A head](docs/head.png) [how](docs/how.md) [b](https://b.org) [c](#c)"
    home = "https://example.org/m"
    assert described(readme, home) == (
        f"![A head]({home}/raw/main/docs/head.png) [how]({home}/blob/main/docs/how.md) "
        "[b](https://b.org) [c](#c)"
    )
    assert described(readme, None) == " how [b](https://b.org) [c](#c)"


# Alone, beside transformers, and with the repository on the path: the folder kernels/ must not pass
# for Hugging Face's package of that name.
ABSENT = "assert importlib.util.find_spec('transformers') is None"
BESIDE = "from transformers import BertModel, GPT2LMHeadModel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside", "before", "path"),
    [
        ((), ABSENT, None),
        (("transformers",), BESIDE, None),
        (("transformers",), BESIDE, REPOSITORY),
    ],
)
def test_it_loads_and_renders_from_another_folder(python_beside, beside, before, path, tmp_path):
    python = python_beside(beside)
    home = str(path or python.parents[1])
    run(
        [python, "-c", LOAD_TRACE_RENDER.format(before=before, home=home)],
        where=tmp_path,
        path=path,
    )


def test_live_pages_and_saved_traces_are_written_without_torch(wheel, tmp_path):
    python = environment(tmp_path, wheel, needs=("typer",), options=("--no-deps",))
    for script in ("minibert", "minibert-attention"):
        done = run([python.with_name(script), "--help"], where=tmp_path)
        assert "view" in done.stdout
    command = [python, "-m", "minibert"]
    for options in ((), ("--model", "tiny-gpt2"), ("--story",), ("--any",)):
        run([*command, "live", *options, "-o", "page.html"], where=tmp_path)
        assert (tmp_path / "page.html").stat().st_size > 100_000
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    link(declared(("numpy", "safetensors")), packages)
    saved = minibert.load().trace("a horse", "ran").save(tmp_path / "a.safetensors")
    run([*command, "view", saved, "-o", "page.html"], where=tmp_path)
    assert "horse" in packed_in((tmp_path / "page.html").read_text(encoding="utf-8"), "header")
    done = subprocess.run([*command, "predict", "a"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: \w+ is not installed\. See docs/install.md#without-torch\n", done.stderr
    )
