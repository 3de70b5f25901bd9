"""What the embedded models can do, measured on text they never saw.

    python -m benchmarks.embedded --held-out FILE... --text FILE... [--output FILE]
    python -m benchmarks.embedded --kinds FOLDER
    python -m benchmarks.embedded --sentiment FOLDER

`--held-out` are texts that were in no training, two or more of them for next-sentence pairs;
`--text` are those the models were trained on, for the n-gram and unigram baselines and for the
words that the generated text should consist of. A row for each score goes to the output, with
its target and whether it is met; a score that cannot be measured is a row with the reason. The
exit status is 0 when every target is met.

`--kinds` measures masked tokens and loss by kind of text instead, from the folder of test data.
These scores have no target. `--sentiment` measures tiny-bert-sentiment, from the folder with the
sentences that scripts/train_sentiment.py names. In the output a score takes the place of the same
model's earlier one;
the others stay.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import minibert
from benchmarks.embedded_bert import bert_measurements
from benchmarks.embedded_causal import causal_measurements
from benchmarks.embedded_kinds import kind_measurements, kinds_of_text
from benchmarks.embedded_sentiment import sentiment_measurements
from benchmarks.evidence import Measurements, Texts, finding
from benchmarks.session import RESULTS
from minibert.bench.gate import GateError, reason
from minibert.bench.result_rows import Row, facts, read_rows, write_rows
from minibert.bench.tables import line
from minibert.errors import MinibertError
from minibert.model import Model

MEASUREMENTS: dict[str, Callable[[Model, Texts], Measurements]] = {
    "tiny-bert": bert_measurements,
    "tiny-gpt2": causal_measurements,
    "tiny-llama": causal_measurements,
}
SENTIMENT = "tiny-bert-sentiment"
EVERYTHING = "all scores"
LARGEST_MB = 4.0
WIDTHS = (46, 8, 10, 8)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every target is met."""
    chosen = parse(arguments)
    torch.set_num_threads(chosen.threads)
    known = facts(threads=chosen.threads)
    try:
        if chosen.kinds:
            kinds = kinds_of_text(chosen.kinds)
            known |= {"texts": named([one for texts in kinds.values() for one in texts])}
            plan = {name: partial(kind_measurements, kinds=kinds) for name in chosen.models}
        elif chosen.sentiment:
            known |= {"texts": file_sums(chosen.sentiment)}
            plan = {
                SENTIMENT: partial(
                    with_size, partial(sentiment_measurements, data=chosen.sentiment)
                )
            }
        else:
            texts = Texts.read(chosen.held_out, chosen.text)
            known |= {"held_out": named(texts.held_out), "training": named(texts.training)}
            plan = {
                name: partial(with_size, partial(MEASUREMENTS[name], texts=texts))
                for name in chosen.models
            }
    except (GateError, MinibertError) as error:
        print(error)
        return 2
    print(line(("score", "value", "target", ""), WIDTHS))
    rows = []
    for name, measurements in plan.items():
        place = getattr(chosen, name.replace("-", "_")) or name
        for row in scores(place, measurements):
            rows.append({"model": name, **row, **known})
            show(rows[-1])
    write_rows(beside_others(rows, chosen.output), chosen.output)
    targets = [row for row in rows if "met" in row or not row["ok"]]
    met = sum(row.get("met", False) for row in targets)
    print(f"\n{met} of {len(targets)} targets met; rows in {chosen.output}")
    return 0 if met == len(targets) else 1


def beside_others(rows: list[Row], output: Path) -> list[Row]:
    """These rows behind those of the output that are about something else."""
    measured = {(row["model"], row["what"]) for row in rows}
    # The row of a model that could not be loaded stands for all of its scores.
    measured |= {(model, EVERYTHING) for model, _ in measured}
    before = read_rows(output) if output.exists() else []
    return [row for row in before if (row["model"], row["what"]) not in measured] + rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Scores of the embedded models on unseen text.")
    parser.add_argument("--held-out", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--text", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--kinds", type=Path, metavar="FOLDER", help="the folder of test data")
    parser.add_argument("--sentiment", type=Path, metavar="FOLDER", help="labelled sentences")
    parser.add_argument("--output", type=Path, default=RESULTS / "embedded.jsonl")
    parser.add_argument("--models", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    for name in (*MEASUREMENTS, SENTIMENT):
        parser.add_argument(f"--{name}", metavar="FOLDER", help="another model in its place")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args(arguments)
    given = [bool(chosen.kinds), bool(chosen.sentiment), bool(chosen.held_out and chosen.text)]
    if given.count(True) != 1:
        parser.error("expected --held-out and --text, or --kinds, or --sentiment alone")
    return chosen


def named(documents: Sequence[Any]) -> dict[str, str]:
    """The names of texts with the start of their SHA-256, as cleaned for training."""
    return {document.name: document.digest[:16] for document in documents}


def scores(place: str, planned: Callable[[Model], Measurements]) -> Iterator[Row]:
    """The rows of a model; what cannot be measured is a row with the reason."""
    try:
        model, weights = minibert.load(place), weights_file(place)
        measurements = planned(model)
    except (GateError, MinibertError) as error:
        yield {"what": EVERYTHING, "ok": False, "reason": reason(error)}
        return
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    for what, measure in measurements.items():
        try:
            with torch.no_grad():
                row = measure()
        except (GateError, MinibertError) as error:
            row = {"ok": False, "reason": reason(error)}
        yield {"what": what, **row, "weights_sha256": digest}


def with_size(measurements: Callable[[Model], Measurements], model: Model) -> Measurements:
    """The size of the weights, and what else the model is measured in."""
    size: Measurements = {"weights in MB": partial(weights_size, weights_file(model.name))}
    return size | measurements(model)


def file_sums(folder: Path) -> dict[str, str]:
    """The names of the files with the start of their SHA-256."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def weights_size(weights: Path) -> Row:
    return finding(weights.stat().st_size / 1e6, at_most=LARGEST_MB)


def weights_file(place: str) -> Path:
    folder = Path(minibert.__file__).parent / "embedded" / place
    return (folder if folder.is_dir() else Path(place)) / "model.safetensors"


def show(row: Row) -> None:
    what = f"{row['model']:<10} {row['what']}" + (f" ({row['head']})" if "head" in row else "")
    if not row["ok"]:
        print(f"{what.ljust(WIDTHS[0])}  {row['reason']}", flush=True)
        return
    verdict = "" if "met" not in row else "met" if row["met"] else "NOT MET"
    cells = (what, f"{row['value']:.3f}", row.get("target", ""), verdict)
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
