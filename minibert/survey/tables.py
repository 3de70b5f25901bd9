"""The result of a survey: read by name in Python; Parquet tables and a manifest in a folder.

measures.parquet           one line a measure, layer and head
examples.parquet           the best documents of each
distance_profile.parquet   one line a layer, head and offset
manifest.json              the model, the corpus, the options, and what was left out

While a survey runs, the same folder holds what is measured so far as one file, replaced whole after
each window: a run that ends at any moment leaves the last whole one behind.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError, how_to_install
from minibert.survey.intervals import layer_intervals
from minibert.survey.sums import BEST, Measured, Sums
from minibert.survey.windows import Read, folder_locked
from minibert.untrusted import Json
from minibert.writing import replacing


def versions() -> dict[str, str]:
    """Of minibert, Python and the packages that numbers come from, by name."""
    packages = ("numpy", "tokenizers", "torch")
    return {
        # Not of the installed package: a checkout may run without being installed.
        "minibert": str(sys.modules["minibert"].__version__),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


Floats = npt.NDArray[np.float64]

MEASURES, EXAMPLES, PROFILE = "measures.parquet", "examples.parquet", "distance_profile.parquet"
MANIFEST, PART = "manifest.json", "unfinished.npz"
#: What `survey_reasons` writes into the same folder: tables, manifest, and what is done so far.
REASONS = ("why.parquet", "moved.parquet", "why.json", "unfinished_why.npz")


def parquet() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet. Raises SurveyError where they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SurveyError(
            f"the tables of a survey are Parquet files, and pyarrow is not installed: "
            f"{how_to_install('survey')}. See docs/install.md#extras"
        ) from error
    return pyarrow, pyarrow.parquet


@dataclass(frozen=True)
class Example:
    """A document in which a head scores high: its id, and the mean over its rows."""

    document: str
    score: float


@dataclass(frozen=True, eq=False)
class Survey:
    """What every head does, over a corpus.

    names      the measures, in the order of the tables
    sums       the sums over all documents
    documents  the ids of the documents that are examples, by their number in reading order
    manifest   how it was made, as manifest.json says it
    """

    names: tuple[str, ...]
    sums: Sums
    documents: Mapping[int, str]
    manifest: Json

    def __repr__(self) -> str:
        return (
            f"Survey({self.n_layers} layers x {self.n_heads} heads, {len(self.names)} measures: "
            f"{', '.join(self.names)})"
        )

    @property
    def n_layers(self) -> int:
        """The layers of the model."""
        return int(self.sums.total.shape[1])

    @property
    def n_heads(self) -> int:
        """The heads of a layer."""
        return int(self.sums.total.shape[2])

    @property
    def profile(self) -> Floats:
        """(layer, head, offset): the mass at each offset, a mean over documents.

        The middle is offset 0. As in Clark et al. 2019 a document's number is the sum of the
        diagonal divided by its rows.
        """
        return self.sums.profile / max(1, int(self.sums.documents.max(initial=0)))

    def count(self, measure: str) -> int:
        """The documents that the measure applies to."""
        return int(self.sums.documents[self._number(measure)])

    def table(self, measure: str, *, weight: str = "document") -> Floats:
        """(layer, head): the mean over documents, or with weight="row" over all rows; nan for none.

        Raises SurveyError for a measure or weight that is not known.
        """
        number = self._number(measure)
        if weight not in ("document", "row"):
            raise SurveyError(f'weight={weight!r}: expected "document" or "row".')
        of_documents = weight == "document"
        count = (self.sums.documents if of_documents else self.sums.rows)[number]
        total = (self.sums.total if of_documents else self.sums.row_total)[number]
        return np.asarray(total / np.where(count, count, np.nan))

    def interval(self, measure: str) -> Floats:
        """(layer, head, 2): the 95 % confidence interval of the mean over documents.

        Student's interval (`intervals.layer_intervals`); nan where fewer than two documents count.
        """
        number = self._number(measure)
        sums = self.sums
        counts = np.full(self.n_layers, sums.documents[number])
        found = layer_intervals(counts, sums.total[number], sums.squares[number])
        return np.stack([found.low, found.high], axis=-1)

    def examples(self, measure: str, layer: int, head: int) -> tuple[Example, ...]:
        """The documents with the largest means, the largest first, at most three."""
        where = (self._number(measure), layer, head)
        found = zip(self.sums.best[where], self.sums.best_document[where], strict=True)
        return tuple(
            Example(self.documents[int(one)], float(score)) for score, one in found if one >= 0
        )

    def _number(self, measure: str) -> int:
        if measure not in self.names:
            raise SurveyError(
                f"measure {measure!r}: not in this survey; it has {', '.join(self.names)}."
            )
        return self.names.index(measure)

    def write(self, folder: str | Path) -> None:
        """Write the tables and the manifest, each of them whole or not at all."""
        _, files = parquet()
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name, table in self._tables().items():
            with replacing(path / name) as fresh:
                files.write_table(table, fresh)
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False)
        with replacing(path / MANIFEST) as fresh:
            fresh.write_text(f"{text}\n", encoding="utf-8")

    def _tables(self) -> dict[str, object]:
        arrow, _ = parquet()
        sums, size = self.sums, self.sums.total.shape
        measure, layer, head = (axis.ravel() for axis in np.indices(size))
        names = np.array(self.names)
        low_high = np.stack([self.interval(name) for name in self.names])
        columns = {
            "measure": names[measure],
            "layer": layer,
            "head": head,
            "mean": np.stack([self.table(name) for name in self.names]).ravel(),
            "low": low_high[..., 0].ravel(),
            "high": low_high[..., 1].ravel(),
            "documents": sums.documents[measure],
            "row_mean": np.stack([self.table(n, weight="row") for n in self.names]).ravel(),
            "rows": sums.rows[measure],
            "total": sums.total.ravel(),
            "squares": sums.squares.ravel(),
            "row_total": sums.row_total.ravel(),
        }
        measure, layer, head, rank = np.nonzero(sums.best_document >= 0)
        numbers = sums.best_document[measure, layer, head, rank]
        examples = {
            "measure": names[measure],
            "layer": layer,
            "head": head,
            "rank": rank,
            "score": sums.best[measure, layer, head, rank],
            "document": np.array([self.documents[int(one)] for one in numbers], dtype=str),
            "number": numbers,
        }
        layer, head, offset = (axis.ravel() for axis in np.indices(sums.profile.shape))
        profile = {
            "layer": layer,
            "head": head,
            "offset": offset - sums.profile.shape[-1] // 2,
            "mass": self.profile.ravel(),
            "total": sums.profile.ravel(),
        }
        tables = {MEASURES: columns, EXAMPLES: examples, PROFILE: profile}
        return {file: arrow.table(table) for file, table in tables.items()}

    @classmethod
    def read(cls, folder: str | Path) -> "Survey":
        """The survey of a folder, the same numbers to the last bit.

        Raises SurveyError where the folder has no finished survey.
        """
        path = Path(folder)
        manifest = _manifest(path)
        _, files = parquet()
        try:
            found = {
                name: files.read_table(path / name).to_pydict()
                for name in (MEASURES, EXAMPLES, PROFILE)
            }
        except Exception as error:  # pyarrow raises errors of many families
            raise SurveyError(f"{path}: its tables cannot be read ({error}).") from error
        return cls(*_sums_of(found), manifest)


def _manifest(path: Path) -> dict[str, object]:
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SurveyError(
            f"{path}: no finished survey ({MANIFEST} cannot be read: {error}). Write one with "
            "minibert survey CORPUS -o DIR; a run that was interrupted goes on in the same way."
        ) from error
    return dict(found)


def _sums_of(
    found: Mapping[str, Mapping[str, Sequence[Any]]],
) -> tuple[tuple[str, ...], Sums, dict[int, str]]:
    table, examples, profile = found[MEASURES], found[EXAMPLES], found[PROFILE]
    names = tuple(dict.fromkeys(table["measure"]))
    size = (len(names), 1 + max(table["layer"]), 1 + max(table["head"]))
    numbers = {name: np.array(table[name]).reshape(size) for name in ("total", "squares")}
    best = np.full((*size, BEST), -np.inf)
    best_document = np.full((*size, BEST), -1, dtype=np.int64)
    order = np.array([names.index(name) for name in examples["measure"]], dtype=np.int64)
    where = tuple(np.array(examples[name], dtype=np.int64) for name in ("layer", "head", "rank"))
    best[(order, *where)] = examples["score"]
    best_document[(order, *where)] = examples["number"]
    sums = Sums(
        rows=np.array(table["rows"]).reshape(size)[:, 0, 0],
        row_total=np.array(table["row_total"]).reshape(size),
        documents=np.array(table["documents"]).reshape(size)[:, 0, 0],
        best=best,
        best_document=best_document,
        profile=np.array(profile["total"]).reshape(*size[1:], -1),
        **numbers,
    )
    return names, sums, dict(zip(examples["number"], examples["document"], strict=True))


class OutputFolder:
    """Keeps what a survey has measured; where no folder is named it keeps nothing.

    `about` is what the manifest says before anything is measured: a run goes on with what a run of
    the same model and options has left.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, object], *, resume: bool) -> None:
        self.folder, self._about, self._resume = folder, about, resume
        self._identity = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def finished(self) -> Survey | None:
        """The survey of an earlier run that came to its end, where there is one.

        Raises SurveyError for one of another model or other options.
        """
        if self.folder is None or not (self.folder / MANIFEST).exists():
            return None
        found = Survey.read(self.folder)
        mine = json.loads(json.dumps(self._about))
        # A model has as many names as there are ways to it.
        for one in (mine, there := dict(found.manifest)):
            one["model"] = {**one["model"], "name": ""}
        if other := [name for name in ("model", "options") if mine[name] != there.get(name)]:
            raise SurveyError(
                f"{self.folder}: has a finished survey with another {' and other '.join(other)}. "
                "Read it with Survey.read, name another folder, or replace it with resume=False."
            )
        return found

    def measured(self) -> Measured | None:
        """What an earlier run has measured, where there is one to go on with.

        Raises SurveyError for a file that is damaged, or of another model or other options.
        """
        if self.folder is None or not self._resume:
            return None
        path = self.folder / PART
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                told = json.loads(str(found["told"]))
                sums = Sums(**{one.name: found[one.name] for one in fields(Sums)})
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged zip file raises errors of many families
            raise SurveyError(
                f"{path}: cannot be read ({error}). Remove it, or begin anew with resume=False."
            ) from error
        if told.pop("identity") != self._identity:
            raise SurveyError(
                f"{path}: belongs to a survey with another model or other options. Run it with "
                "those, or begin anew with resume=False."
            )
        told["ids"] = {int(n): name for n, name in told["ids"].items()}
        told["wrong"] = tuple((place, reason) for place, reason in told["wrong"])
        return Measured(sums, **told | {"read": Read(**told["read"])})

    def keep(self, measured: Measured) -> None:
        """Replace the file of what is measured so far as a whole."""
        if self.folder is None:
            return
        own = {name: one for name, one in vars(measured).items() if name != "sums"}
        own |= {"identity": self._identity, "read": vars(measured.read)}
        try:
            with replacing(self.folder / PART) as fresh, fresh.open("wb") as file:
                np.savez(file, told=np.array(json.dumps(own)), **vars(measured.sums))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SurveyError(
                f"{self.folder / PART}: cannot be written ({error.strerror or error}). The "
                f"{measured.read.windows - 1} windows before are kept: make room and run it again."
            ) from error

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
        (self.folder / PART).unlink(missing_ok=True)


@contextmanager
def opened(
    output: str | Path | None, about: Mapping[str, object], *, resume: bool
) -> Iterator[OutputFolder]:
    """The folder, where one is named: writable, and of this run alone."""
    if output is None:
        yield OutputFolder(None, about, resume=resume)
        return
    folder = Path(output)
    parquet()
    with folder_locked(folder, "surveying"):
        # First of all: what is replaced is not to be taken for finished.
        for name in () if resume else (MANIFEST, PART, *REASONS):
            (folder / name).unlink(missing_ok=True)
        yield OutputFolder(folder, about, resume=resume)
