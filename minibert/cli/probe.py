"""`minibert probe`: what attention knows of syntax and coreference."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from minibert.cli.options import Loading, say_json, spread
from minibert.errors import SurveyError
from minibert.terminal import Terminal, note, say, visible

if TYPE_CHECKING:
    from minibert.model import Model
    from minibert.survey.conllu import Sentence
    from minibert.survey.probes.coreference import Passage

probe = typer.Typer(
    help="Find out what attention knows of syntax and coreference (Clark et al. 2019).",
    no_args_is_help=True,
)


Item = TypeVar("Item")
Parts = Sequence[Sequence[Any]]


@probe.command()
@spread("task")
def dependency(
    files: list[Path],
    measure: list[Path] | None = None,
    least: int = 20,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Find the best head for each dependency relation, beside the best fixed distance.

    Heads are chosen on one part and measured on the other.

    Options:
        files [argument, FILE...]: CoNLL-U files to choose or train on.
        measure [--measure, FILE]: A file to measure on, several times for several. Default: every
            other text.
        least [>=1]: Leave out relations with fewer words than this.
        as_json [--json]: Every number, unrounded, as JSON.
    """
    from minibert.survey.probes.dependency import count_dependencies, relation_scores

    parts = _parts(files, measure, _sentences)
    loaded = loading.load()
    _check(loaded, parts)
    chosen, measured = (count_dependencies(loaded, part) for part in parts)
    scores = relation_scores(chosen, measured, least=least)
    if as_json:
        _say_json(loaded, parts, scores)
        return
    rows = [
        (
            one.relation,
            str(one.instances),
            f"{one.layer}-{one.head}",
            one.direction,
            _percent(one.accuracy),
            f"{_percent(one.low)} - {_percent(one.high)}",
            _percent(one.offset_accuracy),
            f"{one.offset:+d}",
        )
        for one in scores
    ]
    header = ("relation", "words", "head", "direction", "found", "95 %", "distance", "")
    _print(header, rows, "<><<>>>>", parts)


@probe.command()
@spread("task")
def coreference(
    files: list[Path],
    measure: list[Path] | None = None,
    tokens: int = 128,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Find the head that attends from a mention to what it stands for, beside simple rules.

    Heads are chosen on one part and measured on the other.

    Options:
        files [argument, FILE...]: LitBank's .conll files or GAP's .tsv files.
        measure [--measure, FILE]: A file to measure on, several times for several. Default: every
            other text.
        tokens [>=16]: Cut books into passages of at most so many tokens.
        as_json [--json]: Every number, unrounded, as JSON.
    """
    from minibert.survey.probes.coreference import (
        antecedent_scores,
        count_antecedents,
        cut_book,
        read_book,
        read_gap,
    )

    _check_names(files, measure)
    loaded = loading.load()

    def passages(path: Path) -> "list[Passage]":
        if path.suffix == ".tsv":
            return list(read_gap(path))
        longest = min(tokens, loaded.config.n_positions)
        return cut_book(loaded, read_book(path), longest)

    parts = _parts(files, measure, passages)
    _check(loaded, parts)
    chosen, measured = (count_antecedents(loaded, part) for part in parts)
    scores = antecedent_scores(chosen, measured)
    if as_json:
        _say_json(loaded, parts, scores)
        return
    names = list(scores[0].baselines) if scores else []
    rows = [
        (
            one.kind,
            str(one.instances),
            f"{one.layer}-{one.head}",
            _percent(one.accuracy),
            f"{_percent(one.low)} - {_percent(one.high)}",
            _percent(one.accuracy_of_one),
            *(_percent(one.baselines[name]) for name in names),
        )
        for one in scores
    ]
    header = ("kind", "mentions", "head", "right", "95 %", "best of all", *names)
    _print(header, rows, "<><>>>" + ">" * len(names), parts)


@probe.command()
@spread("task")
def parser(
    files: list[Path],
    measure: list[Path] | None = None,
    dimensions: int | None = None,
    random: bool = True,
    as_json: bool = False,
    *,
    loading: Loading,
) -> None:
    """Train probes that find each word's head, and show how often they are right.

    They are trained on one part and measured on the other.

    Options:
        files [argument, FILE...]: CoNLL-U files to choose or train on.
        measure [--measure, FILE]: A file to measure on, several times for several. Default: every
            other text.
        dimensions [>=1]: Dimensions of word vectors. Default: 32.
        random: Also measure the same model with random weights.
        as_json [--json]: Every number, unrounded, as JSON.
    """
    from minibert.model import Model
    from minibert.survey.probes.pair_probe import WORD_DIMENSIONS, attachment_scores

    parts = _parts(files, measure, _sentences)
    loaded = loading.load()
    _check(loaded, parts)
    untrained = Model.from_config(loaded.config, tokenizer=loaded.tokenizer) if random else None
    scores = attachment_scores(
        loaded,
        *parts,
        random_model=untrained,
        n_dimensions=WORD_DIMENSIONS if dimensions is None else dimensions,
    )
    if as_json:
        _say_json(loaded, parts, scores)
        return
    rows = [
        (one.name, _percent(one.score), f"{_percent(one.low)} - {_percent(one.high)}")
        for one in scores
    ]
    _print(("heads from", "right", "95 %"), rows, "<>>", parts)


def _sentences(path: Path) -> "list[Sentence]":
    from minibert.survey.conllu import read_sentences
    from minibert.survey.probes.dependency import check_tree

    found = list(read_sentences(path))
    for sentence in found:
        check_tree(sentence)
    return found


def _parts(
    files: Sequence[Path], measure: Sequence[Path] | None, read: Callable[[Path], list[Item]]
) -> tuple[list[Item], list[Item]]:
    """What to choose on and what to measure on: every other text, where only one part is given."""
    first = [one for path in files for one in read(path)]
    if measure:
        return first, [one for path in measure for one in read(path)]
    if len(first) < 2:
        raise SurveyError(f"{files[0]} has one text; give another file with --measure.")
    note("note", "no --measure: chosen on every other text, measured on the ones between.")
    return first[::2], first[1::2]


def _check_names(files: Sequence[Path], measure: Sequence[Path] | None) -> None:
    paths = [*files, *(measure or ())]
    for path in paths:
        if path.suffix not in (".conll", ".tsv"):
            raise SurveyError(f"{path}: expected a .conll file of LitBank or a .tsv file of GAP.")
        if path.suffix != paths[0].suffix:
            raise SurveyError(f"{paths[0]} and {path} ask different things; measure each alone.")


def _check(model: "Model", parts: Parts) -> None:
    """Raise SurveyError for a text that the model cannot read, before it reads any."""
    from minibert.survey.probes.word_attention import check_readable

    for part in parts:
        check_readable(model, part)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _say_json(model: "Model", parts: Parts, scores: Sequence[Any]) -> None:
    """What was measured, on which model, and on how many texts."""
    chosen, measured = map(len, parts)
    numbers = [asdict(one) for one in scores]
    counts = {"chosen_on": chosen, "measured_on": measured}
    say_json({"model": model.name, **counts, "scores": numbers})


def _print(header: Sequence[str], rows: Sequence[Sequence[str]], align: str, parts: Parts) -> None:
    terminal = Terminal.of(sys.stdout)
    chosen, measured = map(len, parts)
    shown = [[visible(cell, space=" ") for cell in row] for row in rows]
    say(
        *terminal.table(header, shown, align),
        "",
        f"in percent; chosen on {chosen} texts, measured on {measured}.",
    )
