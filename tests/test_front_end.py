"""The pages' own tests run by Node's runner, and what they are checked with is pinned."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FIRST_NODE = 20


def node() -> str:
    """The path of node; the test is skipped where there is none, or an older one."""
    found = shutil.which("node")
    if not found:
        pytest.skip("the pages' unit tests need node, which is not installed")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.lstrip("v").split(".")[0]) < FIRST_NODE:
        pytest.skip(
            f"the pages' unit tests need node {FIRST_NODE} or later, this is {said.strip()}"
        )
    return found


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((REPOSITORY / "viz" / name).read_text(encoding="utf-8")))


def test_the_units_of_the_pages_pass_their_own_tests() -> None:
    files = sorted((REPOSITORY / "tests" / "front_end").glob("*.test.js"))
    assert files
    done = subprocess.run(
        [node(), "--test", *files],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_what_checks_the_pages_is_pinned_to_the_digit() -> None:
    manifest = read("package.json")
    assert "dependencies" not in manifest
    versions = manifest["devDependencies"].values()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)


def test_the_lock_names_hashes_and_no_place_to_fetch_from() -> None:
    packages = {name: one for name, one in read("package-lock.json")["packages"].items() if name}
    assert not [name for name, one in packages.items() if "resolved" in one]
    assert not [name for name, one in packages.items() if "integrity" not in one]
