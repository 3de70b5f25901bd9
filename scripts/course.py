"""Makes everything in docs/course that follows from its pages and from the models.

    python -m scripts.course                 all of it
    python -m scripts.course slides          what is named of pictures, outputs, notebooks,
                                             slides, handouts
    python -m scripts.course docs/why.md     what the Python blocks of these pages print, below them

Notebooks, slides and handouts are the pages again. Run it after a change of a page or of a model.
The blocks of a page run one after the other in one namespace; blocks of other languages, and of
Python with a word behind it, stay as they are. The pictures that course_pictures.py does not draw
were drawn from numbers of tiny-bert.
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

from scripts.course_handouts import handout_of
from scripts.course_notebooks import notebook_of
from scripts.course_pictures import PICTURES
from scripts.course_slides import slides_of

COURSE = Path(__file__).resolve().parents[1] / "docs" / "course"
UNITS = sorted(COURSE.glob("[0-9]_*.md"))
GERMAN = sorted(COURSE.glob("de/[0-9]_*.md"))
PAGES = [*UNITS, *GERMAN, COURSE / "README.md", COURSE / "solutions.md"]
# How a reader of a unit is counted: words a minute, also those that code prints; seconds for a line
# of code, for an exercise and for a function to write.
WORDS, LINE, EXERCISE, FUNCTION = 150, 15, 180, 480
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```(?P<below>\n\n```text\n(?P<printed>.*?)```)?", re.DOTALL
)


def minutes_of(page: str) -> int:
    """How long a reader takes for a unit, to the next five minutes; counted, not measured."""
    code = "".join(re.findall(r"^```python.*\n((?:(?!```)[\s\S])*)```", page, re.MULTILINE))
    rest = re.sub(r"^```python.*\n(?:(?!```)[\s\S])*```|\]\([^)]*\)", "", page, flags=re.MULTILINE)
    words = len(re.findall(r"\w[\w'’-]*", rest))
    functions = len(re.findall(r"^(?:Write|Schreibe) \w+\(", page, re.MULTILINE))
    exercises = len(re.findall(r"\]\(\S*solutions\.md#", page)) - functions
    seconds = 60 * words / WORDS + LINE * len(code.splitlines())
    seconds += EXERCISE * exercises + FUNCTION * functions
    return max(5, 5 * round(seconds / 300))


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
    if "handouts" in wanted:
        for page in [*UNITS, COURSE / "solutions.md"]:
            text = page.read_text(encoding="utf-8")
            write(COURSE / "handouts" / f"{page.stem}.html", handout_of(text, COURSE))
        for page in GERMAN:
            sheet = handout_of(page.read_text(encoding="utf-8"), page.parent, "de")
            write(COURSE / "handouts" / f"{page.stem}.html", sheet)


if __name__ == "__main__":
    main(sys.argv[1:] or ["pictures", "outputs", "notebooks", "slides", "handouts"])
