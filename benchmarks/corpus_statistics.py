"""Statistics of attention over a corpus, out of the pass that gives the hidden states.

    python -m benchmarks.corpus_statistics [--texts 400] [--quick] [--threads 2] [--rounds 5]
                                           [--output FILE]

MiniLM over paragraphs of wikitext-2, from the folder that MINIBERT_TEST_DATA names: entropy of each
row, what each key receives, and the mass at the offsets -1, 0 and 1, in every head. Tokens a second
of whole passes, beside the plain packed pass, which gives none of it. Each contender's numbers are
compared with transformers in float64, token by token, before the clock starts; padding is no token.
The exit status is 0 when everyone is right and both targets are met.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.cases import TOLERANCE
from benchmarks.session import REPOSITORY, Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, gated, timed_rows
from minibert.bench.gate import Outputs, Truth
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

OFFSETS = (-1, 0, 1)
STATISTICS = ("entropy", "received", ("offset_mass", OFFSETS))
PLAIN, OURS = "minibert packed, plain", "minibert packed trace, statistics"
ONE_BY_ONE = "transformers eager + NumPy, one at a time"
SORTED = "transformers eager + NumPy, sorted batches"
#: At least so many times the tokens a second of another contender.
TARGETS = {PLAIN: 0.85, ONE_BY_ONE: 1.75}
BATCH, LONGEST, SHORTEST_TEXT = 32, 256, 100
# Sums over queries, which the gate divides by their number.
MEANS = {"received"}
# How many texts the gate compares, token by token.
COMPARED = 16


@dataclass(frozen=True)
class Corpus:
    """Token ids of texts, made before the clock starts."""

    texts: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """All of them, special ones included."""
        return sum(map(len, self.texts))

    def batches(self, size: int, *, by_length: bool) -> Iterator[tuple[list[int], Any, Any]]:
        """Numbers of texts, their ids filled up on the right, and True where they are real."""
        numbers = list(range(len(self.texts)))
        if by_length:
            numbers.sort(key=lambda number: len(self.texts[number]))
        for start in range(0, len(numbers), size):
            chosen = numbers[start : start + size]
            longest = max(len(self.texts[number]) for number in chosen)
            ids = torch.zeros(len(chosen), longest, dtype=torch.long)
            mask = torch.zeros_like(ids, dtype=torch.bool)
            for row, number in enumerate(chosen):
                length = len(self.texts[number])
                ids[row, :length] = torch.tensor(self.texts[number])
                mask[row, :length] = True
            yield chosen, ids, mask


# The numbers of one text by name: (layer, head, token) statistics, or its hidden states.
Found = dict[str, Any]
Pass = Callable[[Corpus], Iterator[tuple[int, Found]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when everyone is right and the targets are met."""
    parser = argparse.ArgumentParser(description="Statistics over a corpus, tokens a second.")
    parser.add_argument("--texts", type=int, help="paragraphs; 400, quick 20")
    chosen = parse(arguments, "", rounds=5, quick_rounds=1, parser=parser)
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    folder = data / "models" / "all-MiniLM-L6-v2"
    with session(chosen.threads) as known:
        count = chosen.texts or (20 if chosen.quick else 400)
        corpus = read_corpus(data / "text" / "wikitext-2" / "wiki.valid.tokens", folder, count)
        kept = Kept("corpus-statistics", chosen)
        print(f"{len(corpus.texts)} texts, {corpus.tokens} tokens\n{line(HEADINGS, WIDTHS)}")
        found = measure(corpus, passes(folder), reference(folder), chosen.rounds)
        kept.rows = [{**row, **known} for row in with_targets(found)]
        for row in kept.rows:
            show(row)
    rows = kept.finish()
    return 0 if all(row["ok"] for row in rows) and (chosen.quick or met(rows)) else 1


