"""docs/attach.md runs and prints what it says."""

import contextlib
import io
from typing import Any

from tests.test_documents import ELSEWHERE, blocks_of


def test_the_page_runs_and_prints_what_it_says() -> None:
    names: dict[str, Any] = {}
    blocks = blocks_of(ELSEWHERE)
    assert len(blocks) == 11
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, "attach.md", "exec"), names)
        assert printed.getvalue() == block.printed, block.code
