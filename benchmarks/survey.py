"""A survey of a corpus: what every head does, tokens a second, and memory.

    python -m benchmarks.survey [--texts N] [--quick] [--threads 2] [--rounds 3] [--output FILE]

MiniLM over the paragraphs of wikitext-2 valid, from the folder that MINIBERT_TEST_DATA names, from
text to tables: entropy, masses on kinds of keys, offsets, related words and distances, all of it
again weighed by norms. Beside it the plain packed pass over the same batches, which gives none of
it, and transformers with its own attention weights and NumPy, which gives entropy, the offsets -1,
0 and 1, and the masses on [CLS], [SEP], "." and ",". What everyone gives is compared with
transformers in float64 on the first texts before the clock starts. A last row holds the memory that
a tenth of the corpus and all of it need, each in a process of its own. The exit status is 0 when
everyone is right and the targets are met.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.session import REPOSITORY, Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, gated, timed_rows
from minibert.bench.gate import Truth
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

PLAIN, OURS, OURS_NARROW = "minibert packed, plain", "minibert survey", "minibert survey, bfloat16"
ONE_BY_ONE = "transformers eager + NumPy, one at a time"
SORTED = "transformers eager + NumPy, sorted batches"
#: For each of ours at least so many times the tokens a second of another contender.
TARGETS = {OURS: {PLAIN: 0.85, ONE_BY_ONE: 1.75, SORTED: 2.0}, OURS_NARROW: {ONE_BY_ONE: 4.0}}
#: The peak for ten times the texts may differ by this share.
SAME_PEAK = 0.1
BATCH, LONGEST, SHORTEST_TEXT, COMPARED = 32, 256, 100, 16
BATCH_TOKENS = 4096
# A mean over documents, in float32 and in bfloat16, whose numbers have 8 bits.
ABSOLUTE, ABSOLUTE_NARROW = 1e-5, 0.1
MEASURES = ("to_self", "to_previous", "to_next", "to_cls", "to_sep", "to_period_comma", "entropy")
Found = dict[str, Tensor]
Pass = Callable[[Sequence[str]], Found]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when everyone is right and the targets are met."""
    parser = argparse.ArgumentParser(description="A survey of a corpus, tokens a second.")
    parser.add_argument("--texts", type=int, help="paragraphs; all, quick 20")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    chosen = parse(arguments, "", rounds=3, quick_rounds=1, parser=parser)
    texts = read_texts(chosen.texts or (20 if chosen.quick else None))
    if chosen.memory_of:
        return tell_memory(texts[: chosen.memory_of], chosen.threads)
    with session(chosen.threads) as known:
        kept = Kept("survey", chosen)
        tokens = sum(len(one) for batch in segment_batches(model(), texts) for one in batch)
        print(f"{len(texts)} texts, {tokens} tokens\n{line(HEADINGS, WIDTHS)}")
        found = with_targets(measure(texts, tokens, chosen.rounds))
        found.append(memory_row(len(texts), chosen.threads))
        kept.rows = [{**row, **known} for row in found]
        for row in kept.rows:
            show(row)
    rows = kept.finish()
    return 0 if all(row["ok"] for row in rows) and (chosen.quick or met(rows)) else 1


def folder() -> Path:
    data = Path(os.environ.get("MINIBERT_TEST_DATA", REPOSITORY.parent / "shared"))
    return data / "models" / "all-MiniLM-L6-v2"


def read_texts(count: int | None) -> list[str]:
    """The paragraphs of wikitext-2 valid, headings and short lines left out."""
    path = folder().parents[1] / "text" / "wikitext-2" / "wiki.valid.tokens"
    lines = (one.strip() for one in path.read_text(encoding="utf-8").splitlines())
    texts = (one for one in lines if len(one) >= SHORTEST_TEXT and not one.startswith("="))
    return list(islice(texts, count))


def model() -> Any:
    import minibert

    return minibert.load(folder())


def passes() -> dict[str, Pass]:
    """Everyone; the first is the baseline."""
    ours, tokenizer = model(), transformers_tokenizer()
    eager = transformers_model(torch.float32)
    return {
        PLAIN: partial(plain, ours),
        OURS: partial(by_survey, ours, None),
        OURS_NARROW: partial(by_survey, ours, torch.bfloat16),
        ONE_BY_ONE: partial(by_numpy, eager, tokenizer, 1),
        SORTED: partial(by_numpy, eager, tokenizer, BATCH),
    }


def transformers_tokenizer() -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder())


def transformers_model(dtype: torch.dtype) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options: Any = {"attn_implementation": "eager", "add_pooling_layer": False, "dtype": dtype}
    return transformers.BertModel.from_pretrained(folder(), **options).eval()


def segment_batches(loaded: Any, texts: Sequence[str]) -> list[list[Sequence[int]]]:
    """The token ids of the segments of the survey's batches."""
    return [[one.ids for one in batch.segments] for batch in batches_of(loaded, texts)]


def batches_of(loaded: Any, texts: Sequence[str]) -> Any:
    from minibert.survey.documents import Document
    from minibert.survey.segments import Segmenter, batches
    from minibert.survey.windows import windows

    segmenter = Segmenter(loaded, longest=LONGEST)
    for window in windows(Document(str(n), text) for n, text in enumerate(texts)):
        yield from batches(segmenter.segments(window.documents)[0], BATCH_TOKENS)


