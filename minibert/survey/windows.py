"""A corpus in windows of documents: the steps of a run that may be interrupted.

The corpus is read a window at a time, so that memory does not depend on its size. What the windows
gave is kept in the folder of a run after each; when the run goes on it reads over these again, and
the hash of their documents says whether they are the same.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout
from tqdm import tqdm

from minibert.errors import SurveyError
from minibert.survey.documents import Document, Documents, document_of

#: A window ends with the document that reaches either: about 30,000 tokens.
CHARACTERS, DOCUMENTS = 2**17, 512
#: Documents that could not be read are named up to here, and counted beyond.
MOST_NAMED = 100
#: A file in the folder of a run; it stays there.
LOCK = ".lock"


@dataclass(frozen=True)
class Window:
    """Documents in a row: the number of the window, and that of its first document."""

    number: int
    first: int
    documents: tuple[Document, ...]


def windows(documents: Iterable[object], *, limit: int | None = None) -> Iterator[Window]:
    """The documents in windows, at most `limit`. Raises SurveyError for what is no text."""
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
        """The same with the next window: SHA-256 of the hash so far and its ids and texts."""
        digest = hashlib.sha256(self.sha256.encode())
        for one in window.documents:
            digest.update(json.dumps([one.id, one.text, one.words, one.pair]).encode())
        return Read(self.windows + 1, digest.hexdigest())


def unread(all_windows: Iterable[Window], done: Read, bar: "Bar | None" = None) -> Iterator[Window]:
    """The windows after those that an earlier run has done.

    Raises SurveyError where these have other documents.
    """
    seen = Read()
    for window in all_windows:
        if window.number < done.windows:
            seen = seen.with_window(window)
            if bar is not None:
                bar.skip()
            continue
        if seen != done:
            raise _others()
        if bar is not None:
            bar.begin()
        yield window
        seen = done = seen.with_window(window)
    if seen != done:
        raise _others()


def check_same(all_windows: Iterable[Window], sha256: str) -> None:
    """Raise SurveyError unless a finished run was over these windows. They are read to the end."""
    seen = Read()
    for window in all_windows:
        seen = seen.with_window(window)
    if seen.sha256 != sha256:
        raise _others()


def _others() -> SurveyError:
    return SurveyError(
        "The documents are not those that the run in this folder began with: they are not the same "
        "in number, content or order. Give those, read with the same options (as unit= or "
        "shortest=), or begin anew with resume=False."
    )


def files_told(documents: Iterable[object]) -> dict[str, object]:
    """What a manifest says of the files of a corpus; nothing where it is a list."""
    if not isinstance(documents, Documents):
        return {}
    skipped = [list(one) for one in documents.skipped]
    return {
        "files": [path.name for path in documents.files],
        "too_short": documents.n_short,
        "skipped": {"count": documents.n_skipped, "first": skipped},
    }


@contextmanager
def folder_locked(folder: Path, work: str) -> Iterator[None]:
    """Make the folder, and keep other runs out of it; what a killed run half wrote is removed.

    The operating system gives the lock back when the process ends, so one that was killed holds
    nobody up. Raises SurveyError at once where another run has it, and where the folder cannot be
    written to. `work` is what the message calls the run.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise SurveyError(
            f"{folder}: another process is {work} into this folder. Wait for it, stop it, or give "
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


class Bar:
    """A bar by bytes of the corpus; by documents where it is a list or has a limit.

    The estimate is from the windows that this run measured: what an earlier run did costs no time.
    """

    def __init__(
        self, documents: Iterable[object], limit: int | None = None, *, shown: bool
    ) -> None:
        self._files = documents if isinstance(documents, Documents) and limit is None else None
        self._total = limit if self._files is None else self._files.n_bytes
        self._shown, self._skipped = shown, 0
        self._bar: tqdm[NoReturn] | None = None

    def close(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.close()

    def skip(self) -> None:
        """A window was measured by an earlier run."""
        self._skipped = 0 if self._files is None else self._files.bytes_read

    def begin(self) -> None:
        """The first window that is new was read."""
        if self._bar is None:
            self._bar = tqdm(
                total=self._total, initial=self._skipped,
                unit=" documents" if self._files is None else "B", unit_scale=True,
                disable=None if self._shown else True, mininterval=0,
            )  # fmt: skip

    def show(self, documents: int, tokens: int) -> None:
        """So much was measured by now."""
        if self._bar is not None:
            done = documents if self._files is None else self._files.bytes_read
            self._bar.set_postfix(documents=documents, tokens=tokens, refresh=False)
            self._bar.update(done - self._bar.n)
