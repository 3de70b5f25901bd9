"""A run over a corpus: its windows of documents, and the folder that keeps what is done.

The corpus is read a window at a time, so memory does not depend on its size. After each window the
results so far are kept in one file, which is replaced as a whole: a run that ends at any moment
leaves a complete file. A resumed run reads these windows again, and the hash of their documents
tells whether they are the same. At the end a manifest records the model, corpus and options of the
results.
"""

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from tqdm import tqdm

from minibert.errors import SurveyError
from minibert.survey.documents import Document, Documents, document_of
from minibert.untrusted import Json
from minibert.writing import replacing

#: A window ends with the document that reaches either: about 30,000 tokens.
CHARACTERS, DOCUMENTS = 2**17, 512
#: A file in the folder of a run; it stays there.
LOCK = ".lock"
Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Window:
    """Consecutive documents: the number of the window, and that of its first document."""

    number: int
    first: int
    documents: tuple[Document, ...]


def windows(documents: Iterable[object], *, limit: int | None = None) -> Iterator[Window]:
    """The documents in windows, at most `limit`. Raises SurveyError for what is not a text."""
    named = (document_of(one, number) for number, one in enumerate(documents))
    held: list[Document] = []
    characters = first = number = 0
    for document in islice(named, limit):
        held.append(document)
        characters += _length(document)
        if characters >= CHARACTERS or len(held) == DOCUMENTS:
            yield Window(number, first, tuple(held))
            number, first = number + 1, first + len(held)
            held, characters = [], 0
    if held:
        yield Window(number, first, tuple(held))


def _length(document: Document) -> int:
    texts = (document.text or "", document.words or (), document.pair or "")
    return sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in texts)


@dataclass(frozen=True)
class Read:
    """How many windows of a corpus were read, and the hash of their documents."""

    windows: int = 0
    sha256: str = ""

    def with_window(self, window: Window) -> "Read":
        """This with the next window added: SHA-256 of the hash so far, its ids and its texts."""
        digest = hashlib.sha256(self.sha256.encode())
        for one in window.documents:
            digest.update(json.dumps([one.id, one.text, one.words, one.pair]).encode())
        return Read(self.windows + 1, digest.hexdigest())


def unread(
    documents: Iterable[object], done: Read, *, limit: int | None = None, progress: bool = False
) -> Iterator[Window]:
    """The windows after those that an earlier run has done.

    `progress` shows a bar: by bytes of the files, by documents where it is a list or has a limit.
    Raises SurveyError where the windows that are done have other documents.
    """
    files = documents if isinstance(documents, Documents) and limit is None else None
    bar: tqdm[NoReturn] = tqdm(
        total=limit if files is None else files.n_bytes,
        unit=" documents" if files is None else "B",
        unit_scale=True,
        disable=None if progress else True,
    )
    seen = Read()
    with bar:
        for window in windows(documents, limit=limit):
            if window.number == done.windows:
                if seen != done:
                    raise _others()
                # What an earlier run did costs no time, so the estimate begins here.
                bar.initial, bar.start_t = bar.n, time.time()
            seen = seen.with_window(window)
            if window.number >= done.windows:
                yield window
            bar.update(len(window.documents) if files is None else files.bytes_read - bar.n)
    if seen.windows <= done.windows and seen != done:
        raise _others()


def _others() -> SurveyError:
    return SurveyError(
        "The run in this folder started with other documents: they differ in number, content or "
        "order. Give the same documents, read with the same options (such as unit= or "
        "shortest=), or start over with resume=False."
    )


def told_of(documents: Iterable[object], read: Read) -> dict[str, object]:
    """The manifest's description of a corpus that was read, with its files unless it was a list."""
    about: dict[str, object] = {"sha256": read.sha256}
    if not isinstance(documents, Documents):
        return about
    skipped = [list(one) for one in documents.skipped]
    return {
        **about,
        "files": [path.name for path in documents.files],
        "too_short": documents.n_short,
        "skipped": {"count": documents.n_skipped, "first": skipped},
    }


