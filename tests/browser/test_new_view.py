"""The view that docs/extend/view.md adds draws a bar for each token."""

from pathlib import Path

import pytest

from tests.extending import EXTEND, follow

pytestmark = pytest.mark.browser


def test_the_view_of_the_page_that_adds_one_is_drawn(open_page, tmp_path: Path) -> None:
    follow(EXTEND / "view.md", tmp_path / "scratch")
    html = (tmp_path / "scratch" / "page.html").read_text(encoding="utf-8")
    page = open_page(html, ready=".received-view li")
    shares = page.locator(".received-view data").all_text_contents()
    assert len(shares) == 7
    # What is received adds up to all that is given, each share rounded.
    assert abs(sum(float(share.split()[0]) for share in shares) - 100) < 1
