"""One run at a time has a folder, and what wrote nothing leaves nothing."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from minibert.errors import SurveyError
from minibert.survey.folder_lock import folder_locked
from tests.packages import REPOSITORY

HOLD = """
import sys
from pathlib import Path
from minibert.survey.folder_lock import folder_locked
with folder_locked(Path(sys.argv[1]), file="lock", work="surveying"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_a_killed_one_holds_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=REPOSITORY,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        message = rf"/run: process {other.pid} is surveying into this folder"
        with pytest.raises(SurveyError, match=message), locked(folder):
            raise AssertionError
        other.kill()
    (folder / ".rows.5.unfinished").touch()
    with locked(folder):
        assert [path.name for path in folder.iterdir()] == ["lock"]


def test_the_lock_is_free_after_a_run_and_what_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with suppress(ZeroDivisionError), locked(tmp_path / "run"):
            with pytest.raises(SurveyError), locked(tmp_path / "run"):
                raise AssertionError
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def locked(folder: Path):  # type: ignore[no-untyped-def]
    return folder_locked(folder, file="lock", work="surveying")