def versions() -> dict[str, str]:
    """The versions of minibert, Python and the packages that compute the numbers, by name."""
    packages = ("numpy", "tokenizers", "torch")
    return {
        # Not of the installed package: a checkout may run without being installed.
        "minibert": str(sys.modules["minibert"].__version__),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


@contextmanager
def folder_locked(folder: Path) -> Iterator[None]:
    """Make the folder and lock out other runs; remove files that a killed run half wrote.

    The operating system releases the lock when the process ends, so a killed run blocks nobody.
    Raises SurveyError at once where another run holds it or the folder cannot be written to.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise SurveyError(
            f"{folder}: another process is writing into this folder. Wait for it, stop it, or give "
            "another folder."
        ) from None
    except OSError as reason:
        text = f"{folder}: cannot be written to ({reason.strerror or reason})."
        raise SurveyError(text) from reason
    try:
        for left in folder.glob(".*.unfinished"):
            left.unlink()
        yield
    finally:
        lock.release()


class RunFolder:
    """The folder where a run keeps its results; without a name it keeps nothing.

    `about` has the model, options and versions that the numbers depend on, for JSON. `manifest` is
    the file that says them once the run is finished, `part` the one that has what is done so far.
    """

    def __init__(self, folder: Path | None, about: Json, manifest: str, part: str) -> None:
        self.folder, self.manifest, self.part = folder, manifest, part
        # As it is read from a file, where a tuple is a list.
        self.about: Json = json.loads(json.dumps(about))

    def finished(self, documents: Iterable[object], *, limit: int | None = None) -> bool:
        """True where the same run has finished before; the documents are then read to their end.

        Raises SurveyError for a run of another model, other options or other documents.
        """
        if self.folder is None or not (self.folder / self.manifest).exists():
            return False
        path = self.folder / self.manifest
        found, seen = read_manifest(path), Read()
        self._check(path, found, ("model", "options"))
        for window in windows(documents, limit=limit):
            seen = seen.with_window(window)
        if seen.sha256 != found["corpus"]["sha256"]:
            raise _others()
        return True

    def kept(self) -> tuple[Json, Arrays] | None:
        """The results of an earlier run that can be continued, if there is one.

        Raises SurveyError for a file that is damaged, or of another model or other options.
        """
        if self.folder is None or not (self.folder / self.part).exists():
            return None
        path = self.folder / self.part
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            told = json.loads(str(arrays.pop("told")))
            about = told.pop("about")
        except Exception as error:  # a damaged zip file raises errors of many families
            raise SurveyError(
                f"{path}: cannot be read ({error}). Remove it, or start over with resume=False."
            ) from error
        self._check(path, about, ("model", "options", "versions"))
        return told, arrays

    def _check(self, path: Path, there: Json, parts: tuple[str, ...]) -> None:
        other = []
        for part in parts:
            # A model has as many names as there are ways to it.
            mine, theirs = ({**one[part], "name": ""} for one in (self.about, there))
            if names := [n for n in mine | theirs if mine.get(n) != theirs.get(n)]:
                is_model = part == "model"
                other.append("another model" if is_model else f"other {part} ({', '.join(names)})")
        if other:
            raise SurveyError(
                f"{path}: belongs to a run with {' and '.join(other)}. Run it with those, name "
                "another folder, or start over with resume=False."
            )

    def keep(self, told: Json, arrays: Arrays | None = None) -> None:
        """Replace the file of what is done so far as a whole."""
        if self.folder is None:
            return
        text = json.dumps({**told, "about": self.about})
        with self.writing(), replacing(self.folder / self.part) as fresh, fresh.open("wb") as file:
            np.savez(file, allow_pickle=False, told=np.array(text), **(arrays or {}))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, write: Callable[[Path], None]) -> None:
        """Write the results and the manifest to the folder, and remove the kept file."""
        if self.folder is None:
            return
        with self.writing():
            write(self.folder)
            (self.folder / self.part).unlink(missing_ok=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an error of the disk inside the block into a SurveyError that says what to do."""
        try:
            yield
        except OSError as error:
            raise SurveyError(
                f"{self.folder}: cannot be written to ({error.strerror or error}). What was done "
                "is kept: make room, or give the folder its rights, and run the same again."
            ) from error


@contextmanager
def opened(
    output: str | Path | None,
    about: Json,
    manifest: str,
    part: str,
    *,
    resume: bool,
    belonging: tuple[str, ...] = (),
) -> Iterator[RunFolder]:
    """The folder, where one is named: writable, and locked for this run.

    Without `resume` what an earlier run left is removed, with the files named in `belonging`, which
    may have stars.
    """
    if output is None:
        yield RunFolder(None, about, manifest, part)
        return
    folder = Path(output)
    with folder_locked(folder):
        if not resume and any((folder / name).exists() for name in (manifest, part)):
            # First of all: what is replaced is not to be taken for finished.
            for name in (manifest, part, *belonging):
                for path in folder.glob(name):
                    path.unlink()
        yield RunFolder(folder, about, manifest, part)


def write_json(path: Path, content: Json) -> None:
    """Write a file of JSON whole or not at all."""
    with replacing(path) as fresh:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        fresh.write_text(f"{text}\n", encoding="utf-8")


def read_manifest(path: Path) -> Json:
    """The manifest of a finished run. Raises SurveyError where there is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SurveyError(
            f"{path.parent}: no finished run ({path.name} cannot be read: {error}). To "
            "resume an interrupted run, give the same call or command again."
        ) from error
