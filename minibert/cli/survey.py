"""`minibert survey`: what every head of a model does, over a corpus."""

import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibert.cli.corpus_options import (
    BatchTokens,
    Corpus,
    CorpusOptions,
    Encoding,
    Field,
    InPairs,
    KindOfFiles,
    Limit,
    OnError,
    PairField,
    Restart,
    Shortest,
    Unit,
    WhenWrong,
)
from minibert.cli.options import (
    Dtype,
    DtypeName,
    ImplName,
    ModelName,
    Offline,
    Revision,
    load_model,
)
from minibert.cli.survey_report import PatternDocuments, write_report
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.documents import Documents
    from minibert.survey.tables import Survey

__all__ = ["survey"]

_SHOWN = ("to_previous", "to_next", "to_self", "to_first", "to_cls", "to_sep", "to_same_word")


class Engine(StrEnum):
    """What measures."""

    local = "local"
    ray = "ray"


Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="The folder for the tables; of an interrupted run the one it went into.",
        show_default=False,
    ),
]
MeasureNames = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A measure, as to_sep; may be repeated. Default: all."),
]
FurtherOffsets = Annotated[
    list[int] | None,
    typer.Option(metavar="N", help="A further offset, as -2; may be repeated."),
]
ChosenTokens = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN", help="A token to measure; may be repeated."),
]
ByNorm = Annotated[bool, typer.Option(help="Measure everything again with rows weighed by norms.")]
Gradients = Annotated[
    bool,
    typer.Option(
        "--gradients",
        help="Measure how much the loss changes with attention; of models that predict tokens.",
    ),
]
WithProfile = Annotated[bool, typer.Option(help="Keep the mass at every distance.")]
Longest = Annotated[
    int | None,
    typer.Option(metavar="N", min=8, help="Tokens of a segment. Default: the model's positions."),
]
EngineName = Annotated[
    Engine, typer.Option(help="Measure in this process, or by workers of Ray (the extra ray).")
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Workers of Ray. Default: as many as have room."),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Of each worker. Default: those of this process."),
]
WithReport = Annotated[
    bool, typer.Option(help="Write report.html, and examples.html with pages of the best examples.")
]


def survey(
    corpus: Corpus,
    output: Output,
    measure: MeasureNames = None,
    offset: FurtherOffsets = None,
    token: ChosenTokens = None,
    by_norm: ByNorm = True,
    gradients: Gradients = False,
    profile: WithProfile = True,
    pairs: InPairs = False,
    limit: Limit = None,
    longest: Longest = None,
    kind: KindOfFiles = None,
    unit: Unit = None,
    field: Field = None,
    pair_field: PairField = None,
    encoding: Encoding = None,
    shortest: Shortest = 1,
    on_error: WhenWrong = OnError.stop,
    restart: Restart = False,
    batch_tokens: BatchTokens = 4096,
    engine: EngineName = Engine.local,
    workers: Workers = None,
    threads: Threads = None,
    report: WithReport = True,
    pattern_documents: PatternDocuments = 200,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
) -> None:
    """Measure what every head of a model does, over a corpus of any size.

    Entropy, mass on [CLS], [SEP], punctuation, chosen tokens, by offset and distance, on the same
    word and on the other text, each also with rows weighed by norms, and with --gradients how much
    the loss changes with them. Tables are written as Parquet files, figures as a page that needs no
    network. A run that was interrupted goes on when the same command is given again.
    """
    choices = {
        "measures": measure, "offsets": tuple(offset or ()), "tokens": tuple(token or ()),
        "by_norm": by_norm, "gradients": gradients, "profile": profile, "pairs": pairs,
        "limit": limit, "longest": longest, "batch_tokens": batch_tokens,
        "on_error": on_error.value, "resume": not restart,
        "engine": engine.value, "workers": workers, "threads": threads,
    }  # fmt: skip
    source = CorpusOptions(corpus, kind, unit, field, pair_field, encoding, on_error, shortest)
    # In this order: a corpus that cannot be read is known at once.
    documents, loaded = source.documents(), load_model(model, revision, offline, None, None, impl)
    _show(_measured(loaded, documents, output, dtype, choices), output)
    if report:
        command = shlex.join(["minibert", *sys.argv[1:]])
        write_report(output, loaded, source.documents, pattern_documents, command=command)


def _measured(
    model: "Model",
    documents: "Documents",
    output: Path,
    dtype: Dtype | None,
    choices: Mapping[str, Any],
) -> "Survey":
    import torch

    from minibert.survey.run import survey as measured

    chosen = None if dtype is None else getattr(torch, dtype.value)
    try:
        return measured(model, documents, output=output, dtype=chosen, progress=True, **choices)
    except KeyboardInterrupt:
        note("note", f"interrupted; the same command goes on with what is in {output}.")
        raise


def _show(found: "Survey", output: Path) -> None:
    """What was measured, and the heads that are the most of some kinds."""
    corpus = found.manifest["corpus"]
    say(f"{corpus['documents']} documents, {corpus['tokens']} tokens: {output}")
    left_out = corpus["without_tokens"]["count"] + corpus.get("skipped", {}).get("count", 0)
    if left_out:
        note("note", f"{left_out} documents were left out; manifest.json says which and why.")
    if drift := corpus.get("drift"):
        name, most = max(drift["largest_difference"].items(), key=lambda one: one[1])
        note("note", f"the dtype moves the mean of a head by at most {most:.1e} ({name}).")
    for name in (one for one in _SHOWN if one in found.names and found.count(one)):
        table = found.table(name)
        layer, head = divmod(int(table.argmax()), found.n_heads)
        about = f"{name:<13} most in layer {layer} head {head}: {table.max():.3f}"
        if found.count(name) > 1:
            low, high = found.interval(name)[layer, head]
            about += f", 95 % interval {low:.3f} to {high:.3f}"
        say(about)
