"""What reading a live transformers model costs: a lazy capture beside its plain forward pass.

    python -m benchmarks.attach [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output FILE]

Both are the same model under sdpa and the same inputs, without gradients. A capture keeps query,
key, value and z of every layer and computes nothing from them; its output is the plain one, bit for
bit. The exit status is 0 when every capture takes at most 1.05 x the plain forward pass.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch

import minibert
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, target
from minibert.bench.contest import Contender
from minibert.bench.gate import Outputs, WrongError
from minibert.bench.result_rows import Row

PLAIN, CAPTURE = "transformers sdpa", "minibert attached trace"
MOST = 1.05
SHAPES = {"bert-base": ((1, 128), (8, 128), (1, 512)), "gpt2": ((1, 128), (8, 128), (1, 1024))}
QUICK = {"bert-tiny": ((1, 16), (1, 128))}


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each shape."""
    for name, shapes in (QUICK if chosen.quick else SHAPES).items():
        model = live_model(name)
        for batch, tokens in shapes:
            if wanted(f"{name} {batch} {tokens}"):
                yield workload(model, name, batch, tokens)


def workload(model: Any, name: str, batch: int, tokens: int) -> Workload:
    """The plain pass and the capture at one shape."""
    attached = minibert.attach(model)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(100, 1000, (batch, tokens), generator=generator)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    right = model(**given)[0]

    def check(name: str, found: Outputs, verdicts: Rows) -> Row:
        if not torch.equal(found["output"], right):
            worst = float((found["output"] - right).abs().max())
            raise WrongError(f"the captured pass differs from the plain one, by up to {worst:.3g}")
        return {}

    def finish(rows: Rows) -> None:
        if "ratio" in rows[CAPTURE]:
            rows[CAPTURE]["targets"] = {PLAIN: target(rows[CAPTURE]["ratio"], most=MOST)}

    contenders: dict[str, Contender | Row] = {
        PLAIN: Contender(lambda: model(**given), lambda out: {"output": out[0]}),
        CAPTURE: Contender(lambda: attached.trace(**given), lambda out: {"output": out.output[0]}),
    }
    about = {"model": name, "batch": batch, "tokens": tokens}
    return Workload(
        f"{name} {batch} {tokens}",
        contenders,
        check,
        PLAIN,
        lambda name: about,
        finish,
        memory=False,
    )


def live_model(name: str) -> Any:
    """A model of that shape with random weights, under sdpa."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    if name == "gpt2":
        model: Any = GPT2Model(GPT2Config(attn_implementation="sdpa", use_cache=False))
    elif name == "bert-base":
        model = BertModel(BertConfig(attn_implementation="sdpa"))
    else:
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = BertModel(BertConfig(attn_implementation="sdpa", intermediate_size=512, **sizes))
    return model.eval()


BENCHMARK = Benchmark(
    "attach",
    "attach: a lazy capture beside a plain pass.",
    asked,
    quick_rounds=3,
    columns=("median ms", "p20 - p80", "ratio", "its p20 - p80"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
