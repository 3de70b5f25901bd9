"""Files that minibert writes: whole or not at all, and only in place of a file."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minibert.errors import MinibertError

Error = type[MinibertError]


def as_path(path: object, error: Error) -> Path:
    """The path as a Path. Raises `error` for what no file or folder can be called."""
    try:
        named = os.fsdecode(os.fsencode(path))  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        named = ""
    if not named.strip() or "\0" in named:
        raise error(f"{path!r:.80}: expected the path of a file or folder.")
    return Path(named)


def check_place(path: Path, error: Error = MinibertError) -> None:
    """Raise `error` where no file can be: a folder, a pipe, a device, or in no folder."""
    if path.is_dir():
        raise error(f"cannot save {path}: it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise error(f"cannot save {path}: it is a pipe or a device; name a file")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise error(f"cannot save {path}: there is no folder {folder}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which then takes its place.

    So `path` holds the old content or the new one and never a part, even after a kill. Where
    something fails inside, nothing is left beside it. A link stays a link, a file keeps its
    permissions, and a new one has those of the user's mask. Raises OSError where the disk refuses.
    """
    target = Path(os.path.realpath(path))
    # Hidden, short enough for any name, and one that nobody can foresee.
    name = f".{target.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}.unfinished"
    unfinished = target.with_name(name)
    mode = made(unfinished, like=target)
    try:
        yield unfinished
        # Some libraries put a file of their own, with other permissions, in its place.
        if stat.S_IMODE(unfinished.lstat().st_mode) != mode:
            unfinished.chmod(mode)
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def made(path: Path, *, like: Path | None = None) -> int:
    """The permissions of a new, empty file at `path`: those of `like`, or of the user's mask.

    What is there already, a link above all, is neither followed nor written to: FileExistsError.
    """
    # Closed to others until it has the permissions of the file that it replaces.
    there = like is not None and like.exists()
    number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if there else 0o666)
    os.close(number)
    if there and like is not None:
        path.chmod(stat.S_IMODE(like.stat().st_mode))
    return stat.S_IMODE(path.lstat().st_mode)
