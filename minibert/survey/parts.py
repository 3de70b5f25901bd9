"""What a survey has measured so far, in one file that is replaced whole after each window.

The sums of the first windows say everything about them, so the file does not grow with the corpus,
and a run that ends at any moment leaves the last whole one behind.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from minibert.errors import SurveyError
from minibert.survey.formats import Document
from minibert.survey.sums import Sums
from minibert.survey.windows import Measured, Window

__all__ = ["MOST_NAMED", "PART", "Part", "hash_documents"]

PART = "unfinished.npz"
#: Documents that could not be measured are named up to here, and counted beyond.
MOST_NAMED = 100


@dataclass(frozen=True, eq=False)
class Part:
    """The sums of the first windows of a corpus.

    windows     how many they are
    corpus      the hash of their documents
    ids         of the documents that are among the best so far, by number
    documents, segments, tokens, n_wrong, pairs_cut: counts
    wrong       (document, reason) for the first that could not become tokens
    drift       what a narrower dtype changed, by measure; None before it is known
    """

    sums: Sums
    corpus: str
    windows: int = 0
    ids: Mapping[int, str] = field(default_factory=dict)
    documents: int = 0
    segments: int = 0
    tokens: int = 0
    n_wrong: int = 0
    pairs_cut: int = 0
    wrong: tuple[tuple[str, str], ...] = ()
    drift: Mapping[str, float] | None = None

    def with_window(self, window: Window, measured: Measured) -> "Part":
        """The same with the next window."""
        if window.number != self.windows:
            raise AssertionError(f"window {window.number} came behind {self.windows} windows")
        sums = self.sums + measured.sums
        ids = {**self.ids, **measured.ids}
        kept = {int(n) for n in np.unique(sums.best_document) if n >= 0}
        return Part(
            sums,
            hash_documents(self.corpus, window.documents),
            self.windows + 1,
            {n: ids[n] for n in sorted(kept)},
            self.documents + measured.documents,
            self.segments + measured.segments,
            self.tokens + measured.tokens,
            self.n_wrong + len(measured.wrong),
            self.pairs_cut + measured.pairs_cut,
            (*self.wrong, *measured.wrong)[:MOST_NAMED],
            self.drift,
        )

    def write(self, folder: Path, identity: str) -> None:
        """Replace the file of the folder. Raises SurveyError where that cannot be done."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sums"}
        told["ids"] = {str(n): name for n, name in self.ids.items()}
        text = json.dumps({"identity": identity, **told})
        fresh = folder / f".{PART}"
        try:
            with fresh.open("wb") as file:
                np.savez(file, told=np.array(text), **vars(self.sums))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(folder / PART)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise SurveyError(
                f"{folder / PART}: cannot be written ({error.strerror or error}). The "
                f"{self.windows - 1} windows before are kept: make room and run the same again."
            ) from error

    @classmethod
    def read(cls, folder: Path, identity: str) -> "Part | None":
        """What the folder holds; None where there is nothing.

        Raises SurveyError for a file that is damaged, or of another model or other options.
        """
        path = folder / PART
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                told: dict[str, Any] = json.loads(str(found["told"]))
                sums = Sums(**{one.name: found[one.name] for one in fields(Sums)})
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged zip file raises errors of many families
            raise SurveyError(
                f"{path}: cannot be read ({error}). Remove it, or begin anew with resume=False."
            ) from error
        if told.pop("identity") != identity:
            raise SurveyError(
                f"{path}: belongs to a survey with another model or other options. Run it with "
                "those, or begin anew with resume=False."
            )
        told["ids"] = {int(n): name for n, name in told["ids"].items()}
        told["wrong"] = tuple((place, reason) for place, reason in told["wrong"])
        return cls(sums, **told)


def hash_documents(before: str, documents: tuple[Document, ...]) -> str:
    """The SHA-256 of the hash of what came before and of these documents' ids and texts."""
    digest = hashlib.sha256(before.encode())
    for one in documents:
        digest.update(json.dumps([one.id, one.text, one.words, one.pair]).encode())
    return digest.hexdigest()
