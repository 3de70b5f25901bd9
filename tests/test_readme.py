"""What README.md shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_readme_says() -> None:
    code, expected = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == expected


def test_every_file_and_link_of_the_readme_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    tree = README.split("## The tree")[1].split("```")[1]
    folder = ""
    named = []
    for line in tree.splitlines()[1:]:
        if line and not line.startswith(" "):
            folder = line.split()[0]
        elif folder in ("minibert/", "kernels/"):
            named += [f"{folder}{name}" for name in re.findall(r"\b[a-z_]+\.py\b", line)]
    assert links
    assert named
    assert [name for name in links + named if not (ROOT / name).exists()] == []
