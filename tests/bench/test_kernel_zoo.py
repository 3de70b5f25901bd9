"""Attention in other people's conventions is right, and wrong and named with a mistake in it."""

import re

import planted_kernels as planted
import pytest
from called_here import report
from kernel_zoo import OPTIONS, PLANTED, RIGHT, SOFTMAX, START, WRONG, changed


def verdict(folder, text, **options):
    path = folder / "kernel.py"
    path.write_text(START + SOFTMAX + text, encoding="utf-8")
    return report(path, "attention", **options)


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


def wrong_and_named(found, cause):
    assert not found.ok, str(found)
    assert re.search(cause, "\n".join(found.causes)), str(found)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_right(tmp_path, name):
    options = OPTIONS.get(name, {}) | {"backward": name == "own gradients"}
    found = verdict(tmp_path, RIGHT[name], **options)
    assert found.ok, str(found)


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_wrong_and_named(tmp_path, name):
    base, old, new, cause = WRONG[name]
    options = OPTIONS.get(name, {}) | {"backward": "own" in base}
    wrong_and_named(verdict(tmp_path, changed(RIGHT[base], (old, new)), **options), cause)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_kernel_is_wrong_and_named(tmp_path, name):
    sizes = (65,) if name == "READS_ON" else (17,)
    text = planted.START + getattr(planted, name)
    wrong_and_named(verdict(tmp_path, text, sizes=sizes), PLANTED[name])
