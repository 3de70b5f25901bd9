"""What `collect` wrote, read back: mapped arrays, and the texts beside them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError
from minibert.survey.documents import Document
from minibert.untrusted import Json, guarded, open_regular, present, read_json

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Collected:
    """The values of a pass for every token of a corpus.

    >>> collected = Collected.read("vectors")  # doctest: +SKIP
    >>> collected.values("resid_post", 3)[collected.rows(7)]  # doctest: +SKIP

    folder     where it lies
    manifest   what was collected, of what, by which model
    starts     the token with which each text begins, and at the end the number of tokens

    For each token, mapped:

    tokens     its id in the model's vocabulary
    segments   its token type: 1 in the second text of a pair, where the model has it
    words      the number of its word within its text, of a text given as words that of the given
               word; -1 for special ones
    spans      (token, 2): the characters of its text, or of the words with a space between each
               two; -1 for tokens that stand for no characters
    positions  its position in the window that the model saw
    """

    folder: Path
    manifest: Json
    starts: Whole = field(repr=False)
    tokens: Whole = field(repr=False)
    segments: Whole = field(repr=False)
    words: Whole = field(repr=False)
    spans: Whole = field(repr=False)
    positions: Whole = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> "Collected":
        """The collection in a folder. Raises SurveyError where it is unfinished or damaged."""
        folder = Path(folder)
        if not present(folder / "manifest.json"):
            unfinished = present(folder / "unfinished.npz")
            raise SurveyError(
                f"{folder}: {'the collection is not finished' if unfinished else 'no collection'}"
                f"{'; run the same command again to go on' if unfinished else ' is there'}."
            )
        manifest = read_json(folder / "manifest.json", SurveyError)
        with guarded(folder / "manifest.json", SurveyError, "is no manifest of collect"):
            n_texts, n_tokens = (manifest["counts"][name] for name in ("texts", "tokens"))
            points = list(manifest["options"]["points"])
        of_tokens = ("token_ids", "segments", "words", "spans", "positions")
        lengths = dict.fromkeys((*of_tokens, *points), n_tokens)
        for name, rows in {**lengths, "starts": n_texts + 1, "text_starts": n_texts + 1}.items():
            found = len(mapped(folder, name))
            if found != rows:
                raise SurveyError(
                    f"{folder / name}.npy has {found} rows, and manifest.json says {rows}: the "
                    "folder is damaged. Collect again."
                )
        return cls(folder, manifest, *(mapped(folder, name) for name in ("starts", *of_tokens)))

    def __len__(self) -> int:
        """The number of texts."""
        return int(self.manifest["counts"]["texts"])

    @property
    def points(self) -> tuple[str, ...]:
        """The points that were collected, as their files are named: "resid_post-3", "z-3-5"."""
        return tuple(self.manifest["options"]["points"])

    def values(self, name: str, layer: int | None = None, head: int | None = None) -> Floats:
        """The values of a point, mapped: (token, ...). Raises SurveyError where it is absent.

        (token, d_model) of a stream, (token, d_head) of one head, (token, head, d_head) of all.
        """
        point = "-".join(str(part) for part in (name, layer, head) if part is not None)
        if point in self.points:
            return self.array(point)
        if head is not None and f"{name}-{layer}" in self.points:
            whole = self.array(f"{name}-{layer}")
            if 0 <= head < whole.shape[1]:
                return whole[:, head]
        raise SurveyError(
            f"{self.folder}: {point} was not collected; there are {', '.join(self.points)}."
        )

    def rows(self, index: int) -> slice:
        """The tokens of a text: a slice of every array."""
        index = self._index(index)
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def text(self, index: int) -> Document:
        """The text as it was given."""
        index = self._index(index)
        first, end = (int(place) for place in self.array("text_starts")[index : index + 2])
        path = self.folder / "texts.jsonl"
        with open_regular(path, SurveyError) as file, guarded(f"{path}, text {index}", SurveyError):
            file.seek(first)
            about = json.loads(file.read(end - first))
            # JSON has no tuples.
            words, pair = (
                tuple(one) if isinstance(one, list) else one
                for one in (about["words"], about["pair"])
            )
            return Document(about["id"], about["text"], words, pair)

    def word_means(
        self,
        index: int,
        name: str,
        layer: int | None = None,
        head: int | None = None,
        *,
        segment: int = 0,
    ) -> Floats:
        """(word, ...): for each word of a text the mean over its tokens, in float64.

        Words that gave no token are NaN. `segment` 1 is the second text of a pair.
        """
        rows = self.rows(index)
        numbers = np.where(self.segments[rows] == segment, self.words[rows], -1)
        chosen = numbers >= 0
        values = np.asarray(self.values(name, layer, head)[rows][chosen], np.float64)
        text = self.text(index)
        given = text.pair if segment else text.words
        found = int(numbers.max(initial=-1)) + 1
        n_words = len(given) if isinstance(given, tuple) else found
        sums = np.zeros((n_words, *values.shape[1:]))
        np.add.at(sums, numbers[chosen], values)
        counts = np.bincount(numbers[chosen], minlength=n_words).astype(np.float64)
        counts[counts == 0] = np.nan
        return sums / counts.reshape(-1, *[1] * (values.ndim - 1))

    def _index(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise SurveyError(f"text {index}: there are {len(self)} texts.")
        return index % len(self)

    def array(self, name: str) -> Any:
        """The array in the file of that name, mapped."""
        return mapped(self.folder, name)


def mapped(folder: Path, name: str) -> Any:
    """The array in a file of a collection, mapped. Raises SurveyError where it cannot be read."""
    path = folder / f"{name}.npy"
    open_regular(path, SurveyError).close()
    with guarded(path, SurveyError):
        return np.load(path, mmap_mode="r", allow_pickle=False)
