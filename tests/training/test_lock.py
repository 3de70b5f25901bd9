"""Two runs never train into one folder, and a killed one holds nobody up."""

import subprocess
import sys
from pathlib import Path

import pytest

from minibert.errors import TrainingError
from minibert.training.folder import folder_locked

HOLD = """
import sys
from minibert.training.folder import folder_locked
with folder_locked(__import__("pathlib").Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path):
    """A process that trains into the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_the_second_run_is_refused_and_names_folder_and_process(other, tmp_path: Path) -> None:
    message = rf"/run: process {other.pid} is training into this folder"
    with pytest.raises(TrainingError, match=message), folder_locked(tmp_path / "run"):
        raise AssertionError


def test_the_lock_of_a_killed_run_is_taken_over_and_its_parts_are_removed(
    other, tmp_path: Path
) -> None:
    other.kill()
    other.wait()
    folder = tmp_path / "run"
    (folder / ".training" / ".snapshot.pt.5.unfinished").touch()
    with folder_locked(folder):
        assert [path.name for path in (folder / ".training").iterdir()] == ["lock"]


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), folder_locked(tmp_path / "run"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_free_after_a_run(tmp_path: Path) -> None:
    for _ in range(2):
        with folder_locked(tmp_path), pytest.raises(TrainingError), folder_locked(tmp_path):
            raise AssertionError
