"""Standard streams that are closed or full: one line of error, and the exit status says it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

CLOSED = r"error: standard output cannot be written to \(Bad file descriptor\)\.\n"
FULL = r"error: standard output cannot be written to \(No space left on device\)\.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ('predict "the [MASK]" >&-', 1, CLOSED),
        ('view "the horse" -o - >&-', 1, CLOSED),
        ("--help >&-", 1, CLOSED),
        ("--version >/dev/full", 1, FULL),
        ('explain "the horse" --layer 1 --head 2 --query horse >/dev/full', 1, FULL),
        ("predict - <&-", 1, r"error: Standard input cannot be read \(Bad file descriptor\).*\n"),
        ('predict "the [MASK]" -m /absent 2>&-', 1, ""),
        ('predict "the [MASK]" <&- >/dev/null', 0, ""),
    ],
)
def test_a_closed_or_full_stream_is_one_line_of_error(
    arguments: str, status: int, message: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m minibert {arguments}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert re.fullmatch(message, done.stderr), done.stderr


@pytest.mark.parametrize("wrong", [["--x\x1b[31m"], ["view", "a", "--x\u202e"], ["\x1b]0;x\x07"]])
def test_what_was_typed_wrongly_is_repeated_without_acting_on_the_terminal(
    wrong: list[str],
) -> None:
    result = run(*wrong)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert all(c.isprintable() or c == "\n" for c in result.stderr)
