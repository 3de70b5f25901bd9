"""Before minibert is installed: the pins, the search for a Python, a checkout without links."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minibert import errors
from tests.packages import PROJECT, REPOSITORY, copy_tree, environment, run

IMPORTS = """
import minibert, minibert.kernels.fused, minibert.viz.plots
from minibert.kernels import api
assert minibert.attend is api.attend
print(minibert.__file__)
"""
HIDES_ENSUREPIP = "import sys; sys.modules['ensurepip'] = None; exec(sys.argv[1])"
IS_OLD = "import sys; sys.version_info = (3, 9); exec(sys.argv[1])"


def pins(name: str) -> dict[str, set[str]]:
    """The pinned versions of each package in a list."""
    lines = (REPOSITORY / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, set[str]] = {}
    for pin in (Requirement(line) for line in lines if not line.startswith("#")):
        assert pin.url is None
        assert re.fullmatch(r"==[\w.!]+", str(pin.specifier))
        found.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier))
    return found


@pytest.mark.parametrize(("name", "extras"), [("runtime", ()), ("development", ("dev", "docs"))])
def test_every_dependency_is_pinned_and_no_address_is_named(name, extras):
    lines = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    wanted = {canonicalize_name(Requirement(line).name) for each in lines for line in each}
    assert wanted - set(pins(name)) == set(), "not pinned; run scripts/lock.sh"


def test_the_two_lists_differ_in_numpy_alone():
    runtime, development = pins("runtime"), pins("development")
    assert set(runtime) <= set(development)
    assert [name for name in runtime if not runtime[name] <= development[name]] == ["numpy"]


def test_every_extra_brings_something():
    assert all(PROJECT["optional-dependencies"].values())


def test_messages_and_pages_name_this_distribution():
    assert errors.how_to_install("plots") == f"pip install '{PROJECT['name']}[plots]'"
    files = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    for top in ("minibert", "kernels", "viz", "benchmarks", "docs"):
        files += [p for p in (REPOSITORY / top).rglob("*") if p.suffix in (".py", ".md")]
    other = re.compile(r"install\s+(-\S+\s+)*['\"]?minibert(?!-)\b")
    assert [p.name for p in files if other.search(p.read_text(encoding="utf-8"))] == []


def python_that(path: Path, program: str) -> Path:
    """A file that runs `program`, which gets what it was asked to run, in place of a Python."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$2"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_search_for_a_python_says_what_each_lacks(tmp_path):
    lacking = python_that(tmp_path / "lacking", HIDES_ENSUREPIP)
    old = python_that(tmp_path / "old", IS_OLD)
    find = REPOSITORY / "scripts" / "find_python.sh"
    command = [find, lacking, old, "no-such-python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"{lacking} has no module ensurepip" in done.stderr
    assert f"python{version}-venv" in done.stderr
    assert f"{old} is Python 3.9; minibert needs 3.11 to 3.14" in done.stderr
    assert run([find, lacking, sys.executable], where=tmp_path).stdout.strip() == sys.executable


@pytest.fixture(scope="module")
def without_links(tmp_path_factory):
    """The source tree as git leaves it where it cannot make symbolic links."""
    tree = tmp_path_factory.mktemp("links") / "tree"
    copy_tree(tree, "docs", "results")
    for name in ("kernels", "viz"):
        path = tree / "minibert" / name
        if path.is_symlink():
            target = os.readlink(path)
            path.unlink()
            path.write_text(target, encoding="utf-8")
    return tree


@pytest.mark.parametrize("editable", [True, False], ids=["editable", "copied"])
def test_a_source_tree_without_links_installs(without_links, tmp_path, editable):
    options = ["--no-build-isolation", "--no-deps", *(["-e"] if editable else [])]
    python = environment(tmp_path, without_links, beside=("setuptools",), options=options)
    done = run([python, "-c", IMPORTS], where=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(without_links if editable else tmp_path)
