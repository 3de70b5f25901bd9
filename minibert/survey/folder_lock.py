"""One run at a time in a folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minibert.errors import SurveyError


@contextmanager
def folder_locked(folder: Path, *, file: str, work: str) -> Iterator[None]:
    """Make the folder and hold its lock; afterwards remove the lock, and the folder if empty.

    The operating system gives the lock back when the process ends, so one that was killed holds
    nobody up. Raises SurveyError at once where another run has it, and where the folder cannot be
    written to. `file` is the lock's place in the folder, `work` what the message calls the run.
    """
    path = folder / file
    made = [place for place in (path.parent, folder) if not place.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = _acquired(path)
    except BlockingIOError as holder:
        owner = str(holder) or "of another run"
        raise SurveyError(
            f"{folder}: process {owner} is {work} into this folder. Wait for it, stop it, or give "
            "another folder."
        ) from None
    except OSError as reason:
        raise SurveyError(
            f"{folder}: cannot be written to ({reason.strerror or reason})."
        ) from reason
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
