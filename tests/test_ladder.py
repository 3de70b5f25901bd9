"""The lesson docs/lessons/flash: every rung is right, every exercise is refused as it says."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from gradient_checks import check_gradients

from minibert.bench.user_file import load_function
from minibert.kernels.check.parity import check
from minibert.kernels.check.problem import Problem
from minibert.kernels.registry import Implementation, by_keywords
from tests.packages import REPOSITORY

FOLDER = REPOSITORY / "docs" / "lessons" / "flash"
LESSON = (FOLDER / "README.md").read_text(encoding="utf-8")
RUNGS = sorted(FOLDER.glob("rung*.py"))
EXERCISE = re.compile(
    r"Replace\s`(?P<old>.+?)`\sby\s`(?P<new>.+?)`.*?</summary>\s+\"(?P<says>.+?)\"", re.S
)


def loaded(path: Path):
    """The function `attention` of a file; all keys are real and seen, unless it is told others."""
    return partial(load_function(path, "attention").function, lengths=None, causal=False)


def exercises(rung: Path):
    """The exercises of a rung that change its file: what, by what, and what is then said."""
    section = LESSON.split(f"## Rung {rung.name[4]}:")[1].split("\n## ")[0]
    parts = section.split("**Exercise ")[1:]
    found = [EXERCISE.search(one) for one in parts]
    return [(one["old"], one["new"], one["says"]) for one in found if one]


def changed(folder: Path, rung, old: str, new: str):
    """The rung's function from a copy of its file with a change."""
    source = rung.read_text(encoding="utf-8")
    assert source.count(old) == 1, old
    file = folder / rung.name
    file.write_text(source.replace(old, new), encoding="utf-8")
    return loaded(file)


def judged(function, **few):
    """The report of the judge of `minibert check`, on few cases."""
    few = {"kinds": ("plain",), "input_scales": (1.0,), "sizes": (65,), **few}
    vectors = torch.randn(3, 1, 1, 3, 64)
    with torch.no_grad():
        outputs = function(*vectors)
    record = Implementation(
        name="rung",
        fn=by_keywords(function, "rung"),
        wants=frozenset(outputs) - {"z", "lse"},
        options=frozenset({"lengths", "causal"}),
    )
    return check(record, dtypes=[torch.float32], **few)


def gradients_of(function, *, causal=True):
    """Raises AssertionError where the gradients of a function are wrong."""
    generator = torch.Generator().manual_seed(5)
    *vectors, dz = torch.randn(4, 2, 2, 70, 16, generator=generator)
    d_lse = torch.randn(2, 2, 70, generator=generator)
    lengths = torch.tensor([70, 37])
    leaves = [one.clone().requires_grad_() for one in vectors]
    found = function(*leaves, lengths=lengths, causal=causal)
    gradients = torch.autograd.grad([found["z"], found["lse"]], leaves, [dz, d_lse])
    named = dict(zip(("query", "key", "value"), gradients, strict=True))
    options = {"lengths": lengths, "causal": causal, "scale": 0.25}
    check_gradients(named, Problem(*vectors, z_gradient=dz, **options), lse_gradient=d_lse)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.stem)
def test_a_rung_is_right(rung):
    report = judged(loaded(rung), kinds=("strided", "causal lengths"), input_scales=(1.0, 30.0))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("rung", "old", "new", "says"),
    [
        pytest.param(rung, *one, id=f"{rung.stem}-{i}")
        for rung in RUNGS[:-1]
        for i, one in enumerate(exercises(rung))
    ],
)
def test_what_an_exercise_breaks_is_refused_as_the_lesson_says(tmp_path, rung, old, new, says):
    scales = (1.0, 30.0) if "overflows" in says else (1.0,)
    kind = "causal" if "causal" in old else "lengths" if "lengths" in says else "plain"
    report = judged(changed(tmp_path, rung, old, new), input_scales=scales, kinds=(kind,))
    assert not report.ok
    assert says in str(report), str(report)


def test_each_rung_has_an_exercise_that_breaks_it():
    assert [len(exercises(rung)) for rung in RUNGS] == [2, 1, 2, 2, 2, 1]


def test_the_gradients_of_the_last_rung_are_right_and_those_of_its_exercise_are_not(tmp_path):
    gradients_of(loaded(RUNGS[-1]))
    ((old, new, says),) = exercises(RUNGS[-1])
    with pytest.raises(AssertionError, match=says):
        gradients_of(changed(tmp_path, RUNGS[-1], old, new))
