"""What MiniLM's attention knows of syntax and coreference, beside what Clark et al. 2019 found.

    python -m benchmarks.probes [--threads 1] [--sentences N] [--output FILE]
    python -m benchmarks.probes --output FILE --figure FIGURE

Dependency heads and probes on English EWT, chosen and trained on its dev part and measured on its
test part (the train part is not in the data); antecedent heads on LitBank, chosen on every other
book and measured on the rest, and on GAP, chosen on development and measured on validation. The
data is in the folder that MINIBERT_TEST_DATA names. `cpu_seconds` is processor time, which says
more on a busy machine than the clock does. Books are cut into passages of at most 128 tokens. The
second command draws the attachment scores of a finished file.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.session import REPOSITORY, Kept, kept_before, session
from minibert.bench.result_rows import Row, read_rows

MODEL = "all-MiniLM-L6-v2"
#: bert-base-uncased on the Wall Street Journal: UAS of table 3 of Clark et al. 2019.
PUBLISHED = {
    "attention of random weights and words": 0.30,
    "distances and words": 0.58,
    "attention": 0.61,
    "attention and words": 0.77,
}
_LONGEST_PASSAGE = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """0; the rows are written as they come, and a run that was stopped goes on behind them."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--sentences", type=int, help="only so many of each part, for a try")
    options.add_argument("--output", type=Path, help="file for the rows; --sentences needs it")
    options.add_argument(
        "--figure", type=Path, help="draw a finished file's scores here (--output)"
    )
    chosen = options.parse_args(arguments)
    if chosen.figure:
        draw(read_rows(chosen.output), chosen.figure)
        return 0
    chosen.quick = chosen.sentences is not None
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    with session(chosen.threads) as known:
        kept = Kept("probes", chosen)
        kept.rows = [] if chosen.quick else kept_before(kept.partial)
        done = {(row["probe"], row["on"]) for row in kept.rows}
        for run in runs(data, chosen.sentences):
            if (run.probe, run.on) in done:
                continue
            row = run.row()
            kept.rows.append({"what": "probes", "model": MODEL, **row, **known})
            kept.save()
            print({name: value for name, value in row.items() if name != "scores"}, flush=True)
            for score in row["scores"]:
                print(
                    "  ", *(f"{name}={shown(value)}" for name, value in score.items()), flush=True
                )
        kept.finish()
    return 0


@dataclass(frozen=True)
class Run:
    """One probe: what it is chosen or trained on, and measured on."""

    probe: str
    chosen_on: str
    on: str
    scores: Callable[[], Sequence[Any]]

    def row(self) -> Row:
        """Its scores, and what they cost."""
        start, clock = time.process_time(), time.perf_counter()
        scores = [asdict(one) for one in self.scores()]
        return {
            "probe": self.probe,
            "chosen_on": self.chosen_on,
            "on": self.on,
            "cpu_seconds": round(time.process_time() - start, 1),
            "seconds": round(time.perf_counter() - clock, 1),
            "scores": scores,
        }


def runs(data: Path, limit: int | None) -> list[Run]:
    """Every probe."""
    import minibert

    model = minibert.load(data / "models" / MODEL)
    book, other = "LitBank, every other book", "LitBank, the other books"
    return [
        Run("dependency", "EWT dev", "EWT test", lambda: dependency(model, data, limit)),
        Run("parser", "EWT dev", "EWT test", lambda: parser(model, data, limit)),
        Run("coreference", book, other, lambda: litbank(model, data, limit)),
        Run("coreference", "GAP development", "GAP validation", lambda: gap(model, data, limit)),
    ]


def treebank(data: Path, limit: int | None) -> list[Any]:
    """The sentences of both parts of EWT."""
    from minibert.survey.conllu import read_sentences

    folder = data / "text" / "ud-english-ewt"
    paths = [folder / f"en_ewt-ud-{part}.conllu" for part in ("dev", "test")]
    return [list(islice(read_sentences(path), limit)) for path in paths]


def dependency(model: Any, data: Path, limit: int | None) -> Sequence[Any]:
    from minibert.survey.probes.dependency import count_dependencies, relation_scores

    chosen, measured = (count_dependencies(model, part) for part in treebank(data, limit))
    return relation_scores(chosen, measured, least=20)


def parser(model: Any, data: Path, limit: int | None) -> Sequence[Any]:
    from minibert.model import Model
    from minibert.survey.probes.pair_probe import attachment_scores

    untrained = Model.from_config(model.config, tokenizer=model.tokenizer)
    return attachment_scores(model, *treebank(data, limit), random_model=untrained)


def litbank(model: Any, data: Path, limit: int | None) -> Sequence[Any]:
    from minibert.survey.probes.coreference import cut_book, read_book

    books = sorted((data / "text" / "litbank" / "coref" / "conll").iterdir())
    halves = [
        (one for path in half for one in cut_book(model, read_book(path), _LONGEST_PASSAGE))
        for half in (books[::2], books[1::2])
    ]
    return coreference(model, halves, limit)


def gap(model: Any, data: Path, limit: int | None) -> Sequence[Any]:
    from minibert.survey.probes.coreference import read_gap

    folder = data / "text" / "gap"
    parts = [read_gap(folder / f"gap-{part}.tsv") for part in ("development", "validation")]
    return coreference(model, parts, limit)


def coreference(model: Any, parts: Sequence[Any], limit: int | None) -> Sequence[Any]:
    from minibert.survey.probes.coreference import antecedent_scores, count_antecedents

    chosen, measured = (count_antecedents(model, islice(part, limit)) for part in parts)
    return antecedent_scores(chosen, measured)


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return str({name: shown(one) for name, one in value.items()})
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def draw(rows: Sequence[Row], output: Path) -> None:
    """The attachment scores of every way as bars, with those of the paper as marks."""
    from minibert.viz.plots.sheet import panel_at, sheet

    [row] = [one for one in rows if one["probe"] == "parser"]
    scores = row["scores"]
    names = [one["name"] for one in scores]
    with sheet(output) as figure:
        panel = panel_at(figure, 0.0, 3.4, 0.26 * len(scores))
        for place, one in enumerate(scores):
            panel.barh(place, 100 * one["score"], 0.66, color="#4c78a8")
            # Inside the bar, where no mark of the paper stands.
            panel.text(2, place, f"{100 * one['score']:.0f}", va="center", color="white")
            if one["name"] in PUBLISHED:
                found = 100 * PUBLISHED[one["name"]]
                label = "" if panel.get_legend_handles_labels()[1] else "bert-base, Clark et al."
                panel.plot(found, place, "D", color="#e45756", markersize=4, label=label)
        panel.set_yticks(range(len(scores)), names)
        panel.invert_yaxis()
        panel.set_xlim(0, 100)
        panel.set_xlabel(f"words with the right head, % ({row['model']}, {row['on']})")
        panel.legend(loc="upper right")


if __name__ == "__main__":
    sys.exit(main())
