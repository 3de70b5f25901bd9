"""What reading a live transformers model costs: a lazy capture beside its plain forward pass.

    python -m benchmarks.attach [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output FILE]

Both are the same model under sdpa and the same inputs, without gradients. A capture keeps query,
key, value and z of every layer and computes nothing from them. The exit status is 0 when every
capture takes at most 1.05 x the plain forward pass.
"""

import argparse
import sys
from collections.abc import Iterator

import minibert
from benchmarks.models import CONTENDERS, REFERENCE, Case, Implementation, Prepared, Shape
from benchmarks.models import workloads as of_models
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, target

CAPTURE = "minibert attached trace"
MOST = 1.05
SIZES = {"bert-base": ((1, 128), (8, 128), (1, 512)), "gpt2": ((1, 128), (8, 128), (1, 1024))}
QUICK = {"bert-tiny": ((1, 16), (1, 128))}


def attached_trace(case: Case) -> Prepared:
    attached = minibert.attach(case.transformers("sdpa"))
    return lambda ids: attached.trace(input_ids=ids), lambda trace: {"logits": trace.output.logits}


ENTERED = [
    *(one for one in CONTENDERS if one.name == REFERENCE),
    Implementation(CAPTURE, "logits; query, key, value, z of each layer", attached_trace),
]


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each shape."""
    sizes = QUICK if chosen.quick else SIZES
    shapes = [Shape(name, *size) for name, each in sizes.items() for size in each]
    return of_models(shapes, ENTERED, wanted, add_target)


def add_target(shape: Shape, rows: Rows) -> None:
    if "ratio" in rows.get(CAPTURE, {}):
        rows[CAPTURE]["targets"] = {REFERENCE: target(rows[CAPTURE]["ratio"], most=MOST)}


BENCHMARK = Benchmark(
    "attach",
    "attach: a lazy capture beside a plain pass.",
    asked,
    quick_rounds=3,
    columns=("median ms", "p20 - p80", "ratio", "its p20 - p80"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
