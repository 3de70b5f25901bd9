"""What a reason costs, and whether it holds: `why`, `why_heads`, `survey --why`.

    python -m benchmarks.why [--quick] [--rows REGEX] [--threads 1] [--rounds 5] [--output FILE]
    python -m benchmarks.why --corpus FOLDER --output FILE    # of text/ and models/
    python -m benchmarks.why --sums 2000 --output FILE        # how far sums miss
    python -m benchmarks.why --ranks 50 --output FILE         # beside path patching
    python -m benchmarks.why --costs --output FILE            # what other analyses cost
    python -m benchmarks.why --int8 --output FILE             # int8 weights beside float32

GPT-2's shape with random weights. Everyone is given a trace, but for the survey, which makes its
own. `passes` is the median over rounds of the processor time of a call in that of a forward pass of
the same round; `peak_mib` is how much more memory the process held at most than before.

With a folder of texts and models, `survey --why` over wikitext-2's valid part: MiniLM with its own
weights, and GPT-2's shape, which reads one text.

`--costs`: gradients of one layer, path patching, the logit lens, norms and kept matrices, in passes
of the same model (tests compare their numbers), and the starts of commands, in those of torch.

`--sums`: so many drawn scores of random models, for float32 and for float64, with each level of
`follow` below them (tests/drawn_reasons.py). `largest_error` is a share of the largest part. `ok`
allows what `why` promises: 1e-5 of it, or the rounding of the score, 1e-6 of ‖query‖ · ‖key‖.

`--ranks`: so many random repeated texts. A component's part of a side of the score, less the mean
of its row, beside what the weight loses when what it wrote is that of another text on the direct
path to this query or key: path patching with all other heads and MLPs held. `rank` is the mean of
Spearman's correlation over texts, of an induction head at its induction token, and of a drawn head
of each layer where it looks most. `first` is how often the largest part has the largest loss.
"""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, chain
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


def gpt2(length: int, layers: int = 12) -> Any:
    """Its shape with random weights, which reads so many tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from minibert.model import from_transformers

    torch.manual_seed(0)
    return from_transformers(GPT2LMHeadModel(GPT2Config(n_positions=length, n_layer=layers)).eval())


def asked(length: int, layers: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Everything that is asked of a text of so many tokens, by name."""
    import minibert
    from minibert.analysis import why, why_heads, why_logit
    from minibert.survey.reasons import survey_reasons

    model = gpt2(length)
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


def costs() -> Iterator[tuple[int, dict[str, Callable[[], Any]]]]:
    """What other analyses do to a text of so many tokens, by name."""
    from minibert.analysis import logit_difference, logit_lens, path_patching, summed_norms

    @torch.enable_grad()
    def gradient(layer: int) -> None:
        trace = model.trace(ids, grad=True)
        trace.backward(trace.logits[0, -1, 7], layers=layer)
        _ = trace.grad[layer, 3].probs

    def paths(layer: int, **named: Any) -> None:
        receivers = [("query", layer, 3)]
        path_patching(clean, corrupt, metric, receivers=receivers, **named)

    model, ids, metric = gpt2(128), torch.randint(0, 50257, (1, 128)), logit_difference(5, 7)
    runs = {f"gradient of one head of layer {n}": partial(gradient, n) for n in (0, 3, 6, 9, 11)}
    yield 128, {FORWARD: partial(model, ids), **runs}
    model = gpt2(64, layers=6)
    ids, other = torch.randint(0, 50257, (2, 1, 64))
    clean, corrupt = model.trace(ids), model.trace(other)
    last = [("z", 5, head) for head in range(12)]
    yield (
        64,
        {
            FORWARD: partial(model, ids),
            "path patching of 6 layers, 72 senders, logits at one position": partial(
                paths, 5, positions=[-1]
            ),
            "path patching of 6 layers, 72 senders": partial(paths, 5),
            "path patching of 6 layers, 12 senders without a path": partial(paths, 5, senders=last),
        },
    )
    for length in (128, 512):
        model, ids = gpt2(length), torch.randint(0, 50257, (1, length))
        trace = model.trace(ids)
        yield (
            length,
            {
                FORWARD: partial(model, ids),
                "logit_lens": partial(logit_lens, trace),
                "summed_norms": partial(summed_norms, trace, 6),
            },
        )
    model, ids = gpt2(1024), torch.randint(0, 50257, (1, 1024))
    kept = partial(model.trace, ids, keep=("scores", "probs"))
    yield 1024, {FORWARD: partial(model, ids), "trace": partial(model.trace, ids), "keep": kept}


