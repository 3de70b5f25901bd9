"""`minibert probe`: what attention knows of syntax and coreference."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
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
#: A column of a table: its header, < or >, and the cell of a score.
Column = tuple[str, str, Callable[[Any], str]]


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
    loaded = _loaded(loading, parts)
    chosen, measured = (count_dependencies(loaded, part) for part in parts)
    scores = relation_scores(chosen, measured, least=least)
    columns: list[Column] = [
        ("relation", "<", lambda one: one.relation),
        ("words", ">", lambda one: str(one.instances)),
        ("head", "<", lambda one: f"{one.layer}-{one.head}"),
        ("direction", "<", lambda one: one.direction),
        ("found", ">", lambda one: _percent(one.accuracy)),
        ("95 %", ">", _interval),
        ("distance", ">", lambda one: _percent(one.offset_accuracy)),
        ("", ">", lambda one: f"{one.offset:+d}"),
    ]
    _print(loaded, parts, scores, columns, as_json=as_json)


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
    from minibert.survey.probes import coreference as probes

    _check_names(files, measure)
    loaded = loading.load()

    def passages(path: Path) -> "list[Passage]":
        if path.suffix == ".tsv":
            return list(probes.read_gap(path))
        longest = min(tokens, loaded.config.n_positions)
        return probes.cut_book(loaded, probes.read_book(path), longest)

    parts = _parts(files, measure, passages)
    _check(loaded, parts)
    chosen, measured = (probes.count_antecedents(loaded, part) for part in parts)
    scores = probes.antecedent_scores(chosen, measured)
    columns: list[Column] = [
        ("kind", "<", lambda one: one.kind),
        ("mentions", ">", lambda one: str(one.instances)),
        ("head", "<", lambda one: f"{one.layer}-{one.head}"),
        ("right", ">", lambda one: _percent(one.accuracy)),
        ("95 %", ">", _interval),
        ("best of all", ">", lambda one: _percent(one.accuracy_of_one)),
    ]
    for name in scores[0].baselines if scores else ():
        columns.append((name, ">", partial(_baseline, name)))
    _print(loaded, parts, scores, columns, as_json=as_json)


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
    loaded = _loaded(loading, parts)
    untrained = Model.from_config(loaded.config, tokenizer=loaded.tokenizer) if random else None
    width = WORD_DIMENSIONS if dimensions is None else dimensions
    scores = attachment_scores(loaded, *parts, random_model=untrained, n_dimensions=width)
    columns: list[Column] = [
        ("heads from", "<", lambda one: one.name),
        ("right", ">", lambda one: _percent(one.score)),
        ("95 %", ">", _interval),
    ]
    _print(loaded, parts, scores, columns, as_json=as_json)


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


def _loaded(loading: Loading, parts: Parts) -> "Model":
    model = loading.load()
    _check(model, parts)
    return model


def _check(model: "Model", parts: Parts) -> None:
    """Raise SurveyError for a text that the model cannot read, before it reads any."""
    from minibert.survey.probes.word_attention import check_readable

    for part in parts:
        check_readable(model, part)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _interval(score: Any) -> str:
    return f"{_percent(score.low)} - {_percent(score.high)}"


def _baseline(name: str, score: Any) -> str:
    return _percent(score.baselines[name])


def _print(
    model: "Model",
    parts: Parts,
    scores: Sequence[Any],
    columns: Sequence[Column],
    *,
    as_json: bool,
) -> None:
    """What was measured, on which model, and on how many texts: as a table, or as JSON."""
    chosen, measured = map(len, parts)
    if as_json:
        counts = {"chosen_on": chosen, "measured_on": measured}
        say_json({"model": model.name, **counts, "scores": [asdict(one) for one in scores]})
        return
    header, align, cells = zip(*columns, strict=True)
    rows = [[visible(cell(one), space=" ") for cell in cells] for one in scores]
    lines = Terminal.of(sys.stdout).table(header, rows, "".join(align))
    say(*lines, "", f"in percent; chosen on {chosen} texts, measured on {measured}.")
