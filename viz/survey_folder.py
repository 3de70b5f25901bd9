"""The report in the folder of a survey: its tables read, its examples looked up in the corpus."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from minibert.errors import SurveyError
from minibert.model import Model
from minibert.survey.findings import findings
from minibert.survey.formats import Document
from minibert.survey.parts import hash_documents
from minibert.survey.segments import in_pairs
from minibert.survey.tables import Survey
from minibert.survey.windows import windows
from minibert.trace.identity import identity_of
from minibert.viz.survey_pages import wanted_examples, write_example_pages
from minibert.viz.survey_report import survey_report

__all__ = ["check_surveyed", "write_survey_report"]


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

    def surveyed() -> Iterator[Document]:
        return _as_surveyed(survey, documents())

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


def check_surveyed(survey: Survey, model: Model, documents: Iterable[Document]) -> None:
    """Raise SurveyError unless the survey is of this model and of these documents.

    The documents are read to their end, or as far as the survey did.
    """
    theirs, ours = survey.manifest["model"], json.loads(json.dumps(identity_of(model)))
    # A model has as many names as there are ways to it.
    if differing := [name for name in ours if name != "name" and ours[name] != theirs.get(name)]:
        raise SurveyError(
            f"The survey is of the model {theirs['name']!r}, and {model.name!r} is another: "
            f"{' and '.join(differing)} differ. Name the model that was surveyed with --model."
        )
    corpus = ""
    for window in windows(_as_surveyed(survey, documents)):
        corpus = hash_documents(corpus, window.documents)
    if corpus != survey.manifest["corpus"]["sha256"]:
        raise SurveyError(
            "The documents are not those that were surveyed. Give the same files, and the same "
            "options for reading them (as --unit, --field or --shortest)."
        )


def _as_surveyed(survey: Survey, documents: Iterable[Document]) -> Iterator[Document]:
    """The documents in pairs and as far as the survey took them."""
    options = survey.manifest.get("options", {})
    return islice(in_pairs(documents) if options.get("pairs") else documents, options.get("limit"))
