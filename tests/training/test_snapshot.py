"""A snapshot is whole or an error, whatever happens to the process or the file."""

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from minibert.errors import TrainingError
from minibert.training.folder import interrupts_held
from minibert.training.snapshot import Snapshot, snapshot_path, write_atomically


class Killed(BaseException):
    """Nothing that comes after it in the program runs."""


def snapshot(step: int = 7) -> Snapshot:
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


def equal(one: Any, other: Any) -> bool:
    """The same numbers, whatever they are nested in."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_everything_comes_back(tmp_path: Path) -> None:
    assert Snapshot.load(tmp_path) is None
    assert Snapshot.load(tmp_path / "nowhere") is None
    for step in (7, 11):
        snapshot(step).save(tmp_path / "deep" / "run")
        again = Snapshot.load(tmp_path / "deep" / "run")
        assert equal(vars(again), vars(snapshot(step)))
    assert [p.name for p in snapshot_path(tmp_path / "deep" / "run").parent.iterdir()] == [
        "snapshot.pt"
    ]


@pytest.mark.parametrize("moment", ["in the middle", "before the new name"])
def test_a_kill_while_it_is_written_leaves_the_old_one(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(7).save(tmp_path)

    def half(content: Any, file: Any) -> None:
        file.write(b"PK half a file")
        file.flush()
        raise Killed

    def never(*paths: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "in the middle":
            patch.setattr("torch.save", half)
        else:
            patch.setattr("os.replace", never)
        with pytest.raises(Killed):
            snapshot(11).save(tmp_path)
    assert equal(vars(Snapshot.load(tmp_path)), vars(snapshot(7)))
    snapshot(13).save(tmp_path)
    assert equal(vars(Snapshot.load(tmp_path)), vars(snapshot(13)))


def test_a_full_disk_is_an_error_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(7).save(tmp_path)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("torch.save", full)
        with pytest.raises(
            TrainingError, match=r"snapshot\.pt: .*No space left.*previous snapshot is kept"
        ):
            snapshot(11).save(tmp_path)
    assert equal(vars(Snapshot.load(tmp_path)), vars(snapshot(7)))


@pytest.mark.parametrize("damage", ["cut", "flipped", "overwritten"])
def test_a_damaged_one_is_never_taken_for_another(damage: str, tmp_path: Path) -> None:
    snapshot().save(tmp_path)
    path, expected = snapshot_path(tmp_path), vars(snapshot())
    whole, draw = path.read_bytes(), random.Random(0)
    errors: list[str] = []
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
            found = Snapshot.load(tmp_path)
        except TrainingError as error:
            errors.append(str(error))
        else:
            # Some bytes of a zip file, such as dates, mean nothing.
            assert equal(vars(found), expected)
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
def test_a_file_of_another_kind_is_an_error(content: Any, tmp_path: Path) -> None:
    path = snapshot_path(tmp_path)
    path.parent.mkdir()
    torch.save(content, path)
    with pytest.raises(TrainingError, match=r"^/.*snapshot\.pt: .*Delete it to start again\.$"):
        Snapshot.load(tmp_path)


def test_text_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.jsonl"
    write_atomically(path, "old “text”\n")

    def never(*paths: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", never)
        with pytest.raises(Killed):
            write_atomically(path, "new\n")
    assert path.read_text(encoding="utf-8") == "old “text”\n"
    write_atomically(path, "new\n")
    assert path.read_text() == "new\n"
    assert [p.name for p in tmp_path.iterdir()] == ["scores.jsonl"]


class TestInterrupts:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_is_only_noted_and_the_second_acts(self, number: signal.Signals) -> None:
        acted: list[int] = []
        before = signal.signal(number, lambda number, frame: acted.append(number))
        try:
            with interrupts_held() as interrupted:
                assert not interrupted()
                signal.raise_signal(number)
                assert interrupted()
                assert acted == []
                signal.raise_signal(number)
                assert acted == [number]
            signal.raise_signal(number)
            assert acted == [number, number]
        finally:
            signal.signal(number, before)

    def test_one_that_was_noted_ends_what_need_not_be_waited_for(self) -> None:
        done: list[str] = []
        with interrupts_held() as interrupted:
            with interrupted.acting():
                done.append("before it")
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt), interrupted.acting():
                done.append("after it")
            assert interrupted()
        assert done == ["before it"]

    def test_handlers_come_back_after_an_error(self) -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with pytest.raises(ZeroDivisionError), interrupts_held():
            raise ZeroDivisionError
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    def test_outside_the_main_thread_it_holds_nothing(self) -> None:
        found: list[bool] = []

        def enter() -> None:
            with interrupts_held() as interrupted:
                found.append(interrupted())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert found == [False]
