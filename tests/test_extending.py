"""The pages of docs/extend: each change, made in a scratch copy, does what its page says."""

import pytest

from tests.extending import EXTEND, follow

# The view is looked at in tests/browser.
PAGES = sorted(set(EXTEND.glob("*.md")) - {EXTEND / "view.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_change_of_a_page_works(page, tmp_path):
    follow(page, tmp_path / "scratch")


def test_there_are_five_each_with_its_change():
    assert {path.stem for path in EXTEND.glob("*.md")} == {
        "family", "kernel_option", "measure", "quantity", "view",
    }  # fmt: skip
