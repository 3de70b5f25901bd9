"""Analyses beside the formula they stand for, written out, and beside a forward pass.

    python -m benchmarks.analyses [--quick] [--rows REGEX] [--threads 2] [--rounds 5] [--output F]

All in one process, in turns, with a model of the shape of gpt2 and random weights. What an analysis
gives is compared with the formula before a clock runs. Each row says how many plain forward passes
of the same text its time is (`passes`), timed in the same turns. The exit status is 0 when all are
right and summed_norms at 512 tokens takes at most 6 times its time at 128.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.session import Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest
from minibert.bench.gate import Truth
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

OURS, DIRECT, PASS = "minibert", "written out", "forward pass"
#: What summed_norms at the longest text may take, in times at the shortest.
GROWTH = 6.0
LENGTHS, QUICK_LENGTHS = (128, 512), (11, 23)
#: Text of a sweep, at the shortest length alone: written out it is a pass a layer and position.
SWEPT = 32

Found = dict[str, Tensor]
Runs = dict[str, tuple[Callable[[], Found], Callable[[], Found]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when what is promised holds."""
    chosen = parse(arguments, "Analyses beside their formulas.", rounds=5, quick_rounds=1)
    kept = Kept("analyses", chosen)
    with session(chosen.threads, peer="torch") as known:
        for length in QUICK_LENGTHS if chosen.quick else LENGTHS:
            for row in measure(length, chosen):
                kept.rows.append({**row, **known})
                show(row)
                kept.save()
    rows = kept.finish()
    broken = list(broken_promises(rows))
    for promise in broken:
        print(promise)
    return 1 if broken else 0


def measure(length: int, chosen: argparse.Namespace) -> Iterator[Row]:
    """The rows of one length of text, analysis by analysis."""
    model = small_model() if chosen.quick else gpt2_shape()
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=generator)
    runs = analyses(model.trace(ids[:1]))
    if length == (QUICK_LENGTHS if chosen.quick else LENGTHS)[0]:
        runs |= sweeps(*(model.trace(ids[i : i + 1, :SWEPT]) for i in range(2)))
    for name, (ours, direct) in runs.items():
        if chosen.rows and not chosen.rows.search(f"{name} T{length}"):
            continue
        read = ids[:1, :SWEPT] if name == "patch_positions" else ids[:1]
        head = {"what": "analysis", "analysis": name, "position": read.shape[1]}
        yield from rows_of(head, model, read, ours, direct, chosen.rounds)


def rows_of(
    head: Row,
    model: Any,
    ids: Tensor,
    ours: Callable[[], Found],
    direct: Callable[[], Found],
    rounds: int,
) -> Iterator[Row]:
    """The rows of one analysis: right first, then in turns with what it stands for and a pass."""
    expected, logits = direct(), model(ids)
    truths = (Truth(expected, relative=1e-4), Truth({"logits": logits}, absolute=1e-4))

    def check(found: Mapping[str, Any]) -> Row:
        return truths["logits" in found].check(dict(found))

    entered = {OURS: Contender(ours, dict), DIRECT: Contender(direct, dict)}
    entered[PASS] = Contender(lambda: {"logits": model(ids)}, dict)
    found = contest(entered, check, Clock(), rounds=rounds, baseline=DIRECT)
    plain = found[PASS].get("median_ms")
    for name, row in found.items():
        passes = row["median_ms"] / plain if row["ok"] and plain else None
        yield {**head, "implementation": name, **row, "passes": passes}


def analyses(trace: Any) -> Runs:
    """Each analysis of one text and its formula, by name."""
    from minibert.analysis.decomposition import decompose
    from minibert.analysis.lens import logit_lens
    from minibert.analysis.norms import block_norms, summed_norms

    middle = trace.config.n_layers // 2
    return {
        "summed_norms": (
            lambda: {"norms": summed_norms(trace, middle).norms},
            lambda: {"norms": norms(trace, middle, stream=False)},
        ),
        "block_norms": (
            lambda: {"norms": block_norms(trace, middle).norms},
            lambda: {"norms": norms(trace, middle, stream=True)},
        ),
        "decompose": (lambda: {"parts": decompose(trace).parts}, partial(parts, trace)),
        "logit_lens": (
            lambda: {"probs": logit_lens(trace).probs},
            partial(predictions, trace),
        ),
        "save": (partial(saved, trace), partial(pickled, trace)),
    }


def sweeps(trace: Any, other: Any) -> Runs:
    """The analysis of a pair of texts, likewise."""
    return {"patch_positions": (partial(swept, trace, other), partial(patched, trace, other))}


