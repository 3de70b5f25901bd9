"""A page or picture written to a file, a pipe or a device, without harm to what stands there."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from minibert.errors import MinibertError
from minibert.writing import check_place, replacing

__all__ = ["write_bytes", "write_page"]


def write_page(pieces: Iterable[str], path: str | os.PathLike[str]) -> Path:
    """The path, now holding the pieces as UTF-8, one after the other; otherwise as `write_bytes`.

    Only one piece at a time is held as bytes.
    """
    return _write((piece.encode() for piece in pieces), path)


def write_bytes(content: bytes, path: str | os.PathLike[str]) -> Path:
    """The path, now written.

    A regular file is replaced as a whole (`writing.replacing`). Devices and pipes are written to
    as they are. Raises MinibertError when the folder is missing, may not be written to, or is
    full, and for a pipe that nobody reads.
    """
    return _write((content,), path)


def _write(parts: Iterable[bytes], path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    try:
        # Asked of `target`: the real path of a pipe's descriptor is no path that exists.
        if target.exists() and not target.is_file() and not target.is_dir():
            _write_in_place(parts, target)
            return target
        check_place(target)
        with replacing(target) as beside, beside.open("wb") as file:
            file.writelines(parts)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MinibertError(f"cannot save {target}: {error.strerror or error}") from error
    return target


def _write_in_place(parts: Iterable[bytes], target: Path) -> None:
    is_pipe = stat.S_ISFIFO(target.stat().st_mode)
    try:
        # Without O_NONBLOCK the opening waits until somebody reads the pipe.
        number = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if not is_pipe:
            raise
        raise MinibertError(
            f"cannot save {target}: it is a pipe that nobody reads; start its reader first, or "
            "name a file."
        ) from error
    with os.fdopen(number, "wb") as file:
        if is_pipe:
            os.set_blocking(number, True)
        file.writelines(parts)
