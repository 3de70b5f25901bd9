"""The pages of docs/extend: each change, made in a scratch copy, does what its page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import REPOSITORY, copy_tree

PAGES = sorted((REPOSITORY / "docs" / "extend").glob("*.md"))
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_its_change_works(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    change = page.with_suffix(".diff")
    scratch = tmp_path / "scratch"
    copy_tree(scratch, "tests", "docs", "benchmarks", "examples")
    subprocess.run(["git", "apply", change], cwd=scratch, check=True)
    added = {
        line[1:] for line in change.read_text(encoding="utf-8").splitlines() if line[:1] == "+"
    }
    blocks = BLOCK.findall(text)
    *parts, (_, code), (language, printed) = blocks
    assert language == "text"
    shown = [line for _, part in parts for line in part.splitlines()]
    assert shown, "the page shows nothing of its change"
    assert [line for line in shown if line not in added] == []
    settings = os.environ | {"PYTHONPATH": str(scratch)}
    settings.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=scratch, env=settings, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == printed, done.stderr
