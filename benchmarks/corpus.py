"""What every head does over a corpus: tokens a second.

    python -m benchmarks.corpus [--texts N] [--quick] [--threads 2] [--rounds 3] [--output FILE]

MiniLM over the paragraphs of wikitext-2 valid, from the folder that MINIBERT_TEST_DATA names.
`survey` goes from text to tables of every measure. Beside it the plain packed pass over the same
texts, which gives none of it, and transformers with its own attention weights and NumPy, which
gives entropy, the offsets, and the masses on [CLS], [SEP], "." and ",". These means of everyone are
compared with transformers in float64 on the first texts before the clock starts.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import minibert
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, at_once
from benchmarks.session import REPOSITORY
from minibert.bench.gate import Outputs, Truth
from minibert.bench.result_rows import Row

PLAIN, OURS = "minibert packed, plain", "minibert survey"
ONE_BY_ONE = "transformers eager + NumPy, one at a time"
SORTED = "transformers eager + NumPy, sorted batches"
BATCH, LONGEST, SHORTEST_TEXT, COMPARED = 32, 256, 100, 16
BATCH_TOKENS = 4096
# A mean over documents, in float32.
ABSOLUTE = 1e-5
OFFSETS = {"to_previous": -1, "to_self": 0, "to_next": 1}
MEASURES = (*OFFSETS, "to_cls", "to_sep", "to_period_comma", "entropy")
#: Ids of "." and "," in the vocabulary of bert-base-uncased.
COMMA, PERIOD = 1010, 1012
Found = dict[str, Tensor]


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """The corpus: the first texts are compared, then all of them are timed."""
    texts = read_texts(chosen.texts or (20 if chosen.quick else None))
    ours, tokenizer = minibert.load(folder()), transformers_tokenizer()
    tokens = sum(len(piece) for text in texts for piece, _ in cut(tokenizer, text))
    name = f"{len(texts)} texts, {tokens} tokens"
    if not wanted(name):
        return
    few, about = texts[:COMPARED], {"texts": len(texts), "tokens": tokens}
    right = by_numpy(transformers_model(torch.float64), tokenizer, 1, few)
    eager = transformers_model(torch.float32)
    runs: dict[str, Callable[[Sequence[str]], Found]] = {
        PLAIN: partial(plain, ours, tokenizer),
        OURS: partial(by_survey, ours),
        ONE_BY_ONE: partial(by_numpy, eager, tokenizer, 1),
        SORTED: partial(by_numpy, eager, tokenizer, BATCH),
    }

    def check(name: str, found: Outputs, verdicts: Rows) -> Row:
        # What was timed is gone over a second time, on the texts whose truth is known.
        return Truth(right, absolute=ABSOLUTE).check(runs[name](few))

    def finish(rows: Rows) -> None:
        for row in rows.values():
            if "median_ms" in row:
                row["tokens_per_second"] = round(tokens / row["median_ms"] * 1e3, 1)

    contenders = at_once({name: partial(run, texts) for name, run in runs.items()}, dict)
    yield Workload(name, contenders, check, PLAIN, lambda name: about, finish, memory=False)


def folder() -> Path:
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    return data / "models" / "all-MiniLM-L6-v2"


def read_texts(count: int | None) -> list[str]:
    """The paragraphs of wikitext-2 valid, headings and short lines left out."""
    path = folder().parents[1] / "text" / "wikitext-2" / "wiki.valid.tokens"
    lines = (one.strip() for one in path.read_text(encoding="utf-8").splitlines())
    texts = (one for one in lines if len(one) >= SHORTEST_TEXT and not one.startswith("="))
    return list(islice(texts, count))


def transformers_tokenizer() -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder())


def transformers_model(dtype: torch.dtype) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: Any = {"attn_implementation": "eager", "add_pooling_layer": False, "dtype": dtype}
    return transformers.BertModel.from_pretrained(folder(), **options).eval()


def plain(loaded: Any, tokenizer: Any, texts: Sequence[str]) -> Found:
    """The hidden states of all texts in batches of so many tokens; only their mean is kept."""
    pieces = [ids for text in texts for ids, _ in cut(tokenizer, text)]
    ends = np.cumsum([len(piece) for piece in pieces])
    total, count = 0.0, 0
    for part in np.split(np.arange(len(pieces)), np.flatnonzero(np.diff(ends // BATCH_TOKENS)) + 1):
        ids, mask = padded([pieces[number] for number in part])
        for hidden in loaded.packed(minibert.Tokens.from_ids(ids, mask=mask.bool())):
            total, count = total + float(hidden.sum()), count + len(hidden)
    return {"hidden": torch.tensor(total / count)}


def by_survey(loaded: Any, texts: Sequence[str]) -> Found:
    """Everything that a survey gives; what is compared is among it."""
    from minibert.survey import survey

    found = survey(loaded, texts, longest=LONGEST, batch_tokens=BATCH_TOKENS)
    return {name: torch.from_numpy(found.table(name)) for name in MEASURES}


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The ids, filled up on the right, and 1 where they are real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return ids, (torch.arange(longest) < torch.tensor([*map(len, rows)])[:, None]).long()


def by_numpy(peer: Any, tokenizer: Any, size: int, texts: Sequence[str]) -> Found:
    """As one writes it: the model's own attention weights, and NumPy. Windows as ours has them."""
    sums: dict[str, Any] = {}
    count, hidden = 0, 0.0
    pieces = [piece for text in texts for piece in cut(tokenizer, text)]
    if size > 1:
        pieces.sort(key=lambda piece: len(piece[0]))
    for start in range(0, len(pieces), size):
        ids, share = zip(*pieces[start : start + size], strict=True)
        table, mask = padded(ids)
        out = peer(table, attention_mask=mask, output_attentions=True)
        layers = [one.numpy() for one in out.attentions]
        for row, one in enumerate(ids):
            n = len(one)
            hidden, count = hidden + float(out.last_hidden_state[row, :n].sum()), count + n
            tokens = np.array(one)
            for name, value in of_probs([at[row, :, :n, :n] for at in layers], tokens).items():
                sums[name] = sums.get(name, 0) + value * share[row] / len(texts)
    found = {name: torch.from_numpy(np.asarray(value)) for name, value in sums.items()}
    return found | {"hidden": torch.tensor(hidden / count)}


