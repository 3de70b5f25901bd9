"""One run at a time in a folder, and Ctrl-C and SIGTERM that wait for the end of a step."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from minibert.errors import MinibertError, TrainingError


@contextmanager
def folder_locked(
    folder: Path,
    error: type[MinibertError] = TrainingError,
    *,
    file: str = ".training/lock",
    work: str = "training",
) -> Iterator[None]:
    """Make the folder and hold its lock; afterwards remove the lock, and the folder if empty.

    The operating system gives the lock back when the process ends, so one that was killed holds
    nobody up. Raises `error` at once where another run has it, and where the folder cannot be
    written to. `file` is the lock's place in the folder, `work` what the message calls the run.
    """
    path = folder / file
    made = [place for place in (path.parent, folder) if not place.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = _acquired(path)
    except BlockingIOError as holder:
        owner = str(holder) or "of another run"
        raise error(
            f"{folder}: process {owner} is {work} into this folder. Wait for it, stop it, or give "
            "another folder."
        ) from None
    except OSError as reason:
        raise error(f"{folder}: cannot be written to ({reason.strerror or reason}).") from reason
    try:
        # Half-written files of a run that was killed.
        for left in {*path.parent.glob(".*.unfinished"), *folder.glob(".*.unfinished")}:
            left.unlink()
        yield
    finally:
        # While it is held; Windows refuses and keeps an empty file, which locks nothing.
        with suppress(OSError):
            path.unlink()
        os.close(number)
        for place in made:
            with suppress(OSError):
                place.rmdir()


# Windows has no such flag, and lets few people make links.
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0)


def _acquired(path: Path) -> int:
    """The descriptor of the lock's file, which holds the lock until it is closed.

    Raises BlockingIOError, with the id of the process if it is known, where another run has it.
    """
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT | _NOT_A_LINK, 0o644)
        try:
            if not _lock(number):
                raise BlockingIOError(os.read(number, 20).decode(errors="replace").strip())
            # The run before may have removed the file after it was opened here.
            if _is_still(path, number):
                # On a full disk nobody learns whose lock it is, and it holds all the same.
                with suppress(OSError):
                    os.ftruncate(number, 0)
                    os.write(number, str(os.getpid()).encode())
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _is_still(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(number))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    # Behind the process id: what is locked on Windows cannot be read by others.
    _PLACE = 2**20

    def _lock(number: int) -> bool:
        os.lseek(number, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(number, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(number: int) -> bool:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Interrupts:
    """Whether there was an interrupt: called, it says so."""

    def __init__(self) -> None:
        self._noted, self._act = threading.Event(), False

    def __call__(self) -> bool:
        """True from the first interrupt on."""
        return self._noted.is_set()

    def note(self) -> None:
        """There is one."""
        self._noted.set()
        if self._act:
            raise KeyboardInterrupt

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this block at once, also for an interrupt that was before."""
        self._act = True
        try:
            if self():
                raise KeyboardInterrupt
            yield
        finally:
            self._act = False


@contextmanager
def interrupts_held() -> Iterator[Interrupts]:
    """Delay interrupts inside a `with` block, but where what it gives says `acting`.

    A second interrupt acts at once. In other threads than the main one this does nothing, because
    signals reach only the main thread.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        interrupts.note()

    try:
        for number in before:
            signal.signal(number, note)
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