def plain(loaded: Any, texts: Sequence[str]) -> Found:
    """The hidden states of all texts, of which only the mean is kept."""
    from minibert import Tokens

    total, count = 0.0, 0
    for batch in batches_of(loaded, texts):
        read = batch.inputs(torch.device("cpu"))
        tokens = Tokens.from_ids(read.ids, mask=read.mask, segments=read.segments)
        for hidden in loaded.packed(tokens):
            total, count = total + float(hidden.sum()), count + len(hidden)
    return {"hidden": torch.tensor(total / count)}


def by_survey(loaded: Any, dtype: torch.dtype | None, texts: Sequence[str]) -> Found:
    """Everything that a survey gives; what is compared is among it."""
    from minibert.survey.run import survey

    found = survey(loaded, texts, longest=LONGEST, batch_tokens=BATCH_TOKENS, dtype=dtype)
    return {name: torch.from_numpy(found.table(name)) for name in MEASURES}


def by_numpy(peer: Any, tokenizer: Any, size: int, texts: Sequence[str]) -> Found:
    """As one writes it: the model's own attention weights, and NumPy. Windows as ours has them."""
    sums: dict[str, Any] = {}
    count, hidden = 0, 0.0
    pieces = [piece for text in texts for piece in cut(tokenizer, text)]
    if size > 1:
        pieces.sort(key=lambda piece: len(piece[0]))
    for start in range(0, len(pieces), size):
        ids, share = zip(*pieces[start : start + size], strict=True)
        longest = max(map(len, ids))
        table = torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids])
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
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
    comma, period = 1010, 1012
    kinds = {
        "to_cls": np.arange(n) == 0,
        "to_sep": np.arange(n) == n - 1,
        "to_period_comma": (tokens == comma) | (tokens == period),
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


def measure(texts: Sequence[str], tokens: int, rounds: int) -> dict[str, Row]:
    """A row for each: the first texts are compared, then all of them are timed."""
    few, contenders = texts[:COMPARED], passes()
    right = by_numpy(transformers_model(torch.float64), transformers_tokenizer(), 1, few)
    verdicts = {}
    for name, one in contenders.items():
        allowed = ABSOLUTE_NARROW if name == OURS_NARROW else ABSOLUTE
        truth = Truth(right, absolute=allowed)
        verdicts[name] = gated(Contender(partial(one, few), dict), truth.check)
    runs = {name: Contender(partial(one, texts), dict) for name, one in contenders.items()}
    rows = timed_rows(runs, verdicts, Clock(), rounds=rounds, baseline=PLAIN, memory=False)
    for name, row in rows.items():
        row |= {"implementation": name, "texts": len(texts), "tokens": tokens, "baseline": PLAIN}
        if "median_ms" in row:
            row["tokens_per_second"] = round(tokens / row["median_ms"] * 1e3, 1)
    return rows


def tell_memory(texts: Sequence[str], threads: int) -> int:
    """Write the peak of this process, in bytes, after a survey of the texts."""
    import resource

    torch.set_num_threads(threads)
    by_survey(model(), None, texts)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    return 0


def memory_row(count: int, threads: int) -> Row:
    """The peaks of a tenth of the texts and of all of them."""
    peaks = []
    for texts in (max(1, count // 10), count):
        command = [sys.executable, "-m", "benchmarks.survey", "--memory-of", str(texts)]
        done = subprocess.run(
            [*command, "--threads", str(threads)], capture_output=True, text=True, check=True
        )
        peaks.append(int(json.loads(done.stdout)))
    times = peaks[1] / peaks[0]
    target = {"times": round(times, 3), "most": 1 + SAME_PEAK}
    row = {"ok": True, "implementation": "minibert survey, peak of all texts and of a tenth"}
    return {"what": "survey memory", **row, "peak_bytes": peaks, "targets": {"a tenth": target}}


def with_targets(rows: dict[str, Row]) -> list[Row]:
    """The rows; ours say how many times the tokens a second of the others they have."""
    for name, targets in TARGETS.items():
        for other, least in targets.items():
            if rows[name]["ok"] and rows[other]["ok"]:
                times = rows[other]["median_ms"] / rows[name]["median_ms"]
                target = {"times": round(times, 3), "least": least}
                rows[name].setdefault("targets", {})[other] = target
    return [{"what": "survey", **row} for row in rows.values()]


def met(rows: Sequence[Row]) -> bool:
    """Whether every target is met."""
    targets = [one for row in rows for one in row.get("targets", {}).values()]
    return all(
        one.get("least", 0) <= one["times"] <= one.get("most", float("inf")) for one in targets
    )


WIDTHS = (50, 11, 10, 19, 9)
HEADINGS = ("implementation", "tokens/s", "median ms", "p20 - p80", "error")


def show(row: Row) -> None:
    """Print a row, and the targets below it."""
    if not row["ok"]:
        print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}", flush=True)
        return
    if "median_ms" in row:
        cells = (
            row["implementation"],
            f"{row['tokens_per_second']:.0f}",
            f"{row['median_ms']:.0f}",
            f"{row['p20_ms']:.0f} - {row['p80_ms']:.0f}",
            f"{row['max_error']:.0e}",
        )
        print(line(cells, WIDTHS), flush=True)
    else:
        print(row["implementation"], *(f"{one / 2**20:.0f} MiB" for one in row["peak_bytes"]))
    for name, one in row.get("targets", {}).items():
        bound = f"at least {one['least']:.2f}" if "least" in one else f"at most {one['most']:.2f}"
        verdict = "met" if met([{"targets": {name: one}}]) else "NOT MET"
        print(f"  {one['times']:.2f} x {name}, {bound}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
