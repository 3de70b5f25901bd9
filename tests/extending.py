"""Follows a page of docs/extend in a scratch copy of the source tree."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import REPOSITORY, copy_tree

EXTEND = REPOSITORY / "docs" / "extend"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def follow(page: Path, scratch: Path) -> None:
    """Make the change of a page; fail unless it shows the change and prints what it says."""
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    change = page.with_suffix(".diff")
    copy_tree(scratch, "tests", "docs", "benchmarks", "examples")
    subprocess.run(["git", "apply", change], cwd=scratch, check=True)
    changed = change.read_text(encoding="utf-8")
    added = {line[1:] for line in changed.splitlines() if line.startswith("+")}
    *parts, (_, code), (language, printed) = _BLOCK.findall(text)
    assert language == "text"
    shown = [line for _, part in parts for line in part.splitlines()]
    assert shown, "the page shows nothing of its change"
    assert [line for line in shown if line not in added] == []
    if "viz/static" in changed:
        _build_pages(scratch / "viz")
    settings = os.environ | {"PYTHONPATH": str(scratch)}
    # Only the page's own settings: kernels are not interpreted for its reader.
    settings.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=scratch, env=settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == printed, done.stderr


def _build_pages(viz: Path) -> None:
    modules = REPOSITORY / "viz" / "node_modules"
    if not modules.exists():
        pytest.skip("the pages' code cannot be built: no viz/node_modules")
    (viz / "node_modules").symlink_to(modules, target_is_directory=True)
    for task in ("types", "build"):
        subprocess.run(["npm", "run", "--silent", task], cwd=viz, check=True)
