"""The exercises of the course as notebooks that grade themselves.

    python -m scripts.course_graded FOLDER

writes, for each unit, FOLDER/nbgrader/source/UNIT/UNIT.ipynb (`nbgrader generate_assignment UNIT
--course-dir FOLDER/nbgrader` makes the students' copy) and FOLDER/otter/UNIT.ipynb (`otter assign
UNIT.ipynb OUT`). Both hold the solutions of docs/course/solutions.md, which those commands remove.
A question is worth one point; its test is `check`, which computes the right answer.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibert.course import exercises
from scripts.course import COURSE, UNITS

Cell = dict[str, Any]
_BLOCK = re.compile(r"(?:^### (?P<name>[\w-]+)\n\n)?```python\n(?P<code>.*?)```", re.DOTALL | re.M)
_SOLVE = re.compile(r'^solve\("(?P<name>[\w-]+)", (?P<answer>.*)\)\n\Z', re.DOTALL | re.M)


def variable(name: str) -> str:
    """What the answer of an exercise is called in a notebook: answer_2_score."""
    return "answer_" + name.replace("-", "_")


def solutions(unit: str) -> Iterator[tuple[str, str]]:
    """Each exercise of a unit, with code that sets its variable to the right answer."""
    page = (COURSE / "solutions.md").read_text(encoding="utf-8")
    before = ""
    for match in _BLOCK.finditer(page.partition(f"## Unit {unit}\n")[2].partition("\n## ")[0]):
        if (solved := _SOLVE.search(match["code"])) is None:
            before += match["code"]
            continue
        code = f"{variable(solved['name'])} = {solved['answer']}\n"
        yield solved["name"], before + match["code"][: solved.start()] + code
        before = ""


def _cell(kind: str, source: str, **metadata: Any) -> Cell:
    cell: Cell = {"cell_type": kind, "metadata": metadata, "source": source.strip()}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _nbgrader(name: str, solution: str) -> Iterator[Cell]:
    def marks(kind: str, *, graded: bool) -> Cell:
        about = {"grade": graded, "solution": not graded, "locked": graded, "task": False}
        points = {"points": 1} if graded else {}
        return {"nbgrader": about | points | {"grade_id": f"{name}-{kind}", "schema_version": 3}}

    region = f"### BEGIN SOLUTION\n{solution}### END SOLUTION"
    yield _cell("code", region, **marks("answer", graded=False))
    test = f'verdict = check("{name}", {variable(name)})\nprint(verdict)\nassert verdict'
    yield _cell("code", test, **marks("test", graded=True))


def _otter(name: str, solution: str) -> Iterator[Cell]:
    yield _cell("raw", f"# BEGIN QUESTION\nname: {variable(name)}\npoints: 1")
    yield _cell("raw", "# BEGIN SOLUTION")
    yield _cell("code", f"# BEGIN SOLUTION\n{solution}# END SOLUTION")
    yield _cell("raw", "# END SOLUTION")
    yield _cell("raw", "# BEGIN TESTS")
    test = _cell("code", f'bool(check("{name}", {variable(name)}))')
    right: Cell = {"data": {"text/plain": "True"}, "metadata": {}, "execution_count": None}
    yield test | {"outputs": [right | {"output_type": "execute_result"}]}
    yield _cell("raw", "# END TESTS")
    yield _cell("raw", "# END QUESTION")


FORMATS = {"nbgrader": _nbgrader, "otter": _otter}


def graded(unit: Path, form: str) -> str:
    """The notebook of a unit's page in a format, as JSON."""
    asked = exercises()
    title = unit.read_text(encoding="utf-8").partition("\n")[0]
    first = _cell("raw", "# ASSIGNMENT CONFIG\ninit_cell: true\nexport_cell: false")
    cells = [first] if form == "otter" else []
    cells.append(_cell("markdown", f"{title}\n\nReplace the dots or the error with your answer."))
    setup = (COURSE / "solutions.md").read_text(encoding="utf-8").partition("```python\n")[2]
    cells.append(_cell("code", setup.partition("\n\ndef solve")[0]))
    for name, solution in solutions(unit.stem[0]):
        question = f"### Exercise {name}\n\n{asked[name]}\n\nSet `{variable(name)}`."
        cells += [_cell("markdown", question), *FORMATS[form](name, solution)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main(folder: Path) -> None:
    """Write every unit in both formats."""
    for unit in UNITS:
        file = f"{unit.stem}.ipynb"
        for form, path in (("nbgrader", Path("source", unit.stem, file)), ("otter", Path(file))):
            target = folder / form / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(graded(unit, form), encoding="utf-8")
            print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
