"""The folder of a collection while it grows: its files, and how far they are complete.

What `progress.json` counts is complete on the disk. A process that is killed leaves more bytes
than that, which the next one cuts off; so the bytes do not depend on interruptions.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError
from minibert.survey.array_files import ArrayFile, close_file
from minibert.survey.packed_pass import TokenizedText
from minibert.untrusted import guarded, read_json

__all__ = ["LOCK", "GrowingCollection", "State"]

LOCK, MANIFEST, PROGRESS, TEXTS = ".lock", "manifest.json", "progress.json", "texts.jsonl"
#: What is known of each token: the type and the shape of one.
INDEX: dict[str, tuple[str, tuple[int, ...]]] = {
    "token_ids": ("int32", ()),
    "segments": ("uint8", ()),
    "words": ("int32", ()),
    "spans": ("int32", (2,)),
    "positions": ("int32", ()),
}
_STARTS = ("starts", "text_starts")
_FORMAT, _MOST_NAMED = 1, 100


@dataclass
class State:
    """How far a collection has come.

    documents   read, whether they have tokens or not; documents_sha256 is the hash of these
    texts, windows, tokens, text_bytes   written
    n_skipped, skipped                   documents without tokens; the first hundred, and why
    """

    documents: int = 0
    documents_sha256: str = ""
    texts: int = 0
    windows: int = 0
    tokens: int = 0
    text_bytes: int = 0
    n_skipped: int = 0
    skipped: list[list[str]] = field(default_factory=list)

    def skip(self, document: str, reason: str) -> None:
        """Count a document that has no tokens."""
        self.n_skipped += 1
        if len(self.skipped) < _MOST_NAMED:
            self.skipped.append([document, reason])


class GrowingCollection:
    """The files of one collection; `state` is how far they are complete.

    Raises SurveyError where the folder holds anything but a collection with these options.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], *, resume: bool) -> None:
        self.folder, self.options = folder, options
        self.state, self.finished = State(), False
        self._arrays: dict[str, ArrayFile] = {}
        self._texts: BufferedRandom | None = None
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            here = set(os.listdir(folder)) - {LOCK}
        name = next((name for name in (MANIFEST, PROGRESS) if name in here), None)
        if name is not None:
            self._take_up(name, resume)
        elif here:
            raise SurveyError(
                f"{folder}: has other files ({', '.join(sorted(here)[:3])}); expected a new or "
                "empty folder."
            )

    def _take_up(self, name: str, resume: bool) -> None:
        path = self.folder / name
        about = read_json(path, SurveyError)
        with guarded(path, SurveyError, "is not of this version of minibert"):
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']}")
            options, state = about["options"], State(**about["counts"])
        if not resume:
            arrays = [f"{one}.npy" for one in (*INDEX, *_STARTS, *map(str, options["points"]))]
            for other in (*arrays, TEXTS, MANIFEST, PROGRESS):
                (self.folder / Path(other).name).unlink(missing_ok=True)
            return
        for key, wanted in self.options.items():
            if options.get(key) != wanted:
                raise SurveyError(
                    f"{self.folder}: holds a collection with {key} {options.get(key)!r:.300}, not "
                    f"{wanted!r:.300}. Choose another folder, or start again with resume=False."
                )
        self.state, self.finished = state, name == MANIFEST

    def open(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Open the files, cut to what is complete; `shapes` are those of one token's values."""
        state = self.state
        with self._writing():
            for name, (dtype, shape) in INDEX.items():
                self._arrays[name] = ArrayFile(self._array(name), dtype, shape, state.tokens)
            for name, shape in shapes.items():
                array = ArrayFile(self._array(name), self.options["dtype"], shape, state.tokens)
                self._arrays[name] = array
            for name in _STARTS:
                array = ArrayFile(self._array(name), "int64", (), state.texts, extra=1)
                self._arrays[name] = array
            path = self.folder / TEXTS
            path.touch()
            self._texts = path.open("r+b")
            if self._texts.seek(0, os.SEEK_END) < state.text_bytes:
                raise OSError(f"{TEXTS} is shorter than what was written")
            self._texts.truncate(state.text_bytes)
            self._texts.seek(state.text_bytes)
        self.save()

    def add(
        self,
        texts: Sequence[TokenizedText],
        values: Mapping[str, npt.NDArray[np.floating[Any]]],
        read: State,
    ) -> None:
        """Write a batch; `read` has what was read and skipped up to its end."""
        state = deepcopy(self.state)
        with self._writing():
            kept = []
            for text in texts:
                rows = _index_rows(text)
                mine = rows.pop("kept") | self.options["special"]
                for name, column in rows.items():
                    self._arrays[name].append(column[mine])
                kept.append(mine)
                state.texts += 1
                state.windows += len(text.windows)
                state.tokens += int(mine.sum())
                state.text_bytes += self._write_text(text)
                self._arrays["starts"].append(np.array([state.tokens]))
                self._arrays["text_starts"].append(np.array([state.text_bytes]))
            every = np.concatenate(kept)
            for name, array in values.items():
                self._arrays[name].append(self._converted(name, array[every]))
        self.state = state
        self.count(read)

    def count(self, read: State) -> None:
        """Take over what was read and skipped."""
        state = self.state
        state.documents, state.documents_sha256 = read.documents, read.documents_sha256
        state.n_skipped, state.skipped = read.n_skipped, list(read.skipped)

    def _write_text(self, text: TokenizedText) -> int:
        about = json.dumps(asdict(text.document), ensure_ascii=False)
        assert self._texts is not None
        # The name of a file, which is in the id, need not be valid UTF-8.
        return self._texts.write(about.encode(errors="surrogatepass") + b"\n")

    def _converted(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            found = values.astype(self.options["dtype"])
        if not np.array_equal(np.isfinite(found), np.isfinite(values)):
            raise SurveyError(
                f"{name}: a value of {np.abs(values).max():.6g} does not fit "
                f"{self.options['dtype']}; store float32."
            )
        return found

    def save(self) -> None:
        """Have what is complete on the disk, and `progress.json` say so."""
        if self._texts is None:
            return
        with self._writing():
            for array in self._arrays.values():
                array.flush()
            self._texts.flush()
            os.fsync(self._texts.fileno())
            self._replace(PROGRESS, {"counts": asdict(self.state)})

    def finish(self, about: Mapping[str, Any]) -> None:
        """Complete the files and write the manifest, `about` in it."""
        self.save()
        state = self.state
        with self._writing():
            for name, array in self._arrays.items():
                array.finish(state.texts if name in _STARTS else state.tokens)
            self._replace(MANIFEST, {"counts": asdict(state), **about})
            (self.folder / PROGRESS).unlink()
        self.finished = True

    def close(self) -> None:
        """Close the files."""
        for file in self._arrays.values():
            file.close()
        if self._texts is not None:
            close_file(self._texts)

    def _array(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def _replace(self, name: str, content: Mapping[str, Any]) -> None:
        path = self.folder / name
        beside = path.with_suffix(".part")
        about = {"format": _FORMAT, "options": self.options, **content}
        with beside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(about, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SurveyError(
                f"{self.folder}: cannot be written to ({error.strerror or error}). What is "
                f"complete is kept ({self.state.texts} texts); make room, or give the folder its "
                "rights, and the same call goes on from there."
            ) from error


def _index_rows(text: TokenizedText) -> dict[str, npt.NDArray[Any]]:
    """What is known of each token of the windows of a text, and which are kept always."""
    places = np.concatenate(text.windows)
    tokens = text.tokens
    spans = np.array([(-1, -1) if span is None else span for span in tokens.spans[0]])
    words = np.array([-1 if word is None else word for word in tokens.words[0]])
    positions = np.concatenate([np.arange(len(window)) for window in text.windows])
    return {
        "token_ids": tokens.ids[0].numpy()[places],
        "segments": tokens.segments[0].numpy()[places],
        "words": words[places],
        "spans": spans[places],
        "positions": positions,
        "kept": spans[places, 0] >= 0,
    }
