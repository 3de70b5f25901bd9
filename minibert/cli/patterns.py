"""`minibert patterns`: every head named by what it does."""

import math
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from minibert.cli.options import Loading, Reading, say_json, spread
from minibert.terminal import Terminal, bar, note, say

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.document_rows import Texts
    from minibert.survey.patterns import HeadPatterns, PatternHead

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

    A head is named (*) where more than half of the attention that the baseline leaves follows the
    pattern, and the whole confidence interval over documents is above that.

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

    lines = ["* named by it: more than half of the attention that the baseline leaves (--help)"]
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
