"""The lessons in docs/ print what they say, and the code of the other pages runs."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.data import ROOT, data_path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [
    *sorted((DOCS / "lessons").glob("*.md")),
    DOCS / "pictures.md",
    DOCS / "transformer_lens.md",
]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_prints_what_it_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    if "MINIBERT_TEST_DATA" in text:
        # Skips where the model that the lesson is about is not there.
        data_path("models", "minigpt-nano-sort")
        monkeypatch.setenv("MINIBERT_TEST_DATA", str(ROOT))
    blocks = BLOCK.findall(text)
    assert blocks
    names: dict[str, object] = {}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, path.name, "exec"), names)
        assert printed.getvalue() == expected, f"{path.name}:\n{code}"


def test_the_screenshots_are_those_that_are_shown_and_small() -> None:
    shown = re.findall(r"pictures/[\w-]+\.png", (DOCS / "pictures.md").read_text(encoding="utf-8"))
    made = list((DOCS / "pictures").iterdir())
    assert sorted(shown) == sorted(f"pictures/{path.name}" for path in made)
    assert sum(path.stat().st_size for path in made) < 2.5e6
