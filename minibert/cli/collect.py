"""`minibert collect`: values for every token of a corpus. torch is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.corpus_options import (
    BatchTokens,
    Corpus,
    CorpusOptions,
    Encoding,
    Field,
    KindOfFiles,
    OnError,
    PairField,
    Restart,
    Shortest,
    Unit,
    WhenWrong,
)
from minibert.cli.options import DtypeName, ImplName, ModelName, Offline, Revision, Task, load_model
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.survey.collected import Collected
    from minibert.survey.documents import Documents

__all__ = ["collect"]


class StoredType(StrEnum):
    """Number types that arrays are stored in."""

    float32 = "float32"
    float16 = "float16"
    float64 = "float64"


Points = Annotated[
    list[str],
    typer.Option(
        "--point",
        "-p",
        metavar="NAME:LAYER[:HEAD]",
        help="What to collect: resid_post:3, z:3:5, embed. Repeatable.",
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the arrays go.")
]
Stored = Annotated[StoredType, typer.Option("--store", help="The number type of the arrays.")]
Special = Annotated[
    bool, typer.Option("--special/--no-special", help="Rows for [CLS], [SEP] and their like.")
]


def collect(
    corpus: Corpus,
    points: Points,
    output: Output,
    kind: KindOfFiles = None,
    unit: Unit = None,
    field: Field = None,
    pair_field: PairField = None,
    encoding: Encoding = None,
    on_error: WhenWrong = OnError.stop,
    shortest: Shortest = 1,
    store: Stored = StoredType.float32,
    special: Special = True,
    batch_tokens: BatchTokens = 2048,
    restart: Restart = False,
    model: ModelName = None,
    revision: Revision = None,
    offline: Offline = False,
    task: Task = None,
    dtype: DtypeName = None,
    impl: ImplName = "auto",
) -> None:
    """Write the values of chosen points for every token of a corpus.

    Probes and sparse autoencoders are trained on such values. Each point becomes a NumPy array in
    FOLDER; beside them are the tokens, words and texts. To resume an interrupted run, give the
    same command again.
    """
    documents = CorpusOptions(
        corpus, kind, unit, field, pair_field, encoding, on_error, shortest
    ).documents()
    loaded = load_model(model, revision, offline, task, dtype, impl)
    from minibert.survey.collecting import collect as collect_values

    collected = collect_values(
        loaded,
        documents,
        [_point(point) for point in points],
        output=output,
        dtype=store.value,
        special=special,
        batch_tokens=batch_tokens,
        on_error=on_error.value,
        resume=not restart,
        progress=True,
    )
    _report(collected, documents)


def _report(collected: "Collected", documents: "Documents") -> None:
    """Say what is there now, and what was left out."""
    counts, folder = collected.manifest["counts"], collected.folder
    say(f"{folder}: {counts['texts']} texts, {counts['tokens']} tokens")
    for point in collected.points:
        say(f"  {point}.npy  {tuple(collected.array(point).shape)}")
    left_out = {
        "shorter than --shortest": documents.n_short,
        "could not be read": documents.n_skipped,
        "have no tokens": counts["n_skipped"],
    }
    for reason, number in left_out.items():
        if number:
            note("note", f"{number} documents {reason}; {folder / 'manifest.json'} has more")


def _point(text: str) -> tuple[str | int, ...]:
    name, *numbers = text.split(":")
    return (name, *(int(n) if n.lstrip("-").isdecimal() else n for n in numbers))
