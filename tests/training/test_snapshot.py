"""A snapshot is whole or an error, one run at a time has the folder, and Ctrl-C waits."""

import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from minibert.errors import TrainingError
from minibert.training.folder import folder_locked, interrupts_held
from minibert.training.snapshot import Snapshot, snapshot_path, write_atomically


class Killed(BaseException):
    """Nothing that comes after it in the program runs."""


def snapshot(step=7):
    weights = torch.arange(step * 31.0).reshape(step, 31)
    return Snapshot(
        step=step,
        about={"recipe": {"rate": 0.1}, "texts": {"a": "b"}},
        tokenizer="{}",
        model={"weight": weights},
        optimizer=[{"state": {0: {"momentum": weights * 2}}, "param_groups": [{"lr": 0.1}]}],
        log=[{"step": step, "heads": {"next": [[None, 0.5]]}}],
        seconds=1.5,
    )


def equal(one, other):
    """The same numbers, whatever they are nested in."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def kept(folder, step):
    return equal(vars(Snapshot.load(folder)), vars(snapshot(step)))


def test_everything_comes_back(tmp_path):
    assert Snapshot.load(tmp_path) is None
    folder = tmp_path / "deep" / "run"
    for step in (7, 11):
        snapshot(step).save(folder)
        assert kept(folder, step)
    assert [p.name for p in snapshot_path(folder).parent.iterdir()] == ["snapshot.pt"]


def half(content, file):
    file.write(b"PK half a file")
    file.flush()
    raise Killed


def never(*paths):
    raise Killed


def full(*arguments):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("function", "fails", "error"),
    [
        ("torch.save", half, Killed),
        ("os.replace", never, Killed),
        ("torch.save", full, TrainingError),
    ],
)
def test_what_stops_a_save_leaves_the_old_one(function, fails, error, tmp_path, monkeypatch):
    snapshot(7).save(tmp_path)
    text = tmp_path / "scores.jsonl"
    write_atomically(text, "old “text”\n")
    with monkeypatch.context() as patch:
        patch.setattr(function, fails)
        with pytest.raises(error) as found:
            snapshot(11).save(tmp_path)
        if function == "os.replace":
            with pytest.raises(error):
                write_atomically(text, "new\n")
    told = ("snapshot.pt: ", "No space left", "previous snapshot is kept")
    assert error is Killed or all(part in str(found.value) for part in told)
    assert kept(tmp_path, 7)
    assert text.read_text(encoding="utf-8") == "old “text”\n"
    snapshot(13).save(tmp_path)
    assert kept(tmp_path, 13)
    write_atomically(text, "new\n")
    assert text.read_text() == "new\n"


@pytest.mark.parametrize("damage", ["cut", "flipped", "overwritten"])
def test_a_damaged_one_is_never_taken_for_another(damage, tmp_path):
    snapshot().save(tmp_path)
    path = snapshot_path(tmp_path)
    whole, draw = path.read_bytes(), random.Random(0)
    errors = []
    for _ in range(60):
        content = bytearray(whole)
        at = draw.randrange(len(content))
        if damage == "cut":
            del content[at:]
        elif damage == "flipped":
            content[at] ^= 1 << draw.randrange(8)
        else:
            content[at : at + 40] = draw.randbytes(len(content[at : at + 40]))
        path.write_bytes(content)
        try:
            # Some bytes of a zip file, such as dates, mean nothing.
            assert kept(tmp_path, 7)
        except TrainingError as error:
            errors.append(str(error))
    assert len(errors) >= 40
    assert all(str(path) in error and "Delete it to start again" in error for error in errors)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"format": 99},
        {"format": 1, "step": 3},
        {"format": 1, **vars(snapshot()), "more": 1},
        {"format": 1, "step": Killed},
    ],
)
def test_a_file_of_another_kind_is_an_error(content, tmp_path):
    path = snapshot_path(tmp_path)
    path.parent.mkdir()
    torch.save(content, path)
    with pytest.raises(TrainingError, match=r"^/.*snapshot\.pt: .*Delete it to start again\.$"):
        Snapshot.load(tmp_path)


HOLD = """
import sys
from minibert.training.folder import folder_locked
with folder_locked(__import__("pathlib").Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_a_killed_one_holds_nobody_up(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"held\n"
        message = rf"/run: process {other.pid} is training into this folder"
        with pytest.raises(TrainingError, match=message), folder_locked(folder):
            raise AssertionError
        other.kill()
    (folder / ".training" / ".snapshot.pt.5.unfinished").touch()
    with folder_locked(folder):
        assert [path.name for path in (folder / ".training").iterdir()] == ["lock"]


def test_the_lock_is_free_after_a_run_and_what_wrote_nothing_leaves_nothing(tmp_path):
    for _ in range(2):
        with suppress(ZeroDivisionError), folder_locked(tmp_path / "run"):
            with pytest.raises(TrainingError), folder_locked(tmp_path / "run"):
                raise AssertionError
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_is_only_noted_and_the_second_acts(number):
    acted = []
    before = signal.signal(number, lambda number, frame: acted.append(number))
    try:
        with suppress(ZeroDivisionError), interrupts_held() as interrupted:
            with interrupted.acting():
                assert not interrupted()
            signal.raise_signal(number)
            assert interrupted()
            # What need not be waited for ends at once.
            with pytest.raises(KeyboardInterrupt), interrupted.acting():
                raise AssertionError
            assert acted == []
            signal.raise_signal(number)
            assert acted == [number]
            raise ZeroDivisionError
        # Handlers come back, after an error too.
        signal.raise_signal(number)
        assert acted == [number, number]
    finally:
        signal.signal(number, before)


def test_outside_the_main_thread_no_interrupt_is_held():
    found = []

    def enter():
        with interrupts_held() as interrupted:
            found.append(interrupted())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]