def cut(tokenizer: Any, text: str) -> list[tuple[list[int], float]]:
    """The ids of the windows of a text, and the share of its tokens in each."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = np.array_split(ids, -(-len(ids) // (LONGEST - 2)))
    whole = len(ids) + 2 * len(parts)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    return [([first, *part.tolist(), last], (len(part) + 2) / whole) for part in parts]


def of_probs(layers: Sequence[Any], tokens: Any) -> dict[str, Any]:
    """The means over rows of one text, (layer, head)."""
    n = len(tokens)
    kinds = {
        "to_cls": np.arange(n) == 0,
        "to_sep": np.arange(n) == n - 1,
        "to_period_comma": (tokens == COMMA) | (tokens == PERIOD),
    }
    found: dict[str, list[Any]] = {}
    for probs in layers:
        logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
        numbers = {"entropy": -(probs * logs).sum(-1).mean(-1)}
        numbers |= {name: probs[..., keys].sum((-2, -1)) / n for name, keys in kinds.items()}
        for name, offset in (("to_self", 0), ("to_previous", -1), ("to_next", 1)):
            numbers[name] = np.trace(probs, offset, 1, 2) / n
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in found.items()}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--texts", type=int, help="paragraphs; all, quick 20")


BENCHMARK = Benchmark(
    "corpus",
    "What every head does over a corpus, tokens a second.",
    asked,
    rounds=3,
    quick_rounds=1,
    columns=("median ms", "p20 - p80", "tokens/s", "ratio", "peak MiB", "error"),
    options=options,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
