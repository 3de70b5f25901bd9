"""`minibert survey`: what heads do over a corpus."""

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.options import Loading, Reading, spread
from minibert.errors import SurveyError, check_index
from minibert.terminal import note, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.documents import Documents
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
    why: list[str] | None = None,
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
        why [--why, LAYER|LAYER-HEAD|all]: Say for these heads who feeds their queries, keys and
            values, as 1-2; may be repeated. The corpus is read once more.
    """
    # In this order: a corpus that cannot be read is known at once.
    documents, model = reading.documents(corpus), loading.load()
    asked = _heads(why or [], model.config.n_layers, model.config.n_heads)
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
    if why:
        _explain(
            model, reading.documents(corpus), output, asked, measuring,
            on_error=reading.on_error, resume=not restart,
        )  # fmt: skip
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


def _heads(asked: list[str], n_layers: int, n_heads: int) -> dict[int, tuple[int, ...]]:
    """The heads of each layer that are asked about.

    Raises SurveyError for what names none, TraceError for a head that does not exist.
    """
    found: dict[int, set[int]] = {}
    for text in asked:
        layer, _, head = text.partition("-")
        if text != "all" and not (layer.isdecimal() and (head.isdecimal() or text == layer)):
            raise SurveyError(f"--why {text}: expected a layer, as 1, a head, as 1-2, or all.")
        layers = range(n_layers) if text == "all" else [check_index("layer", int(layer), n_layers)]
        heads = {check_index("head", int(head), n_heads)} if head else set(range(n_heads))
        for each in layers:
            found[each] = found.get(each, set()) | heads
    return {layer: tuple(sorted(heads)) for layer, heads in found.items()}


def _explain(
    model: "Model",
    documents: "Documents",
    output: Path,
    heads: dict[int, tuple[int, ...]],
    measuring: Measuring,
    *,
    on_error: str,
    resume: bool,
) -> None:
    """Who feeds these heads: into the folder, and for each the largest pair."""
    from minibert.survey.reasons import survey_reasons

    found = survey_reasons(
        model, documents, heads, output=output, limit=measuring.limit, longest=measuring.longest,
        on_error=on_error, resume=resume, progress=True,
    )  # fmt: skip
    for layer, some in heads.items():
        for head in some:
            query, key, score = found.of_head(layer, head).largest(1)[0]
            say(f"head {layer}-{head} looks by {query} x {key}: {score:+.3f}")


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
