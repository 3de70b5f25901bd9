"""Files that minibert writes: whole or not at all, and only in the place of a file."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minibert.errors import MinibertError

Error = type[MinibertError]


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
    something fails inside, nothing is left beside it. A link stays a link, and a file keeps its
    permissions. Raises OSError where the disk refuses.
    """
    target = Path(os.path.realpath(path))
    # Hidden, short enough for any name, and another one in each process.
    unfinished = target.with_name(f".{target.name[:200]}.{os.getpid()}.unfinished")
    try:
        # Made here, so that a private file is at no time open to others.
        unfinished.touch()
        if target.exists():
            shutil.copymode(target, unfinished)
        yield unfinished
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
