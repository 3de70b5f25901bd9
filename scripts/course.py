"""Makes everything in docs/course that follows from its pages and from the models.

    python -m scripts.course            all of it
    python -m scripts.course slides     only what is named: outputs, notebooks, slides

Outputs are what the blocks of the pages print; notebooks and slides are the pages again. Run it
after a change of a page or of a model. The pictures were drawn from numbers of tiny-bert.
"""

import contextlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.course_notebooks import notebook_of
from scripts.course_slides import slides_of
from scripts.rewrite_outputs import rewritten

COURSE = Path(__file__).resolve().parents[1] / "docs" / "course"
UNITS = sorted(COURSE.glob("[0-9]_*.md"))
PAGES = [*UNITS, COURSE / "README.md", COURSE / "solutions.md"]


def write(path: Path, text: str) -> None:
    """Write a file, and its name."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path.relative_to(COURSE.parents[1]))


def main(wanted: list[str]) -> None:
    """Make what is wanted, in the order in which one needs the other."""
    if "outputs" in wanted:
        # What the blocks write goes to a folder of its own.
        with TemporaryDirectory() as folder, contextlib.chdir(folder):
            for page in PAGES:
                write(page, rewritten(page.read_text(encoding="utf-8")))
    for page in UNITS:
        text = page.read_text(encoding="utf-8")
        if "notebooks" in wanted:
            write(COURSE / "notebooks" / f"{page.stem}.ipynb", notebook_of(text, COURSE))
        if "slides" in wanted:
            write(COURSE / "slides" / f"{page.stem}.html", slides_of(text, COURSE))


if __name__ == "__main__":
    main(sys.argv[1:] or ["outputs", "notebooks", "slides"])
