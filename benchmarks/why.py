"""What a reason costs, in forward passes of processor time: `why`, `why_heads`, `survey --why`.

    python -m benchmarks.why [--quick] [--rows REGEX] [--threads 1] [--rounds 5] [--output FILE]
    python -m benchmarks.why --corpus FOLDER --output FILE    # of text/ and models/

GPT-2's shape with random weights. Everyone is given a trace, but for the survey, which makes its
own. `passes` is the median over rounds of the processor time of a call in that of a forward pass of
the same round; `peak_mib` is how much more memory the process held at most than before.

With a folder of texts and models, `survey --why` over wikitext-2's valid part: MiniLM with its own
weights, and GPT-2's shape, which reads one text.
"""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.session import Kept, options, session
from minibert.bench.result_rows import Row

FORWARD = "forward pass"
# A sum may miss its number by this part of its largest part.
TOLERANCE = 1e-4
# Tokens of a text, and the layers whose heads are asked about; long ones are for the survey alone.
SHAPES = {512: (1, 6, 11), 2048: (1,), 16384: (1,)}


def asked(length: int, layers: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Everything that is asked of a text of so many tokens, by name."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import minibert
    from minibert.analysis import why, why_heads, why_logit
    from minibert.loading import from_transformers
    from minibert.survey.reasons import survey_reasons

    torch.manual_seed(0)
    model = from_transformers(GPT2LMHeadModel(GPT2Config(n_positions=length)).eval())
    ids = torch.randint(0, 50257, (1, length))
    runs: dict[str, Callable[[], Any]] = {FORWARD: partial(model, ids)}
    if length <= 512:
        trace, last = model.trace(ids), layers[-1]
        place = {"query": length - 1, "key": length // 4}
        runs |= {
            "why_logit": lambda: why_logit(trace, 7),
            f"why, layer {last}": lambda: why(trace, last, 5, **place),
            f'why, layer {last}, against="row"': lambda: why(
                trace, last, 5, **place, against="row"
            ),
        }
        runs |= {f"why_heads, layer {n}": partial(why_heads, trace, n) for n in layers}
    # Words of one token each.
    model.tokenizer = minibert.load("tiny-gpt2").tokenizer
    words = [" river", " window", " summer", " horse", " garden", " letter", " morning"]
    text = "".join(words[n] for n in torch.randint(0, len(words), (length,)).tolist())
    runs[f"survey --why {layers[0]}-0"] = partial(survey_reasons, model, [text], {layers[0]: (0,)})
    return runs


def over_corpus(folder: Path, length: int) -> dict[str, Callable[[], Any]]:
    """`survey --why` over so many tokens of wikitext-2, each with a model of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import minibert
    from minibert.loading import from_transformers
    from minibert.survey.reasons import survey_reasons
    from minibert.text.tokenizer import Tokenizer

    lines = (folder / "text/wikitext-2/wiki.valid.tokens").read_text(encoding="utf-8").splitlines()
    lines = [line.strip() for line in lines if len(line) > 100]
    mini = minibert.load(folder / "models/all-MiniLM-L6-v2")
    counts = accumulate(min(512, len(mini.tokenizer.encode(line))) for line in lines)
    some = [line for line, count in zip(lines, counts, strict=True) if count <= length]
    torch.manual_seed(0)
    shape = from_transformers(GPT2LMHeadModel(GPT2Config(n_positions=length)).eval())
    shape.tokenizer = Tokenizer.from_folder(folder / "models/gpt2-tokenizer")
    text = shape.tokenizer.decode(shape.tokenizer.encode("\n".join(lines))[: length - 8])
    return {
        "survey --why 1-0, MiniLM": partial(survey_reasons, mini, some, {1: (0,)}, longest=512),
        "survey --why 1-0, gpt2": partial(survey_reasons, shape, [text], {1: (0,)}),
    }


def error_of(found: Any) -> float:
    """How far the parts miss their number, as a share of the largest; others check themselves."""
    number = getattr(found, "score", getattr(found, "number", None))
    if isinstance(found, Tensor) or number is None:
        return 0.0
    return float(abs(found.total - number) / max(found.values.abs().max().item(), abs(number)))


def measured(runs: Mapping[str, Callable[[], Any]], length: int, rounds: int) -> list[Row]:
    """A row for each: processor seconds, in turns, and how many forward passes that is."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    peaks, errors = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0)
    for _ in range(rounds):
        for name, run in runs.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.process_time()
            found = run()
            seconds[name].append(time.process_time() - start)
            more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            peaks[name], errors[name] = max(peaks[name], more), error_of(found)
    rows = list[Row]()
    for name, own in seconds.items():
        row: Row = {"what": "why", "implementation": name, "model": "gpt2", "position": length}
        row |= {"ok": errors[name] <= TOLERANCE, "max_error": errors[name], "rounds": rounds}
        row |= {"seconds": median(own), "peak_mib": peaks[name]}
        if FORWARD in runs:
            passes = [each / one for each, one in zip(own, seconds[FORWARD], strict=True)]
            row |= {"passes": median(passes), "passes_least": min(passes)}
            row |= {"passes_most": max(passes)}
        rows.append(row | {"tokens_per_second": length / median(own)})
    return rows


def main() -> int:
    """The exit status: 0 when all sums are right."""
    parser = options("What a reason costs, in forward passes.", rounds=5, quick_rounds=2)
    parser.add_argument("--corpus", type=Path, help="a folder with text/ and models/")
    chosen = parser.parse_args()
    kept = Kept("why", chosen)
    with session(chosen.threads) as known:
        for length, layers in ({64: (1,)} if chosen.quick else SHAPES).items():
            if chosen.rows and not chosen.rows.search(f"gpt2 T{length}"):
                continue
            rounds = chosen.rounds or (2 if chosen.quick else 5)
            if chosen.corpus and length <= 512:
                continue
            runs = over_corpus(chosen.corpus, length) if chosen.corpus else asked(length, layers)
            for row in measured(runs, length, rounds if length <= 512 else 1):
                kept.rows.append({**row, **known})
                print(
                    f"T{length:<6} {row['implementation']:<28} {row.get('passes', 0):7.2f} passes",
                    end="",
                )
                print(f" {row['tokens_per_second']:9.1f} tokens/s {row['peak_mib']:7.0f} MiB")
            kept.save()
    return int(not all(row["ok"] for row in kept.finish()))


if __name__ == "__main__":
    sys.exit(main())
