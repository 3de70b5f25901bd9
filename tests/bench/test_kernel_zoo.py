"""Attention in other people's conventions is right, and wrong and named with a mistake in it."""

import re

import pytest
from called_here import report
from kernel_zoo import RIGHT, SOFTMAX, START, WRONG, changed


def verdict(folder, text, **options):
    path = folder / "kernel.py"
    path.write_text(START + SOFTMAX + text, encoding="utf-8")
    return report(path, "attention", **options)


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_right(tmp_path, name):
    found = verdict(tmp_path, RIGHT[name], backward=name == "own gradients")
    assert found.ok, str(found)


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_wrong_and_named(tmp_path, name):
    base, old, new, cause = WRONG[name]
    found = verdict(tmp_path, changed(RIGHT[base], (old, new)), backward="own" in base)
    assert not found.ok, str(found)
    assert re.search(cause, "\n".join(found.causes)), str(found)
