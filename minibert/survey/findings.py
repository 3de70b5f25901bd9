"""What a survey's report has beside its tables: the patterns of heads and their distances.

Both need whole rows of attention, which costs more than the sums of a survey, so that they are
measured on the first documents of a corpus.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from minibert.errors import SurveyError, TokenizationError
from minibert.quantities import Int
from minibert.survey.distances import HeadDistances, head_distances
from minibert.survey.document_rows import surveyable, text_parts
from minibert.survey.documents import Document, check_list, document_of
from minibert.survey.live import Given, Surveyable
from minibert.survey.patterns import HeadPatterns, patterns
from minibert.survey.tables import parquet
from minibert.writing import replacing

PATTERNS, DISTANCES = "patterns.json", "head_distances.parquet"


@dataclass(frozen=True, eq=False)
class Findings:
    """The patterns and the distances of a model's heads, over some documents."""

    patterns: HeadPatterns
    distances: HeadDistances

    def write(self, folder: str | Path) -> None:
        """Write both as tables into the folder of a survey, each of them whole or not at all.

        Raises SurveyError where that cannot be done.
        """
        arrow, files = parquet()
        path, of = Path(folder), self.distances
        layer, head = np.divmod(np.arange(len(of.mean)), of.shape[1])
        first, second = np.indices(of.mean.shape).reshape(2, -1)
        columns = {
            "layer_a": layer[first],
            "head_a": head[first],
            "layer_b": layer[second],
            "head_b": head[second],
            "mean": of.mean.ravel(),
            "standard_error": of.standard_error.ravel(),
        }
        text = json.dumps(self.patterns.to_dict(), indent=1)
        try:
            with replacing(path / PATTERNS) as fresh:
                fresh.write_text(f"{text}\n", encoding="utf-8")
            with replacing(path / DISTANCES) as fresh:
                files.write_table(arrow.table(columns), fresh)
        except OSError as error:
            reason = error.strerror or error
            raise SurveyError(f"{path}: patterns cannot be written ({reason}).") from error


def findings(
    model: Given,
    documents: Iterable[Document | str],
    *,
    repeated: Int[Tensor, "draws position"] | None = None,
    stack: str | None = None,
    longest: int | None = None,
    seed: int = 0,
) -> Findings:
    """The patterns and the distances of all heads over these documents.

    `model` and the options are those of `patterns`. Documents that cannot become tokens are left
    out: the survey has said so. Raises SurveyError where none is left, and for an attached model or
    a stack that cannot be surveyed, before a document is read.
    """
    check_list(documents, "documents")
    subject = surveyable(model, stack, longest)
    named = (document_of(one, number) for number, one in enumerate(documents))
    readable = [one for one in named if _is_readable(subject, one, longest)]
    if not readable:
        raise SurveyError("There is no document whose heads can be named.")
    return Findings(
        patterns(subject, readable, repeated=repeated, longest=longest, seed=seed),
        head_distances(subject, readable, longest=longest, seed=seed),
    )


def _is_readable(model: Surveyable, document: Document, longest: int | None) -> bool:
    try:
        return any(text_parts(model, [document], longest=longest))
    except TokenizationError:
        return False
