"""`minibert survey`, `survey-report` and `survey-diff`: what heads do over a corpus."""

import csv
import io
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minibert.cli.options import (
    Loading,
    Reading,
    say_json,
    spread,
)
from minibert.errors import SurveyError
from minibert.terminal import Terminal, note, number, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.differences import SurveyDiff
    from minibert.survey.documents import Documents
    from minibert.survey.tables import Survey

_SHOWN = ("to_previous", "to_next", "to_self", "to_first", "to_cls", "to_sep", "to_same_word")
# Changes that a line of the table of differences names.
_NAMED = 3


@dataclass(frozen=True)
class Measuring:
    """What is measured and by whom, by the names that `minibert.survey` takes.

    Options:
        measures [--measure, NAME]: A measure, as to_sep; may be repeated. Default: all.
        offsets [--offset, N]: A further offset, as -2; may be repeated.
        tokens [--token, TOKEN]: A token to measure; may be repeated.
        by_norm: Measure everything again with rows weighed by norms.
        gradients [--gradients]: Measure how much the loss changes with attention; of models that
            predict tokens.
        profile: Keep the mass at every distance.
        longest [N, >=8]: Tokens of a segment. Default: the model's positions.
        engine: Measure in this process, or by workers of Ray (the extra ray).
        workers [N, >=1]: Workers of Ray. Default: as many as have room.
        threads [N, >=1]: Of each worker. Default: those of this process.
    """

    measures: list[str] | None = None
    offsets: list[int] | None = None
    tokens: list[str] | None = None
    by_norm: bool = True
    gradients: bool = False
    profile: bool = True
    pairs: bool = False
    limit: int | None = None
    longest: int | None = None
    batch_tokens: int = 4096
    engine: Literal["local", "ray"] = "local"
    workers: int | None = None
    threads: int | None = None


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
    word and on the other text, each also with rows weighed by norms, and with --gradients how much
    the loss changes with them. Tables are written as Parquet files, figures as a page that needs no
    network. A run that was interrupted goes on when the same command is given again.

    Options:
        output [-o, DIR, no default]: The folder for the tables; of an interrupted run the one it
            went into.
        report: Write report.html, and examples.html with pages of the best examples.
        pattern_documents [N, >=0]: Documents on which the report names heads and measures their
            distances.
    """
    # In this order: a corpus that cannot be read is known at once.
    documents, model = reading.documents(corpus), loading.load(dtype=None)
    import torch

    from minibert.survey.run import survey as measured

    several = {"offsets": measuring.offsets or (), "tokens": measuring.tokens or ()}
    choices = vars(measuring) | {name: tuple(given) for name, given in several.items()}
    try:
        found = measured(
            model,
            documents,
            output=output,
            dtype=loading.dtype and getattr(torch, loading.dtype),
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
        command = shlex.join(["minibert", *sys.argv[1:]])
        again = partial(reading.documents, corpus)
        _write_report(output, model, again, pattern_documents, command=command)


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


@spread("task", "dtype", "impl")
def survey_report(
    folder: Path,
    corpus: list[Path],
    *,
    reading: Reading,
    pattern_documents: int = 200,
    loading: Loading,
) -> None:
    """Make the report of a finished survey again; nothing is surveyed again.

    The texts of its examples are in the corpus alone, so CORPUS and how it is read are given as
    they were to minibert survey; another corpus is refused, and another model too. How many
    documents there were, and whether they were paired, is known from DIR.

    Options:
        folder [argument, DIR]: A folder of minibert survey.
        pattern_documents [N, >=0]: Documents on which the report names heads and measures their
            distances.
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
    documents = reading.documents(corpus)
    model = loading.load(model=loading.model or surveyed["name"])
    check_documents(found, documents)
    again = partial(reading.documents, corpus)
    _write_report(folder, model, again, pattern_documents, command="")


def _write_report(
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


@spread()
def survey_diff(
    folder_a: Path,
    folder_b: Path,
    output: Path | None = None,
    top: int = 20,
    as_json: bool = False,
) -> None:
    """Say which heads changed between two surveys of the same documents.

    Each head of A stands beside the head of B that behaves most like it, in whatever layer. A
    change is named where it is larger than the 95 % interval of the difference.

    Options:
        folder_a [argument, DIR_A]: A folder of minibert survey.
        folder_b [argument, DIR_B]: The one to compare with it.
        output [-o, FILE]: Write every number to this .csv or .json file.
        top [>=1]: Pairs of heads that are shown, the least alike first.
        as_json [--json]: Every pair and every number, as JSON.
    """
    if output is not None and output.suffix not in (".csv", ".json"):
        raise SurveyError(f"{output}: its name must end in .csv or .json.")
    from minibert.survey.differences import diff
    from minibert.survey.tables import Survey

    found = diff(Survey.read(folder_a), Survey.read(folder_b))
    if output is not None:
        from minibert.viz.document import write_bytes

        text = json.dumps(found.to_dict()) if output.suffix == ".json" else _csv(found)
        write_bytes(text.encode(), output)
    if as_json:
        say_json(found.to_dict())
    else:
        say(*_table(found, Terminal.of(sys.stdout), top))


def _table(found: "SurveyDiff", terminal: Terminal, top: int) -> list[str]:
    changed = int(found.exceeds.any(1).sum())
    pairs = len(found.pairs)
    lines = [
        f"{changed} of {pairs} heads changed beyond the 95 % interval of some measure; "
        f"{sum(found.moved)} are most like a head in another place",
        "",
    ]
    header = ["head A", "head B", "distance", "largest changes beyond their interval"]
    rows = [
        [_name(a), _name(b), f"{found.distance[pair]:.2f}", _changes(found, pair)]
        for pair, (a, b) in enumerate(found.pairs[:top])
    ]
    lines += terminal.table(header, rows, "<<><")
    if pairs > top:
        lines.append(f"  and {pairs - top} more; --top {pairs} shows all")
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            lines += ["", f"only in {name}, without a partner:"]
            lines += terminal.wrapped([_name(head) for head in only])
    return lines


def _changes(found: "SurveyDiff", pair: int) -> str:
    """The changes that are largest beside how much heads differ."""
    # Where heads do not differ at all there is no change either.
    sizes = abs(found.change[pair]) / found.spread.clip(min=1e-300)
    order = [i for i in (-sizes).argsort(kind="stable") if found.exceeds[pair, i]]
    return ", ".join(
        f"{found.names[i]} {number(found.before[pair, i])} to {number(found.after[pair, i])}"
        for i in order[:_NAMED]
    )


def _name(head: tuple[int, int]) -> str:
    return f"{head[0]}-{head[1]}"


def _csv(found: "SurveyDiff") -> str:
    from minibert.survey.differences import COLUMNS

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    # Nothing for a number that there is not.
    writer.writerows(["" if value != value else value for value in row] for row in found.rows())
    return text.getvalue()
