"""What `collect` wrote, read back: mapped arrays, and the texts beside them."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError
from minibert.survey.documents import Document
from minibert.untrusted import Json, guarded, open_regular, present, read_json

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Collected:
    """The values of a pass for every token of a corpus.

    >>> collected = Collected.read("vectors")  # doctest: +SKIP
    >>> collected.values("resid_post", 3)[collected.rows(7)]  # doctest: +SKIP

    folder     where it lies
    manifest   what was collected, of what, by which model
    """

    folder: Path
    manifest: Json

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
        collected = cls(folder, read_json(folder / "manifest.json", SurveyError))
        with guarded(folder / "manifest.json", SurveyError, "is no manifest of collect"):
            counts = collected.manifest["counts"]
            n_texts, n_tokens = counts["texts"], counts["tokens"]
            names = list(collected.points)
        lengths = dict.fromkeys(("token_ids", "segments", "words", "spans", *names), n_tokens)
        for name, rows in {**lengths, "starts": n_texts + 1, "text_starts": n_texts + 1}.items():
            found = len(collected.array(name))
            if found != rows:
                raise SurveyError(
                    f"{folder / name}.npy has {found} rows, and manifest.json says {rows}: the "
                    "folder is damaged. Collect again."
                )
        return collected

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

    @cached_property
    def starts(self) -> Whole:
        """The token with which each text begins, and at the end the number of tokens."""
        return self.array("starts")

    @cached_property
    def tokens(self) -> Whole:
        """The id of each token in the model's vocabulary."""
        return self.array("token_ids")

    @cached_property
    def words(self) -> Whole:
        """The number of the word within its text that each token belongs to; -1 for special ones.

        Of a text that was given as words the number of the given word.
        """
        return self.array("words")

    @cached_property
    def segments(self) -> Whole:
        """The token type of each token: 1 in the second text of a pair, where the model has it."""
        return self.array("segments")

    @cached_property
    def spans(self) -> Whole:
        """(token, 2): the characters of its text, or of the words with a space between each two.

        -1 for tokens that stand for no characters.
        """
        return self.array("spans")

    @cached_property
    def positions(self) -> Whole:
        """The position of each token in the window that the model saw."""
        return self.array("positions")

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
        path = self.folder / f"{name}.npy"
        open_regular(path, SurveyError).close()
        with guarded(path, SurveyError):
            return np.load(path, mmap_mode="r", allow_pickle=False)
