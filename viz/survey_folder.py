"""The report in the folder of a survey: its tables read, its examples looked up in the corpus."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from minibert.attached.attach import Attached
from minibert.errors import SurveyError
from minibert.quantities import Int
from minibert.survey.document_rows import surveyable
from minibert.survey.documents import Document, check_list, document_of
from minibert.survey.findings import findings
from minibert.survey.run import identity_of_surveyed
from minibert.survey.segments import in_pairs
from minibert.survey.tables import Survey
from minibert.survey.windows import hash_documents, windows
from minibert.viz.survey_pages import wanted_examples, write_example_pages
from minibert.viz.survey_report import survey_report

if TYPE_CHECKING:
    from minibert.survey.live import Given, Surveyable

    Corpus = Iterable[Document | str]

__all__ = ["check_documents", "write_survey_report"]


def write_survey_report(
    folder: str | Path,
    model: "Given",
    documents: "Corpus | Callable[[], Corpus]",
    *,
    sample: int = 200,
    repeated: Int[Tensor, "draws position"] | None = None,
    command: str = "",
) -> Path:
    """The path of report.html, now in the folder of a finished survey, and examples.html beside it.

    `model` is the one that was surveyed, loaded or attached; of an attached one the folder knows
    the stack. `documents` are those that were surveyed, a list or a function that opens them; they
    are read once more for the texts of examples, in pairs, as far as the survey did and cut as it
    cut them. On the first `sample` of them heads are named and their distances measured, which go
    into the folder as patterns.json and head_distances.parquet; 0 leaves both out. `repeated` is
    that of `minibert.survey.patterns.patterns`. `command` is what makes the survey again.

    Raises SurveyError before anything is measured for a folder without a finished survey and for
    another model, and MinibertError for files that cannot be written.
    """
    path = Path(folder)
    survey = Survey.read(path)
    check_list(documents, "documents")
    if isinstance(documents, Iterator):
        raise SurveyError(
            "documents can be read once, and the report reads them twice: give a list, or a "
            "function that opens them, as lambda: read_documents(path)."
        )
    subject = _surveyed(survey, model)
    longest = survey.manifest.get("options", {}).get("longest")

    def again() -> Iterator[Document]:
        return _as_surveyed(survey, documents() if callable(documents) else documents)

    found = None
    if sample:
        found = findings(subject, islice(again(), sample), repeated=repeated, longest=longest)
        found.write(path)
    patterns = None if found is None else found.patterns
    pages = write_example_pages(
        path / "examples.html", wanted_examples(survey, patterns), again(), subject, longest=longest
    )
    report = survey_report(
        survey,
        patterns=patterns,
        distances=None if found is None else found.distances,
        pages=pages,
        command=command,
    )
    return report.save(path / "report.html")


def _surveyed(survey: Survey, model: "Given") -> "Surveyable":
    """The model as it was surveyed. Raises SurveyError unless it is the one of the survey."""
    theirs = survey.manifest["model"]
    live = "attached" in theirs
    if live != isinstance(model, Attached):
        how = "minibert.attach(hf_model, tokenizer=...)" if live else "minibert.load(...)"
        kind = f"a live {theirs['attached']}" if live else "a model that minibert loaded"
        raise SurveyError(f"The survey is of {kind}, {theirs['name']!r}: give it, as {how} does.")
    stack = theirs["stack"]["name"] if live else None
    subject = surveyable(model, stack, survey.manifest.get("options", {}).get("longest"))
    ours = json.loads(json.dumps(identity_of_surveyed(subject)))
    # A model has as many names as there are ways to it.
    if differing := [name for name in ours if name != "name" and ours[name] != theirs.get(name)]:
        raise SurveyError(
            f"The survey is of the model {theirs['name']!r}, and {subject.name!r} is another: "
            f"{' and '.join(differing)} differ. Give the model that was surveyed, on the command "
            "line with --model."
        )
    return subject


def check_documents(survey: Survey, documents: "Corpus") -> None:
    """Raise SurveyError unless the survey is of these documents.

    They are read to their end, or as far as the survey did.
    """
    corpus = ""
    for window in windows(_as_surveyed(survey, documents)):
        corpus = hash_documents(corpus, window.documents)
    if corpus != survey.manifest["corpus"]["sha256"]:
        raise SurveyError(
            "The documents are not those that were surveyed. Give the same files, and the same "
            "options for reading them (as --unit, --field or --shortest)."
        )


def _as_surveyed(survey: Survey, documents: "Corpus") -> Iterator[Document]:
    """The documents in pairs and as far as the survey took them."""
    options = survey.manifest.get("options", {})
    named = (document_of(one, number) for number, one in enumerate(documents))
    return islice(in_pairs(named) if options.get("pairs") else named, options.get("limit"))
