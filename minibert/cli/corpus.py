"""`minibert survey`, `patterns` and `collect`: what heads do over a corpus, values of its tokens.

torch is imported only when a command runs.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from minibert.cli.options import Loading, Reading, heads_asked, say_json, spread
from minibert.terminal import Terminal, bar, note, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.collecting import Collected
    from minibert.survey.document_rows import Texts
    from minibert.survey.documents import Documents
    from minibert.survey.patterns import HeadPatterns, PatternHead
    from minibert.survey.tables import Survey

_SHOWN = ("to_previous", "to_next", "to_self", "to_first", "to_cls", "to_sep", "to_same_word")


@dataclass(frozen=True)
class Measuring:
    """What is measured, by the names that `minibert.survey` takes.

    Options:
        measures [--measure, NAME]: A measure, such as to_sep; may be repeated. Default: all.
        offsets [--offset, N]: A further offset, such as -2; may be repeated.
        tokens [--token, TOKEN]: A token to measure; may be repeated.
        by_norm: Measure everything again with rows weighted by norms.
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

    It measures the entropy, and the attention on [CLS], [SEP], punctuation, chosen tokens, by
    offset and distance, on the same word and on the other text, each also weighted by norms. It
    writes tables as Parquet files and figures as a page that needs no network. To resume an
    interrupted run, give the same command again. For a finished run it makes the report again.

    Options:
        output [-o, DIR, no default]: The folder for the tables. To resume an interrupted
            run, name its folder.
        report: Write report.html, and examples.html with pages of the best examples.
        pattern_documents [N, >=0]: Documents on which the report names heads.
        why [--why, LAYER|LAYER-HEAD|all]: Say what feeds the queries, keys and
            values of these heads, such as 1-2; may be repeated. The corpus is read once more.
    """
    # In this order: a corpus that cannot be read is known at once.
    documents, model = reading.documents(corpus), loading.load()
    asked = heads_asked(why or [], model.config.n_layers, model.config.n_heads)
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
        note("note", f"interrupted; the same command resumes from {output}.")
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
    """Write what feeds these heads to the folder, and print the largest pair of each."""
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


@spread()
def collect(
    corpus: list[Path],
    points: list[str],
    output: Path,
    *,
    reading: Reading,
    store: Literal["float32", "float16", "float64"] = "float32",
    special: bool = True,
    batch_tokens: int = 2048,
    restart: bool = False,
    loading: Loading,
) -> None:
    """Write the values of chosen points for every token of a corpus.

    Probes and sparse autoencoders are trained on such values. Each point becomes a NumPy array in
    FOLDER; beside them are the tokens, words and texts. To resume an interrupted run, give the
    same command again.

    Options:
        points [--point, -p, NAME:LAYER[:HEAD]]: What to collect: resid_post:3, z:3:5, embed.
            Repeatable.
        output [-o, FOLDER]: The folder for the arrays.
        store [--store]: The number type of the arrays.
        special [--special/--no-special]: Rows for [CLS], [SEP] and other special tokens.
    """
    documents, model = reading.documents(corpus), loading.load()
    from minibert.survey.collecting import collect as collect_values

    collected = collect_values(
        model,
        documents,
        [_point(point) for point in points],
        output=output,
        dtype=store,
        special=special,
        batch_tokens=batch_tokens,
        on_error=reading.on_error,
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


_BAR = 20


@spread("task", "shortest", "on_error")
def patterns(
    corpus: list[Path] | None = None,
    *,
    reading: Reading,
    limit: int | None = None,
    as_json: bool = False,
    loading: Loading,
) -> None:
    """Name every head by what it does: next token, previous token, induction and seven more.

    A head is named (*) if its score, with the whole confidence interval
    over documents, is more than halfway from the baseline to 1.

    Options:
        corpus [argument, CORPUS]: Files or folders of text, JSON lines or Parquet. Default: twelve
            built-in pairs of sentences.
        as_json [--json]: Every head, every number and the best rows, as JSON.
    """
    # Before the model is loaded: a corpus that cannot be read is known at once.
    documents = _documents(corpus, reading)
    model = loading.load(task="none")
    from minibert.survey.patterns import patterns as patterns_of

    if documents is None:
        note("note", "no corpus is named, so twelve built-in pairs of sentences are read.")
    found = patterns_of(model, islice(documents or _sample(model), limit))
    if as_json:
        say_json(found.to_dict())
    else:
        say(*_pattern_table(found, Terminal.of(sys.stdout)))


def _documents(corpus: Sequence[Path] | None, reading: Reading) -> "Texts | None":
    """The documents of these files; None where there are none."""
    if corpus:
        return reading.documents(corpus)
    for name in reading.given:
        raise typer.BadParameter(f"{name} says how a corpus is read, and none is named")
    return None


def _sample(model: "Model") -> "Texts":
    from minibert.survey.sample_texts import SAMPLE_PAIRS

    return [" ".join(pair) for pair in SAMPLE_PAIRS] if model.config.causal else SAMPLE_PAIRS


def _pattern_table(found: "HeadPatterns", terminal: Terminal) -> list[str]:
    """Every pattern with its best heads, as lines; `*` marks heads that are named by it."""
    from minibert.analysis.patterns import PATTERNS

    lines = ["* named by it: more than halfway from the baseline to 1 (--help)"]
    for name, pattern in PATTERNS.items():
        documents = found.documents[name]
        lines += ["", terminal.paint(f"{name}: {pattern.words}", "bold")]
        if not documents:
            lines.append("  not measured: no row of these texts has such a key")
            continue
        best = found.best(name)
        header = ["head", "score", "", "95 % interval", "baseline"]
        lines += terminal.table(header, [_row(one, terminal) for one in best], "<><<>")
    return lines


def _row(one: "PatternHead", terminal: Terminal) -> list[str]:
    interval = "one document" if math.isnan(one.low) else f"{one.low:.3f} to {one.high:.3f}"
    return [
        f"{one.layer}-{one.head}{'*' if one.named else ''}",
        f"{one.score:.3f}",
        terminal.paint(bar(one.score, _BAR), "positive"),
        interval,
        "-" if math.isnan(one.baseline) else f"{one.baseline:.3f}",
    ]
