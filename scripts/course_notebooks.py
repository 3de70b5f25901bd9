"""A page of the course as a notebook: its text and its code as cells, without outputs."""

import base64
import json
import re
from pathlib import Path
from typing import Any

FIRST_CELL = """\
# Finds minibert, or installs it: from a wheel or a clone in this folder or above, or as released.
import subprocess
import sys
from pathlib import Path

try:
    from minibert import load
except ImportError:
    folders = [Path.cwd(), *Path.cwd().parents]
    wheels = [wheel for one in folders for wheel in one.glob("minibert_attention-*.whl")]
    clones = [one for one in folders if (one / "minibert" / "quantities.py").is_file()]
    chosen = [*wheels, *clones, "minibert-attention"][0]
    if subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", str(chosen)]).returncode:
        raise SystemExit("Put the wheel of minibert-attention beside this notebook.") from None
    from minibert import load
"""
_PIECE = re.compile(
    r"```(?P<language>python|python network|sh)\n(?P<code>.*?)```(?:\n\n```text\n.*?```)?",
    re.DOTALL,
)
_PICTURE = re.compile(r"\]\((pictures/([\w.]+))\)")
_LINK = re.compile(r"\]\((?!https?://|#|attachment:)([^)\s]+)\)")


def notebook_of(page: str, folder: Path) -> str:
    """The notebook, as JSON; `folder` is the page's, where its pictures are."""
    pieces: list[tuple[str, str]] = [("code", FIRST_CELL)]
    end = 0
    for match in _PIECE.finditer(page):
        pieces.append(("markdown", page[end : match.start()]))
        pieces.append(("code", _code(match["language"], match["code"])))
        end = match.end()
    pieces.append(("markdown", page[end:]))
    # The title stands before the cell that installs.
    title, _, rest = pieces[1][1].partition("\n\n")
    pieces[:2] = [("markdown", title), pieces[0], ("markdown", rest)]
    cells = [
        _cell(number, kind, text.strip(), folder)
        for number, (kind, text) in enumerate(pieces)
        if text.strip()
    ]
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    book = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def code_cells(notebook: str) -> list[str]:
    """The code of a notebook's cells, but the first, without commands for the shell."""
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    return [
        "".join(line for line in cell["source"] if not line.startswith("!")) for cell in cells[1:]
    ]


def _code(language: str, code: str) -> str:
    if language == "sh":
        lines = code.splitlines()
        return "\n".join(
            re.sub("^minibert", "!{sys.executable} -m minibert", line) for line in lines
        )
    if language == "python network":
        return "# This cell needs a network: take the signs away to run it.\n" + "\n".join(
            f"# {line}" for line in code.splitlines()
        )
    return code


def _cell(number: int, kind: str, text: str, folder: Path) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    else:
        pictures = _PICTURE.findall(text)
        text = _PICTURE.sub(r"](attachment:\2)", text)
        # A notebook lies one folder below its page.
        text = _LINK.sub(r"](../\1)", text)
        if pictures:
            cell["attachments"] = {
                name: {"image/svg+xml": _encoded(folder / path)} for path, name in pictures
            }
    cell["source"] = text.splitlines(keepends=True)
    return cell


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
