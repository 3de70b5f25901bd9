"""The result of a survey: read by name in Python; Parquet tables and a manifest in a folder.

measures.parquet           one line a measure, layer and head
examples.parquet           the best documents of each
distance_profile.parquet   one line a layer, head and offset
manifest.json              the model, the corpus, the options, and what was left out
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert.errors import SurveyError, how_to_install
from minibert.survey.runs import read_manifest, write_json
from minibert.survey.sums import BEST, Sums
from minibert.untrusted import Json
from minibert.writing import replacing

Floats = npt.NDArray[np.float64]

MEASURES, EXAMPLES, PROFILE = "measures.parquet", "examples.parquet", "distance_profile.parquet"
MANIFEST, PART = "manifest.json", "unfinished.npz"
#: The share of such intervals that hold the true mean.
LEVEL = 0.95

# So fine that the quantile of 1 degree of freedom, 12.706, is right to five digits.
_STEPS = 100_001


class Interval(NamedTuple):
    """A mean, and the lower and upper end of its confidence interval; arrays of one shape."""

    mean: Floats
    low: Floats
    high: Floats


def layer_intervals(counts: npt.NDArray[np.int64], total: Floats, squares: Floats) -> Interval:
    """The mean of documents and its 95 % interval, from Σ x and Σ x², (layer, ...).

    `counts` gives for each layer the documents that count: a layer with a window may see no key of
    a kind where another layer does. The interval is mean ± t·s/√count, where t is Student's
    quantile of count - 1 degrees of freedom and s² the variance with count - 1 in the denominator.
    The mean is
    nan without documents; the ends are nan with fewer than two, because one document says nothing
    about others. Shares of attention are not cut to 0 and 1 here, but where they are shown.

    Source: Student 1908, "The Probable Error of a Mean".
    """
    quantiles = [student_quantile(n - 1) if n > 1 else np.nan for n in counts.tolist()]
    axes = (-1, *[1] * (total.ndim - 1))
    count, others = (np.where(n > 0, n, np.nan).reshape(axes) for n in (counts, counts - 1))
    mean = total / count
    # Rounding may leave a variance of 0 a little below it.
    variance = np.maximum(squares - count * mean**2, 0.0) / others
    half = np.array(quantiles).reshape(axes) * np.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


@cache
def student_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t for which |T| <= t with probability `level`, of Student's distribution.

    With T = √degrees · tan θ the density of θ is proportional to cos(θ)^(degrees - 1) between -π/2
    and π/2, which is summed up here by the trapezoid rule.
    """
    angle = np.linspace(0.0, np.pi / 2, _STEPS)
    density = np.cos(angle) ** (degrees - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(degrees) * np.tan(np.interp(level, share / share[-1], angle)))


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
    """The measures of every head, over a corpus.

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
        size = f"{self.n_layers} layers x {self.n_heads} heads, {len(self.names)} measures"
        return f"Survey({size}: {', '.join(self.names)})"

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
        """(layer, head): the mean over documents, or over all rows with weight="row"; nan if empty.

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

        Student's interval (`layer_intervals`); nan where fewer than two documents count.
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
            raise SurveyError(f"measure {measure!r}: not here; there are {', '.join(self.names)}.")
        return self.names.index(measure)

    def write(self, folder: str | Path) -> None:
        """Write the tables and the manifest, each of them whole or not at all."""
        _, files = parquet()
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name, table in self._tables().items():
            with replacing(path / name) as fresh:
                files.write_table(table, fresh)
        write_json(path / MANIFEST, self.manifest)

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
        """Read the survey of a folder; the numbers are bit-identical.

        Raises SurveyError where the folder has no finished survey.
        """
        path = Path(folder)
        manifest = read_manifest(path / MANIFEST)
        _, files = parquet()
        try:
            found = {
                name: files.read_table(path / name).to_pydict()
                for name in (MEASURES, EXAMPLES, PROFILE)
            }
        except Exception as error:  # pyarrow raises errors of many families
            raise SurveyError(f"{path}: its tables cannot be read ({error}).") from error
        return cls(*_sums_of(found), manifest)


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