def read_corpus(path: Path, model: Path, count: int) -> Corpus:
    """The first paragraphs of a text of wikitext, headings and short lines left out."""
    from transformers import AutoTokenizer

    lines = (one.strip() for one in path.read_text(encoding="utf-8").splitlines())
    texts = [one for one in lines if len(one) >= SHORTEST_TEXT and not one.startswith("=")]
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(texts[:count], truncation=True, max_length=LONGEST)["input_ids"]
    return Corpus(tuple(map(tuple, ids)))


def passes(folder: Path) -> dict[str, Pass]:
    """Everyone, and how each goes over a corpus; the first is the baseline."""
    import minibert

    model = minibert.load(folder)
    eager, sdpa = (transformers_model(folder, name) for name in ("eager", "sdpa"))
    return {
        PLAIN: partial(packed_plain, model),
        OURS: partial(packed_statistics, model),
        ONE_BY_ONE: partial(by_numpy, eager, 1),
        SORTED: partial(by_numpy, eager, BATCH),
        "transformers sdpa, plain, sorted batches": partial(plain, sdpa),
    }


def transformers_model(folder: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: Any = {"attn_implementation": attention, "add_pooling_layer": False, "dtype": dtype}
    return transformers.BertModel.from_pretrained(folder, **options).eval()


def reference(folder: Path) -> Pass:
    """What is right: transformers in float64 with explicit attention, one text at a time."""
    return partial(by_numpy, transformers_model(folder, "eager", torch.float64), 1)


def packed_plain(model: Any, corpus: Corpus) -> Iterator[tuple[int, Found]]:
    for numbers, ids, mask in corpus.batches(BATCH, by_length=False):
        hidden = model.packed(tokens_of(ids, mask))
        yield from ((n, {"hidden": one}) for n, one in zip(numbers, hidden, strict=True))


def packed_statistics(model: Any, corpus: Corpus) -> Iterator[tuple[int, Found]]:
    for numbers, ids, mask in corpus.batches(BATCH, by_length=False):
        trace = model.trace(tokens_of(ids, mask), packed=True, statistics=STATISTICS)
        layers = [trace[layer].statistics for layer in range(model.config.n_layers)]
        first = 0
        for number in numbers:
            span = slice(first, first + len(corpus.texts[number]))
            first = span.stop
            statistics = {
                name: torch.stack([getattr(layer, name)[0, :, span] for layer in layers])
                for name in ("entropy", "received", "offset_mass")
            }
            yield number, {"hidden": trace.hidden_states[-1][0, span], **statistics}


def tokens_of(ids: Tensor, mask: Tensor) -> Any:
    from minibert import Tokens

    return Tokens.from_ids(ids, mask=mask)


def by_numpy(model: Any, size: int, corpus: Corpus) -> Iterator[tuple[int, Found]]:
    """As one writes it: the model's own attention weights, and NumPy."""
    for numbers, ids, mask in corpus.batches(size, by_length=size > 1):
        out = model(ids, attention_mask=mask.long(), output_attentions=True)
        layers = [one.numpy() for one in out.attentions]
        for row, number in enumerate(numbers):
            n = len(corpus.texts[number])
            found = [of_probs(layer[row, :, :n, :n]) for layer in layers]
            statistics = {
                name: torch.from_numpy(np.stack([one[name] for one in found])) for name in found[0]
            }
            yield number, {"hidden": out.last_hidden_state[row, :n], **statistics}


def of_probs(probs: Any) -> dict[str, Any]:
    """The statistics of one layer of one text, from (head, query, key)."""
    logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
    masses = np.zeros((*probs.shape[:2], len(OFFSETS)), probs.dtype)
    for place, offset in enumerate(OFFSETS):
        diagonal = np.diagonal(probs, offset, 1, 2)
        first = max(0, -offset)
        masses[:, first : first + diagonal.shape[1], place] = diagonal
    entropy = -(probs * logs).sum(-1)
    return {"entropy": entropy, "received": probs.sum(-2), "offset_mass": masses}


def plain(model: Any, corpus: Corpus) -> Iterator[tuple[int, Found]]:
    for numbers, ids, mask in corpus.batches(BATCH, by_length=True):
        hidden = model(ids, attention_mask=mask.long()).last_hidden_state
        for row, number in enumerate(numbers):
            yield number, {"hidden": hidden[row, : len(corpus.texts[number])]}


def measure(
    corpus: Corpus, contenders: dict[str, Pass], right: Pass, rounds: int
) -> dict[str, Row]:
    """A row for each: some texts are compared token by token, then all of them are timed."""
    few = Corpus(corpus.texts[:COMPARED])
    truth = Truth(by_token(right, few), absolute=TOLERANCE)
    verdicts = {
        name: gated(Contender(partial(by_token, one, few), dict), partial(checked, truth, few))
        for name, one in contenders.items()
    }
    runs = {
        name: Contender(partial(means, one, corpus), lambda found: found)
        for name, one in contenders.items()
    }
    rows = timed_rows(runs, verdicts, Clock(), rounds=rounds, baseline=PLAIN)
    for name, row in rows.items():
        row |= {"implementation": name, "texts": len(corpus.texts), "tokens": corpus.tokens}
        if "median_ms" in row:
            row["tokens_per_second"] = round(corpus.tokens / row["median_ms"] * 1e3, 1)
    return rows


def by_token(run: Pass, corpus: Corpus) -> Found:
    """Every number of every text; what a key receives as the mean over queries."""
    found: Found = {}
    for number, numbers in run(corpus):
        received = {
            name: numbers[name] / len(corpus.texts[number]) for name in MEANS & set(numbers)
        }
        found |= {f"{name} {number}": value for name, value in (numbers | received).items()}
    return found


def checked(truth: Truth, corpus: Corpus, found: Outputs) -> Row:
    """What the gate says. Raises WrongError where a text was left out."""
    kinds = {name.split()[0] for name in found}
    expected = {f"{kind} {number}" for kind in kinds for number in range(len(corpus.texts))}
    values = {name: truth.values[name] for name in expected}
    return Truth(values, absolute=truth.absolute, complete=True).check(found)


def means(run: Pass, corpus: Corpus) -> Found:
    """The mean over all tokens of each number, by layer and head: nothing grows with the corpus."""
    sums: dict[str, Tensor] = {}
    for _, found in run(corpus):
        for name, value in found.items():
            if name != "hidden":
                total = value.sum(2)
                sums[name] = sums[name] + total if name in sums else total
    return {name: total / corpus.tokens for name, total in sums.items()}


def with_targets(rows: dict[str, Row]) -> list[Row]:
    """The rows; ours says how many times the tokens a second of the others it has."""
    ours = rows[OURS]
    for name, least in TARGETS.items():
        if ours["ok"] and rows[name]["ok"]:
            times = rows[name]["median_ms"] / ours["median_ms"]
            ours.setdefault("targets", {})[name] = {"times": round(times, 3), "least": least}
    return [{"what": "corpus statistics", **row} for row in rows.values()]


def met(rows: Sequence[Row]) -> bool:
    """Whether every target is met."""
    [targets] = [row["targets"] for row in rows if row["implementation"] == OURS]
    return all(one["times"] >= one["least"] for one in targets.values())


WIDTHS = (44, 11, 10, 19, 9, 9)
HEADINGS = ("implementation", "tokens/s", "median ms", "p20 - p80", "peak MiB", "error")


def show(row: Row) -> None:
    """Print a row, and the targets below ours."""
    if not row["ok"]:
        print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}", flush=True)
        return
    cells = (
        row["implementation"],
        f"{row['tokens_per_second']:.0f}",
        f"{row['median_ms']:.0f}",
        f"{row['p20_ms']:.0f} - {row['p80_ms']:.0f}",
        f"{row['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in row else "unknown",
        f"{row['max_error']:.0e}",
    )
    print(line(cells, WIDTHS), flush=True)
    for name, one in row.get("targets", {}).items():
        verdict = "met" if one["times"] >= one["least"] else "NOT MET"
        print(f"  {one['times']:.2f} x {name}, at least {one['least']:.2f}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