def rounded() -> Iterator[tuple[int, dict[str, Callable[[], Any]]]]:
    """A pass and a generation of 32 tokens with int8 weights, beside float32."""
    import minibert
    from minibert import Tokens

    with tempfile.TemporaryDirectory() as folder:
        gpt2(512).save(folder)
        plain, int8 = minibert.load(folder), minibert.load(folder, weights="int8")
        for length in (128, 512):
            ids = torch.randint(0, 50257, (1, length))
            yield length, {FORWARD: partial(plain, ids), "int8": partial(int8, ids)}
        for batch in (1, 8):
            prompts = Tokens.from_ids(torch.randint(0, 50257, (batch, 2)))
            options = {"max_new_tokens": 32, "temperature": 0}
            name = f"generation, prompts {batch}"
            both = {name: partial(plain.generate, prompts, **options)}
            yield 32 * batch, both | {f"{name}, int8": partial(int8.generate, prompts, **options)}


def starts(rounds: int) -> Iterator[Row]:
    """The processor time of whole processes, in turns."""
    predict = ["predict", "leaves [MASK] in autumn", "--model", "tiny-bert"]
    processes = {
        "import torch": ["-c", "import torch"],
        "import torch, minibert": ["-c", "import torch, minibert"],
        "minibert models": ["-m", "minibert", "models"],
        "minibert predict": ["-m", "minibert", *predict],
    }
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    with tempfile.TemporaryDirectory() as folder:
        # The first round writes the compiled modules, whatever the environment says.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(rounds + 1):
            for name, arguments in processes.items():
                command = [sys.executable, *arguments]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                if number:
                    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
                    seconds[name].append(used)
    for name, own in seconds.items():
        beyond = [each - one for each, one in zip(own, seconds["import torch"], strict=True)]
        row: Row = {"what": "start", "implementation": name, "ok": True, "rounds": rounds}
        yield row | {"seconds": median(own), "seconds_beyond_torch": median(beyond)}


def over_corpus(folder: Path, length: int) -> dict[str, Callable[[], Any]]:
    """`survey --why` over so many tokens of wikitext-2, each with a model of its own."""
    import minibert
    from minibert.survey.reasons import survey_reasons
    from minibert.text.tokenizer import Tokenizer

    lines = (folder / "text/wikitext-2/wiki.valid.tokens").read_text(encoding="utf-8").splitlines()
    lines = [line.strip() for line in lines if len(line) > 100]
    mini = minibert.load(folder / "models/all-MiniLM-L6-v2")
    counts = accumulate(min(512, len(mini.tokenizer.encode(line))) for line in lines)
    some = [line for line, count in zip(lines, counts, strict=True) if count <= length]
    shape = gpt2(length)
    shape.tokenizer = Tokenizer.from_folder(folder / "models/gpt2-tokenizer")
    text = shape.tokenizer.decode(shape.tokenizer.encode("\n".join(lines))[: length - 8])
    return {
        "survey --why 1-0, MiniLM": partial(survey_reasons, mini, some, {1: (0,)}, longest=512),
        "survey --why 1-0, gpt2": partial(survey_reasons, shape, [text], {1: (0,)}),
    }


