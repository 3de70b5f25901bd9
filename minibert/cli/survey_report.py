"""`minibert survey-report`: the report of a finished survey, made again."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.corpus_options import (
    Corpus,
    CorpusOptions,
    Encoding,
    Field,
    KindOfFiles,
    OnError,
    PairField,
    Shortest,
    Unit,
    WhenWrong,
)
from minibert.cli.options import ModelName, Offline, Revision, load_model
from minibert.errors import SurveyError
from minibert.terminal import say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.documents import Documents

__all__ = ["PatternDocuments", "survey_report", "write_report"]

PatternDocuments = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Documents on which the report names heads and measures their distances.",
    ),
]


def survey_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of minibert survey.")],
    corpus: Corpus,
    kind: KindOfFiles = None,
    unit: Unit = None,
    field: Field = None,
    pair_field: PairField = None,
    encoding: Encoding = None,
    shortest: Shortest = 1,
    on_error: WhenWrong = OnError.stop,
    pattern_documents: PatternDocuments = 200,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
) -> None:
    """Make the report of a finished survey again; nothing is surveyed again.

    The texts of its examples are in the corpus alone, so CORPUS and how it is read are given as
    they were to minibert survey; another corpus is refused, and another model too. How many
    documents there were, and whether they were paired, is known from DIR.
    """
    from minibert.survey.tables import Survey
    from minibert.viz.survey_folder import check_documents

    found = Survey.read(folder)
    surveyed = found.manifest["model"]
    if "attached" in surveyed:
        raise SurveyError(
            f"{folder} is the survey of a live {surveyed['attached']}, and the command line has "
            "models that minibert loads. Make its report from Python: minibert.viz.survey_folder."
            f"write_survey_report({str(folder)!r}, minibert.attach(hf_model, tokenizer=...), texts)"
        )
    source = CorpusOptions(corpus, kind, unit, field, pair_field, encoding, on_error, shortest)
    documents = source.documents()
    loaded = load_model(model or surveyed["name"], revision, offline, None, None)
    check_documents(found, documents)
    write_report(folder, loaded, source.documents, pattern_documents, command="")


def write_report(
    folder: Path,
    model: "Model",
    documents: "Callable[[], Documents]",
    sample: int,
    *,
    command: str,
) -> None:
    """Write the report of a survey and say where it is; `command` makes the survey again."""
    from minibert.viz.survey_folder import write_survey_report

    path = write_survey_report(folder, model, documents, sample=sample, command=command)
    say(f"The report: {path.resolve().as_uri()}")
