"""Whether the files that a command is to write can be written, said before any work starts."""

import tempfile
from pathlib import Path

from minibert.cli.options import unusable
from minibert.errors import MinibertError

__all__ = ["check_file", "check_picture"]


def check_file(path: Path, *, made: Path | None = None) -> None:
    """Exits with 2 where the file cannot be written; the folder `made` is made by the command."""
    if path.exists() and not path.is_file():
        unusable(f"{path} is a folder, a pipe or a device; expected the name of a file.")
    if made is not None and path.parent.resolve() == made.resolve():
        return
    if not path.parent.is_dir():
        unusable(f"There is no folder {path.parent} to write {path.name} to.")
    try:
        # By writing a file in the folder, because permissions alone do not tell.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        unusable(f"{path} cannot be written: {error.strerror}.")


def check_picture(path: Path, *, made: Path | None = None) -> None:
    """The same for a figure, which also needs an ending that matplotlib knows, and matplotlib."""
    from minibert.viz.plots import check_output

    try:
        check_output(path)
    except MinibertError as error:
        unusable(str(error))
    check_file(path, made=made)
