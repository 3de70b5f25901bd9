"""The folder of a survey: what is done while it runs, and the tables when it has ended."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minibert.errors import SurveyError
from minibert.survey.parts import PART, Part
from minibert.survey.tables import MANIFEST, Survey, parquet
from minibert.training.lock import folder_locked

__all__ = ["OutputFolder", "opened"]


class OutputFolder:
    """Keeps what a survey has measured; where no folder is named it keeps nothing.

    `about` is what the manifest says before anything is measured: a run goes on with what a run of
    the same model and options has left.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any], *, resume: bool) -> None:
        self.folder, self._resume = folder, resume
        self._identity = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def part(self) -> Part | None:
        """What an earlier run has measured, where there is one to go on with."""
        if self.folder is None or not self._resume:
            return None
        return Part.read(self.folder, self._identity)

    def keep(self, part: Part) -> None:
        """Write what is measured so far."""
        if self.folder is not None:
            part.write(self.folder, self._identity)

    def finish(self, result: Survey) -> None:
        """Write the tables, and remove what was kept for them."""
        if self.folder is None:
            return
        try:
            result.write(self.folder)
        except OSError as error:
            raise SurveyError(
                f"{self.folder}: the tables cannot be written ({error.strerror or error}). What "
                "was measured is kept: make room and run the same again."
            ) from error
        for name in (PART, f".{PART}"):
            (self.folder / name).unlink(missing_ok=True)


@contextmanager
def opened(
    output: str | Path | None, about: Mapping[str, Any], *, resume: bool
) -> Iterator[OutputFolder]:
    """The folder, where one is named: writable, of this run alone, without a finished survey."""
    if output is None:
        yield OutputFolder(None, about, resume=resume)
        return
    folder = Path(output)
    parquet()
    if (folder / MANIFEST).exists() and resume:
        raise SurveyError(
            f"{folder}: has a finished survey. Read it with Survey.read, name another folder, or "
            "replace it with resume=False."
        )
    with folder_locked(folder, SurveyError, file=".lock", work="surveying"):
        try:
            if not resume:
                # First of all: what is replaced is not to be taken for finished.
                for name in (MANIFEST, PART):
                    (folder / name).unlink(missing_ok=True)
            (folder / f".{PART}").touch()
        except OSError as error:
            raise SurveyError(f"{folder}: cannot be written ({error}).") from error
        yield OutputFolder(folder, about, resume=resume)
