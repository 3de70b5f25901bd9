"""`minibert survey`: what heads do over a corpus."""

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.options import Loading, Reading, spread
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.survey.tables import Survey

_SHOWN = ("to_previous", "to_next", "to_self", "to_first", "to_cls", "to_sep", "to_same_word")


@dataclass(frozen=True)
class Measuring:
    """What is measured, by the names that `minibert.survey` takes.

    Options:
        measures [--measure, NAME]: A measure, as to_sep; may be repeated. Default: all.
        offsets [--offset, N]: A further offset, as -2; may be repeated.
        tokens [--token, TOKEN]: A token to measure; may be repeated.
        by_norm: Measure everything again with rows weighed by norms.
        profile: Keep the mass at every distance.
        longest [N, >=8]: Tokens of a segment. Default: the model's positions.
    """

    measures: list[str] | None = None
    offsets: list[int] | None = None
    tokens: list[str] | None = None
    by_norm: bool = True
    profile: bool = True
    limit: int | None = None
    longest: int | None = None
    batch_tokens: int = 4096


@spread("task")
def survey(
    corpus: list[Path],
    output: Path,
    *,
    measuring: Measuring,
    reading: Reading,
    restart: bool = False,
    report: bool = True,
    pattern_documents: int = 200,
    loading: Loading,
) -> None:
    """Measure what every head of a model does, over a corpus of any size.

    Entropy, mass on [CLS], [SEP], punctuation, chosen tokens, by offset and distance, on the same
    word and on the other text, each also with rows weighed by norms. Tables are written as Parquet
    files, figures as a page that needs no network. A run that was interrupted goes on when the same
    command is given again, and of a finished one the report is made again.

    Options:
        output [-o, DIR, no default]: The folder for the tables; of an interrupted run the one it
            went into.
        report: Write report.html, and examples.html with pages of the best examples.
        pattern_documents [N, >=0]: Documents on which the report names heads.
    """
    # In this order: a corpus that cannot be read is known at once.
    documents, model = reading.documents(corpus), loading.load()
    from minibert.survey.run import survey as measured

    several = {"offsets": measuring.offsets or (), "tokens": measuring.tokens or ()}
    choices = vars(measuring) | {name: tuple(given) for name, given in several.items()}
    try:
        found = measured(
            model,
            documents,
            output=output,
            on_error=reading.on_error,
            resume=not restart,
            progress=True,
            **choices,
        )
    except KeyboardInterrupt:
        note("note", f"interrupted; the same command goes on with what is in {output}.")
        raise
    _show(found, output)
    if report:
        from minibert.viz.survey_folder import write_survey_report

        path = write_survey_report(
            output,
            model,
            partial(reading.documents, corpus),
            sample=pattern_documents,
            command=shlex.join(["minibert", *sys.argv[1:]]),
        )
        say(f"The report: {path.resolve().as_uri()}")


def _show(found: "Survey", output: Path) -> None:
    """What was measured, and the heads that are the most of some kinds."""
    corpus = found.manifest["corpus"]
    say(f"{corpus['documents']} documents, {corpus['tokens']} tokens: {output}")
    left_out = corpus["without_tokens"]["count"] + corpus.get("skipped", {}).get("count", 0)
    if left_out:
        note("note", f"{left_out} documents were left out; manifest.json says which and why.")
    for name in (one for one in _SHOWN if one in found.names and found.count(one)):
        table = found.table(name)
        layer, head = divmod(int(table.argmax()), found.n_heads)
        about = f"{name:<13} most in layer {layer} head {head}: {table.max():.3f}"
        if found.count(name) > 1:
            low, high = found.interval(name)[layer, head]
            about += f", 95 % interval {low:.3f} to {high:.3f}"
        say(about)
