"""`minibert patterns`: every head named by what it does."""

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.corpus_options import (
    CorpusOptions,
    Encoding,
    Field,
    InPairs,
    KindOfFiles,
    Limit,
    PairField,
    Unit,
)
from minibert.cli.options import DtypeName, ImplName, ModelName, Offline, Revision, load_model
from minibert.terminal import Terminal, note, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.document_rows import Texts
    from minibert.survey.patterns import HeadPatterns
    from minibert.survey.query_key_dimensions import QueryKeyDimensions

__all__ = ["patterns"]

SampleOrCorpus = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CORPUS",
        help="Files or folders of text, JSON lines, Parquet or CoNLL-U. "
        "Default: twelve built-in pairs of sentences.",
    ),
]
SurveyFolder = Annotated[
    Path | None,
    typer.Option(
        "--survey", metavar="DIR", help="Name heads from a finished survey; no model is run."
    ),
]


def patterns(
    corpus: SampleOrCorpus = None,
    kind: KindOfFiles = None,
    unit: Unit = None,
    field: Field = None,
    pair_field: PairField = None,
    encoding: Encoding = None,
    pairs: InPairs = False,
    limit: Limit = None,
    survey: SurveyFolder = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Show the best rows of the heads.")
    ] = False,
    dimensions: Annotated[
        bool,
        typer.Option(
            "--dimensions", help="Also count the dimensions that carry query·key. A second pass."
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Draws how far baselines are measured from the words.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every head and every number, as JSON.")
    ] = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
) -> None:
    """Name every head by what it does: next token, previous token, induction and seven more.

    A head is named (*) where more than half of the attention that the baseline leaves follows the
    pattern, and the whole confidence interval over documents is above that.
    """
    reading = CorpusOptions(corpus or [], kind, unit, field, pair_field, encoding)
    if survey is not None:
        others = {
            "CORPUS": corpus, "--pairs": pairs, "--limit": limit, "--examples": examples,
            "--dimensions": dimensions, "--model": model, "--dtype": dtype, "--revision": revision,
        }  # fmt: skip
        given = (*reading.given, *(name for name, value in others.items() if value))
        _print(_of_survey(survey, given), None, as_json=as_json, examples=False)
        return
    # Before the model is loaded: a corpus that cannot be read is known at once.
    documents = _documents(reading, pairs=pairs)
    loaded = load_model(model, revision, offline, "none", dtype, impl)
    from minibert.survey.patterns import patterns as patterns_of
    from minibert.survey.query_key_dimensions import query_key_dimensions

    if documents is None:
        note("note", "no corpus is named, so twelve built-in pairs of sentences are read.")
    found = patterns_of(loaded, islice(documents or _sample(loaded), limit), seed=seed)
    counted = None
    if dimensions:
        again = _documents(reading, pairs=pairs) or _sample(loaded)
        counted = query_key_dimensions(loaded, islice(again, limit))
    _print(found, counted, as_json=as_json, examples=examples)


def _print(
    found: "HeadPatterns", counted: "QueryKeyDimensions | None", *, as_json: bool, examples: bool
) -> None:
    if as_json:
        tables = found.to_dict()
        say(json.dumps(tables if counted is None else {**tables, "dimensions": counted.to_dict()}))
        return
    from minibert.cli.pattern_table import dimension_table, pattern_table

    terminal = Terminal.of(sys.stdout)
    say(*pattern_table(found, terminal, examples=examples))
    if counted is not None:
        say("", *dimension_table(counted, found, terminal))


def _of_survey(folder: Path, given: Sequence[str]) -> "HeadPatterns":
    """The patterns of a finished survey; `given` are options that only a run of a model has."""
    if given:
        raise typer.BadParameter(f"--survey reads what was measured already; leave out {given[0]}")
    from minibert.survey.patterns import patterns_of_survey
    from minibert.survey.tables import Survey

    return patterns_of_survey(Survey.read(folder))


def _documents(corpus: CorpusOptions, *, pairs: bool) -> "Texts | None":
    """The documents of these files; None where there are none."""
    if corpus.paths:
        documents = corpus.documents()
        if not pairs:
            return documents
        from minibert.survey.segments import in_pairs

        return in_pairs(documents)
    for name in (*corpus.given, *["--pairs"] * pairs):
        raise typer.BadParameter(f"{name} says how a corpus is read, and none is named")
    return None


def _sample(model: "Model") -> "Texts":
    from minibert.survey.sample_texts import SAMPLE_PAIRS

    return [" ".join(pair) for pair in SAMPLE_PAIRS] if model.config.causal else SAMPLE_PAIRS
