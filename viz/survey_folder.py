"""The report in the folder of a survey: its tables read, its examples looked up in the corpus."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from minibert.model import Model
from minibert.survey.findings import findings
from minibert.survey.formats import Document
from minibert.survey.segments import in_pairs
from minibert.survey.tables import Survey
from minibert.viz.survey_pages import wanted_examples, write_example_pages
from minibert.viz.survey_report import survey_report

__all__ = ["write_survey_report"]


def write_survey_report(
    folder: str | Path,
    model: Model,
    documents: Callable[[], Iterable[Document]],
    *,
    sample: int = 200,
    command: str = "",
) -> Path:
    """The path of report.html, now in the folder of a finished survey, and examples.html beside it.

    `documents` opens the corpus that was surveyed; it is read once more for the texts of examples,
    in pairs and as far as the survey did. On its first `sample` documents heads are named and their
    distances measured, which go into the folder as patterns.json and head_distances.parquet; 0
    leaves both out. `command` is what makes the survey again. Raises SurveyError for a folder
    without a finished survey, and MinibertError for files that cannot be written.
    """
    path = Path(folder)
    survey = Survey.read(path)
    options = survey.manifest.get("options", {})

    def surveyed() -> Iterator[Document]:
        found = in_pairs(documents()) if options.get("pairs") else documents()
        return islice(found, options.get("limit"))

    found = findings(model, islice(surveyed(), sample)) if sample else None
    patterns = None if found is None else found.patterns
    if found is not None:
        found.write(path)
    pages = write_example_pages(
        path / "examples.html", wanted_examples(survey, patterns), surveyed(), model
    )
    report = survey_report(
        survey,
        patterns=patterns,
        distances=None if found is None else found.distances,
        pages=pages,
        command=command,
    )
    return report.save(path / "report.html")
