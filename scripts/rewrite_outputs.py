"""Runs the Python blocks of pages and writes what they print below them.

    python -m scripts.rewrite_outputs docs/course/1_weighted_averages.md ...

The blocks of a page run one after the other in one namespace, in this process and folder: run the
page's commands there before, where its Python needs what they make. Blocks of other languages, and
of Python with a word behind it, stay as they are.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)
