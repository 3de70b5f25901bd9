"""Snapshots: all that an interrupted run needs to resume with identical results.

A snapshot is written to another file in its folder, which is then renamed. So a kill at any moment
leaves a complete file: the old snapshot or the new one.
"""

import os
import tempfile
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import torch

from minibert.errors import TrainingError
from minibert.untrusted import open_regular, present
from minibert.writing import replacing

__all__ = ["Snapshot", "check_writable", "snapshot_path", "write_atomically"]

_FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """The state after `step` steps."""

    step: int
    about: dict[str, Any]
    """The arguments of the run; it resumes only with the same ones."""
    tokenizer: str
    model: dict[str, torch.Tensor]
    optimizer: list[dict[str, Any]]
    log: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds spent on training so far."""

    def save(self, folder: Path) -> None:
        """Replace the snapshot of this folder."""
        path = snapshot_path(folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside, beside.open("wb") as file:
                torch.save({"format": _FORMAT, **vars(self)}, file)
                file.flush()
                os.fsync(file.fileno())
        # torch says that the disk is full with a RuntimeError.
        except (OSError, RuntimeError) as error:
            raise TrainingError(
                f"{path}: the snapshot could not be written ({_reason(error)}). "
                "The previous snapshot is kept."
            ) from error

    @classmethod
    def load(cls, folder: Path) -> "Snapshot | None":
        """The snapshot of this folder; None where there is none.

        Raises TrainingError for a file that is damaged or of another version.
        """
        path = snapshot_path(folder)
        if not present(path):
            return None
        try:
            with open_regular(path, TrainingError) as file:
                _check_sums(file)
                # weights_only: a file may hold tensors and plain Python values, and no code.
                content = torch.load(file, map_location="cpu", weights_only=True)
        except TrainingError as error:
            raise TrainingError(f"{error} Delete it to start again.") from error
        # A damaged file can raise any exception, from IndexError to struct.error.
        except Exception as error:
            # torch's message is long, and advises to load the file without this protection.
            plain = isinstance(error, OSError | zipfile.BadZipFile)
            reason = str(error) if plain else type(error).__name__
            raise TrainingError(
                f"{path}: the snapshot cannot be read ({reason}). Delete it to start again."
            ) from error
        wanted = {"format", *(each.name for each in fields(cls))}
        if (
            not isinstance(content, dict)
            or content.get("format") != _FORMAT
            or set(content) != wanted
        ):
            raise TrainingError(
                f"{path}: not a snapshot of this version of minibert. Delete it to start again."
            )
        del content["format"]
        return cls(**content)


def _check_sums(file: IO[bytes]) -> None:
    # torch loads a damaged tensor without an error, although the file has checksums.
    with zipfile.ZipFile(file) as archive:
        if name := archive.testzip():
            raise zipfile.BadZipFile(f"{name} is damaged")
    file.seek(0)


def _reason(error: BaseException) -> str:
    """What the disk said, also where torch raised an error of its own after that."""
    found: BaseException | None = error
    while found is not None and not getattr(found, "strerror", None):
        found = found.__context__
    return getattr(found, "strerror", None) or str(error).partition("\n")[0]


def snapshot_path(folder: Path) -> Path:
    """The path of the snapshot of a run in this folder."""
    return folder / ".training" / "snapshot.pt"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is never left half-written."""
    try:
        with replacing(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"{path}: could not be written ({_reason(error)}). Once it can be, give the same "
            "command again to resume."
        ) from error


def check_writable(folder: Path) -> None:
    """Make the folder. Raises TrainingError where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written to ({_reason(error)}).") from error