def norms(trace: Any, layer: int, *, stream: bool) -> Tensor:
    """The length of what reaches each query from each key, every vector written out."""
    at = trace[layer]
    head_width = trace.config.d_head
    weight = trace.model.body.layers[layer].attention.output.weight
    moved = torch.einsum("bhkd,hdm->bhkm", at.value, weight.T.unflatten(0, (-1, head_width)))
    found = []
    for query in range(trace.allowed.position):
        vectors = torch.einsum("bhk,bhkm->bkm", at.probs[:, :, query], moved)
        if stream:
            vectors[:, query] += at.resid_pre[:, query]
        found.append(vectors.norm(dim=-1))
    return torch.stack(found, 1)


def parts(trace: Any) -> Found:
    """Everything that was written to the stream of a model with norms in front."""
    written = [trace.embed[None]]
    for at in trace:
        written.append(at.head_out.transpose(0, 1))
        bias = trace.model.body.layers[at.layer].attention.output.bias
        written += [bias.expand_as(at.mlp_out)[None], at.mlp_out[None]]
    return {"parts": torch.cat(written)}


def predictions(trace: Any) -> Found:
    """The largest probabilities at each layer, from all logits."""
    body, head = trace.model.body, trace.model.head
    found = [
        head(body.final(at.resid_post), None, trace.inputs.ids, None).softmax(-1).topk(5).values
        for at in trace
    ]
    return {"probs": torch.stack(found)}


def saved(trace: Any) -> Found:
    """A number of the trace, which is in a file by then."""
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "a.trace")
    return {"resid": trace[-1].resid_post}


def pickled(trace: Any) -> Found:
    """The same with torch.save, which takes no digest of the model's weights."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save((trace.kept, trace.records), Path(folder) / "a.pt")
    return {"resid": trace[-1].resid_post}


def metric(logits: Tensor) -> Tensor:
    """A number of a sentence."""
    return logits[:, -1, 3] - logits[:, -1, 5]


def swept(trace: Any, other: Any) -> Found:
    """Every layer and position, side by side."""
    from minibert.analysis.patching import patch_positions

    return {"values": patch_positions(trace, other, metric, positions=[-1]).values}


def patched(trace: Any, other: Any) -> Found:
    """The same, a pass each."""
    from minibert.trace.edit import replace as value_of

    values = [
        metric(trace.rerun({("resid_post", layer): value_of(other, positions=position)}).logits)
        for layer in range(trace.config.n_layers)
        for position in range(trace.allowed.position)
    ]
    return {"values": torch.stack(values).view(trace.config.n_layers, -1)}


def gpt2_shape(**sizes: int) -> Any:
    """A model of the shape of gpt2, or with some other sizes, with random weights."""
    from minibert import Config
    from minibert.model import Model

    usual: dict[str, Any] = {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_layers": 12,
        "n_heads": 12,
        "d_model": 768,
        "d_mlp": 3072,
    }
    made = {"family": "gpt2", "task": "causal-lm", "causal": True, "activation": "gelu_tanh"}
    model = Model.from_config(Config(**made | usual | sizes))
    model.pack()
    return model


def small_model() -> Any:
    """For --quick and the tests: is everything right, in seconds."""
    return gpt2_shape(vocab_size=97, n_layers=3, n_heads=2, d_model=14, d_mlp=17)


def broken_promises(rows: Sequence[Row]) -> Iterator[str]:
    """What does not hold, a sentence each."""
    for row in rows:
        if not row["ok"]:
            yield f"{row['analysis']} T{row['position']}, {row['implementation']}: {row['reason']}"
    times = {
        row["position"]: row["median_ms"]
        for row in rows
        if row["ok"] and row["implementation"] == OURS and row["analysis"] == "summed_norms"
    }
    if set(LENGTHS) <= times.keys() and times[LENGTHS[1]] > GROWTH * times[LENGTHS[0]]:
        ratio = times[LENGTHS[1]] / times[LENGTHS[0]]
        yield f"summed_norms takes {ratio:.1f} times its time at {LENGTHS[0]}, not {GROWTH:.0f}"


WIDTHS = (22, 12, 10, 17, 9, 8, 10, 9)


def show(row: Row) -> None:
    """Print a row."""
    name = f"{row['analysis']} T{row['position']}"
    if not row["ok"]:
        print(f"{name:<{WIDTHS[0]}}  {row['implementation']}: {row['reason']}", flush=True)
        return
    cells = (
        name,
        row["implementation"],
        f"{row['median_ms']:.2f}",
        f"{row['p20_ms']:.2f} - {row['p80_ms']:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['passes'] or 0:.1f}",
        f"{row['peak_bytes'] / 2**20:.1f}",
        f"{row['max_error']:.1e}",
    )
    print(line(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
