"""A page or picture written to a file, a pipe or a device, without harm to what stands there."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from minibert.errors import MinibertError

__all__ = ["write_bytes", "write_page"]


def write_page(pieces: Iterable[str], path: str | os.PathLike[str]) -> Path:
    """The path, now holding the pieces as UTF-8, one after the other; otherwise as `write_bytes`.

    Only one piece at a time is held as bytes.
    """
    return _write((piece.encode() for piece in pieces), path)


def write_bytes(content: bytes, path: str | os.PathLike[str]) -> Path:
    """The path, now written.

    The content of a regular file goes to a new file beside it that is then renamed, so that
    `path` holds the old content or the new one and never a part; a link stays a link, and a file
    keeps its permissions. Devices and pipes are written to as they are. Raises MinibertError when
    the folder is missing, may not be written to, or is full.
    """
    return _write((content,), path)


def _write(parts: Iterable[bytes], path: str | os.PathLike[str]) -> Path:
    target, real = Path(path), Path(os.path.realpath(path))
    if target.is_dir():
        raise MinibertError(f"cannot save {target}: it is a folder; name a file in it")
    # Asked of `target`: the real path of a pipe's descriptor is no path that exists.
    in_place = target.exists() and not target.is_file()
    if not in_place and not real.parent.is_dir():
        raise MinibertError(f"cannot save {target}: there is no folder {real.parent}")
    try:
        if in_place:
            with target.open("wb") as file:
                file.writelines(parts)
        else:
            _replace(parts, real)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MinibertError(f"cannot save {target}: {error.strerror or error}") from error
    return target


def _replace(parts: Iterable[bytes], target: Path) -> None:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            # Before the content is in it: a private page is at no time open to others.
            if target.exists():
                shutil.copymode(target, unfinished)
            file.writelines(parts)
        unfinished.replace(target)
    except BaseException:
        # Pieces are made while they are written: that can fail, or be interrupted, as well.
        unfinished.unlink(missing_ok=True)
        raise