def sums(count: int) -> Iterator[Row]:
    """A row for each family and dtype, all together at least so many scores of a dtype."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from tests.drawn_reasons import CLASSES, LIMITS, Miss, misses
    from tests.families import sizes

    for family in CLASSES:
        for dtype, limit in LIMITS.items():
            found, number = list[Miss](), random.randrange(2**32)

            @seed(number)
            @settings(
                max_examples=-(-count // len(CLASSES)),
                phases=(Phase.generate,),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(chosen=sizes, data=st.data())
            def draw(chosen: Any, data: Any) -> None:
                found.extend(misses(family, chosen, dtype, data))  # noqa: B023

            draw()
            scores = [miss for miss in found if miss.level == "score"]
            row: Row = {"what": "why sums", "implementation": "why", "model": family}
            row |= {"dtype": str(dtype), "seed": number, "scores": len(scores)}
            row |= {"levels": len(found) - len(scores)}
            row["ok"] = all(miss.within(dtype) for miss in found)
            row["largest_error"] = max(miss.of_largest for miss in scores)
            row["largest_error_below"] = max(
                miss.of_largest for miss in found if miss.level != "score"
            )
            row["above_limit"] = sum(miss.of_largest > limit for miss in scores)
            row["largest_error_of_lengths"] = max(miss.of_lengths for miss in scores)
            yield row


def ranks(texts: int) -> Iterator[Row]:
    """A row for the induction head and for each layer of two models."""
    import minibert
    from minibert.analysis import head_scores, repeated_ids

    for name in ("tiny-gpt2", "tiny-llama"):
        model, generator = minibert.load(name), torch.Generator().manual_seed(0)
        ids = repeated_ids(model.config.vocab_size, draws=2, length=20)
        scores = head_scores(model, ids, repeated=ids)["induction"]
        induction = divmod(int(scores.argmax()), model.config.n_heads)
        found = dict[str, list[tuple[float, bool]]]()
        for _ in range(texts):
            halves = torch.randint(300, 4000, (2, 1, 20), generator=generator)
            clean, other = (model.trace(torch.cat([half, half], 1)) for half in halves)
            query = int(torch.randint(21, 39, (1,), generator=generator))
            asked = [("induction", *induction, query - 19)]
            for layer in range(1, model.config.n_layers):
                head = int(torch.randint(model.config.n_heads, (1,), generator=generator))
                most = int(clean[layer, head].probs[0, query].argmax())
                asked.append((f"layer {layer}", layer, head, most))
            for kind, layer, head, key in asked:
                found.setdefault(kind, []).append(agreement(clean, other, layer, head, query, key))
        for kind, pairs in found.items():
            row: Row = {"what": "why ranks", "implementation": kind, "model": name, "ok": True}
            row |= {"texts": texts, "rank": sum(rank for rank, _ in pairs) / texts}
            yield row | {"first": sum(first for _, first in pairs) / texts}


def agreement(
    clean: Any, other: Any, layer: int, head: int, query: int, key: int
) -> tuple[float, bool]:
    """Spearman's correlation of parts and losses, and whether the largest of both is the same."""
    config, parts, losses = clean.config, list[float](), list[float]()
    found = clean.why(layer, head, query, key, against="row")
    own = head // (config.n_heads // config.n_kv_heads)
    writers = [("z", n, h) for n in range(layer) for h in range(config.n_heads)]
    writers += [("mlp_out", n) for n in range(layer)]
    held = {(name, n): getattr(clean[n], name) for name in ("z", "mlp_out") for n in range(layer)}
    sides = {"query": head, "key": own}
    for name, n, *one in writers:
        value = getattr(other[n, one[0]] if one else other[n], name)
        after = {
            at: each for at, each in held.items() if at[1] > n or (one and at == ("mlp_out", n))
        }
        sent = clean.rerun({(name, n, *one): value} | after)
        for side, number in sides.items():
            moved = getattr(sent[layer], side)[:, number]
            patched = clean.rerun({(side, layer, number): moved})
            weights = [run[layer, head].probs[0, query, key].item() for run in (clean, patched)]
            losses.append(weights[0] - weights[1])
            label = f"head {n}-{one[0]}" if one else f"mlp {n}"
            parts.append(found.side(side)[label].item())
    both = torch.tensor([parts, losses])
    rank = torch.corrcoef(both.argsort(-1).argsort(-1).double())[0, 1].item()
    return rank, len(set(both.argmax(-1).tolist())) == 1


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
    parser.add_argument("--sums", type=int, help="so many drawn scores of each dtype")
    parser.add_argument("--ranks", type=int, help="so many texts beside path patching")
    parser.add_argument("--costs", action="store_true", help="what other analyses cost")
    parser.add_argument("--int8", action="store_true", help="int8 weights beside float32")
    chosen = parser.parse_args()
    kept = Kept("int8" if chosen.int8 else "costs" if chosen.costs else "why", chosen)
    with session(chosen.threads) as known:
        if chosen.sums or chosen.ranks:
            for row in sums(chosen.sums) if chosen.sums else ranks(chosen.ranks):
                told = {name: value for name, value in row.items() if name != "what"}
                kept.add({**row, **known}, str(told))
            return int(not all(row["ok"] for row in kept.finish()))
        if chosen.costs or chosen.int8:
            asked_for = rounded() if chosen.int8 else costs()
            several = (measured(runs, length, kept.rounds) for length, runs in asked_for)
            further = () if chosen.int8 else starts(kept.rounds)
            for row in chain(chain.from_iterable(several), further):
                # Nothing was compared here.
                row.pop("max_error", None)
                told = f"T{row.get('position', 0):<5} {row['implementation']:<62}"
                told += f" {row.get('passes', 0):6.2f} passes {row['seconds']:8.3f} s"
                kept.add({**row, **known}, told)
            return int(not all(row["ok"] for row in kept.finish()))
        for length, layers in ({64: (1,)} if chosen.quick else SHAPES).items():
            wanted = chosen.rows is None or chosen.rows.search(f"gpt2 T{length}")
            if not wanted or (chosen.corpus and length <= 512):
                continue
            runs = over_corpus(chosen.corpus, length) if chosen.corpus else asked(length, layers)
            for row in measured(runs, length, kept.rounds if length <= 512 else 1):
                told = (
                    f"T{length:<6} {row['implementation']:<28} {row.get('passes', 0):7.2f} passes"
                )
                told += f" {row['tokens_per_second']:9.1f} tokens/s {row['peak_mib']:7.0f} MiB"
                kept.add({**row, **known}, told)
    return int(not all(row["ok"] for row in kept.finish()))


if __name__ == "__main__":
    sys.exit(main())
