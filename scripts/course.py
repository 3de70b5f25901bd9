"""Makes everything in docs/course that follows from its pages and from the models.

    python -m scripts.course                 all of it
    python -m scripts.course slides          of pictures, outputs, notebooks, slides what is named
    python -m scripts.course docs/why.md     what the Python blocks of these pages print, below them

Notebooks and slides are the pages again. Run it after a change of a page or of a model. The blocks
of a page run one after the other in one namespace; blocks of other languages, and of Python with a
word behind it, stay as they are. The pictures that course_pictures.py does not draw were drawn from
numbers of tiny-bert.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from scripts.course_notebooks import notebook_of
from scripts.course_pictures import PICTURES
from scripts.course_slides import slides_of

COURSE = Path(__file__).resolve().parents[1] / "docs" / "course"
UNITS = sorted(COURSE.glob("[0-9]_*.md"))
PAGES = [*UNITS, COURSE / "README.md", COURSE / "solutions.md"]
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```(?P<below>\n\n```text\n(?P<printed>.*?)```)?", re.DOTALL
)


def outputs(blocks: list[str]) -> Iterator[str]:
    """What each block prints, run in one namespace that begins empty."""
    names: dict[str, Any] = {}
    # As in a process of its own.
    torch.manual_seed(0)
    for code in blocks:
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            exec(compile(code, "block", "exec"), names)
        yield caught.getvalue()


def rewritten(page: str) -> str:
    """The page with what its blocks print now."""
    printed = outputs([match["code"] for match in BLOCK.finditer(page)])

    def block(match: re.Match[str]) -> str:
        text = next(printed)
        below = f"\n\n```text\n{text}```" if text else ""
        return f"```python\n{match['code']}```{below}"

    return BLOCK.sub(block, page)


def write(path: Path, text: str) -> None:
    """Write a file, and its name."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)


def write_outputs(pages: list[Path]) -> None:
    """Run the pages' blocks, whose files go to a folder that is taken away."""
    pages = [page.resolve() for page in pages]
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for page in pages:
            write(page, rewritten(page.read_text(encoding="utf-8")))


def main(wanted: list[str]) -> None:
    """Make what is wanted, in the order in which one needs the other."""
    named = [Path(one) for one in wanted if one.endswith(".md")]
    if "pictures" in wanted:
        for name, draw in PICTURES.items():
            write(COURSE / "pictures" / f"{name}.svg", draw())
    if named or "outputs" in wanted:
        write_outputs(named or PAGES)
    for page in UNITS:
        text = page.read_text(encoding="utf-8")
        if "notebooks" in wanted:
            write(COURSE / "notebooks" / f"{page.stem}.ipynb", notebook_of(text, COURSE))
        if "slides" in wanted:
            write(COURSE / "slides" / f"{page.stem}.html", slides_of(text, COURSE))


if __name__ == "__main__":
    main(sys.argv[1:] or ["pictures", "outputs", "notebooks", "slides"])
