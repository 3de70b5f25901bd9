"""What MiniLM's attention knows of syntax and coreference, beside what Clark et al. 2019 found.

    python -m benchmarks.probes [--threads 1] [--sentences N] [--output FILE] [--figure FILE]

Dependency heads and probes on English EWT, chosen and trained on its dev part and measured on its
test part (the train part is not in the data); antecedent heads on LitBank, chosen on every other
book and measured on the rest, and on GAP, chosen on development and measured on validation. The
data is in the folder that MINIBERT_TEST_DATA names. `cpu_seconds` is processor time, which says
more on a busy machine than the clock does.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.session import REPOSITORY, Kept, session
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
    """0; the rows are written as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sentences", type=int, help="only so many of each part, for a try")
    parser.add_argument("--output", type=Path, help="file for the rows; --sentences needs it")
    parser.add_argument("--figure", type=Path, help="draw a finished file's scores here (--output)")
    chosen = parser.parse_args(arguments)
    if chosen.figure:
        draw(read_rows(chosen.output), chosen.figure)
        return 0
    chosen.quick = chosen.sentences is not None
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    with session(chosen.threads) as known:
        kept = Kept("probes", chosen)
        for row in measured(data, chosen.sentences):
            kept.rows.append({"what": "probes", "model": MODEL, **row, **known})
            kept.save()
            print({name: value for name, value in row.items() if name != "scores"}, flush=True)
            for score in row["scores"]:
                print(
                    "  ", *(f"{name}={shown(value)}" for name, value in score.items()), flush=True
                )
        kept.finish()
    return 0


def measured(data: Path, limit: int | None) -> Iterator[Row]:
    """A row for each probe."""
    import minibert
    from minibert.model import Model
    from minibert.survey.conllu import read_sentences
    from minibert.survey.probes.parser import attachment_scores

    model = minibert.load(data / "models" / MODEL)
    folder = data / "text" / "ud-english-ewt"
    parts = [
        list(islice(read_sentences(folder / f"en_ewt-ud-{part}.conllu"), limit))
        for part in ("dev", "test")
    ]
    yield timed("dependency", lambda: dependency(model, parts), chosen_on="EWT dev", on="EWT test")
    untrained = Model.from_config(model.config, tokenizer=model.tokenizer)
    yield timed(
        "parser",
        lambda: attachment_scores(model, *parts, random_model=untrained),
        chosen_on="EWT dev",
        on="EWT test",
    )
    books = [litbank(model, data, start, limit) for start in (0, 1)]
    yield timed(
        "coreference",
        lambda: coreference(model, books),
        chosen_on="LitBank, every other book",
        on="LitBank, the other books",
        tokens=_LONGEST_PASSAGE,
    )
    names = [gap(data, part, limit) for part in ("development", "validation")]
    yield timed(
        "coreference",
        lambda: coreference(model, names),
        chosen_on="GAP development",
        on="GAP validation",
    )


def timed(kind: str, run: Any, **about: Any) -> Row:
    """The scores of a probe, and what they cost."""
    start, clock = time.process_time(), time.perf_counter()
    scores = [asdict(one) for one in run()]
    seconds = {
        "cpu_seconds": round(time.process_time() - start, 1),
        "seconds": round(time.perf_counter() - clock, 1),
    }
    return {"probe": kind, **about, **seconds, "scores": scores}


def dependency(model: Any, parts: Sequence[Any]) -> Any:
    from minibert.survey.probes.dependency import count_dependencies, relation_scores

    return relation_scores(*(count_dependencies(model, part) for part in parts), least=20)


def coreference(model: Any, parts: Sequence[Any]) -> Any:
    from minibert.survey.probes.coreference import antecedent_scores, count_antecedents

    return antecedent_scores(*(count_antecedents(model, part) for part in parts))


def litbank(model: Any, data: Path, start: int, limit: int | None) -> list[Any]:
    """Passages of every other book."""
    from minibert.survey.probes.coreference_files import cut_book, read_book

    paths = sorted((data / "text" / "litbank" / "coref" / "conll").iterdir())[start::2]
    passages = (one for path in paths for one in cut_book(model, read_book(path), _LONGEST_PASSAGE))
    return list(islice(passages, limit))


def gap(data: Path, part: str, limit: int | None) -> list[Any]:
    """Passages of a part of GAP."""
    from minibert.survey.probes.coreference_files import read_gap

    return list(islice(read_gap(data / "text" / "gap" / f"gap-{part}.tsv"), limit))


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return str({name: shown(one) for name, one in value.items()})
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def draw(rows: Sequence[Row], output: Path) -> None:
    """The attachment scores of every way as bars, with those of the paper as marks."""
    from minibert.viz.plots.base import panel_at, sheet

    [row] = [one for one in rows if one["probe"] == "parser"]
    scores = row["scores"]
    names = [one["name"] for one in scores]
    with sheet(output) as figure:
        panel = panel_at(figure, 0, 3.4, 0.26 * len(scores))
        for place, one in enumerate(scores):
            panel.barh(place, 100 * one["score"], 0.66, color="#4c78a8")
            panel.text(100 * one["score"] + 1, place, f"{100 * one['score']:.0f}", va="center")
            if one["name"] in PUBLISHED:
                found = 100 * PUBLISHED[one["name"]]
                label = "" if panel.get_legend_handles_labels()[1] else "bert-base, Clark et al."
                panel.plot(found, place, "D", color="#e45756", markersize=4, label=label)
        panel.set_yticks(range(len(scores)), names)
        panel.invert_yaxis()
        panel.set_xlim(0, 100)
        panel.set_xlabel(f"words with the right head, % ({row['model']}, {row['on']})")
        panel.legend(loc="lower right")


if __name__ == "__main__":
    sys.exit(main())
