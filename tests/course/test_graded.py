"""Notebooks that grade themselves: each exercise once, graded by the tools that are installed."""

import json
import shutil
import subprocess
import sys

import pytest

from minibert.course import exercises
from scripts.course import UNITS
from scripts.course_graded import FORMATS, graded, main, variable

UNIT = "1_weighted_averages"


@pytest.mark.parametrize("form", FORMATS)
def test_every_exercise_is_asked_and_graded_once(form):
    tests = [
        cell["source"]
        for unit in UNITS
        for cell in json.loads(graded(unit, form))["cells"]
        if cell["cell_type"] == "code" and 'check("' in cell["source"]
    ]
    assert len(tests) == len(exercises())
    for name, test in zip(exercises(), sorted(tests, key=_order), strict=True):
        assert f'check("{name}", {variable(name)})' in test


def _order(test: str) -> int:
    return next(n for n, name in enumerate(exercises()) if f'"{name}"' in test)


def test_right_answers_get_every_point_and_no_answers_none_by_nbgrader(tmp_path):
    pytest.importorskip("nbgrader")
    from nbgrader.api import Gradebook  # type: ignore[import-not-found]

    main(tmp_path)
    course = tmp_path / "nbgrader"
    _run(course, "generate_assignment")
    for student, kind in (("right", "source"), ("none", "release")):
        folder = course / "submitted" / student / UNIT
        shutil.copytree(course / kind / UNIT, folder)
    assert "0.4 * a" not in (course / "release" / UNIT / f"{UNIT}.ipynb").read_text()
    _run(course, "autograde", ok=False)
    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        scores = {
            student: book.find_submission(UNIT, student).score for student in ("right", "none")
        }
    n = sum(name.startswith("1-") for name in exercises())
    assert scores == {"right": n, "none": 0}


def _run(course, command, *, ok=True):
    args = [sys.executable, "-m", "nbgrader", command, UNIT, "--course-dir", str(course)]
    done = subprocess.run(args, capture_output=True, text=True, cwd=course, check=False)
    assert not ok or done.returncode == 0, done.stderr[-2000:]


def test_right_answers_pass_in_otter_and_the_students_copy_has_none(tmp_path):
    pytest.importorskip("otter")
    main(tmp_path)
    args = [sys.executable, "-m", "otter", "assign", f"{UNIT}.ipynb", "out"]
    done = subprocess.run(args, capture_output=True, text=True, cwd=tmp_path / "otter", check=False)
    # Without --no-run-tests, `otter assign` fails where a solution does not pass its test.
    assert done.returncode == 0, done.stderr[-2000:]
    students = tmp_path / "otter" / "out" / "student" / f"{UNIT}.ipynb"
    assert "0.4 * a" not in students.read_text()
    assert students.read_text().count("grader.check(") >= 4
