"""Is the one spine as fast as it must be: minibert's rows beside transformers, with their targets.

    python -m benchmarks.spine [--quick] [--rows REGEX] [--threads 2] [--rounds 9] [--output FILE]

Of the rows of benchmarks.models this runs those of float32, at one shape more. The exit status is 0
when every target is met.
"""

import argparse
import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks.models import CONTENDERS, QUICK, REFERENCE, SHAPES, Shape, workloads
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, target

PLAIN, LAZY, KEPT, ONE_HEAD = (
    f"minibert {name}" for name in ("plain", "full trace", "trace keep=scores,probs", "one head")
)
LLAMA, LLAMA_QUICK = Shape("llama-1b-4", 1, 512), Shape("llama-quick", 1, 41)
TINY, LONG = Shape("bert-tiny", 1, 16), Shape("gpt2", 1, 1024)
MEASURED = (*SHAPES, LLAMA)
#: Who, at which shapes, and the largest ratio to transformers' plain forward pass.
TARGETS: tuple[tuple[str, Callable[[Shape], bool], float], ...] = (
    (PLAIN, lambda shape: shape not in (TINY, LLAMA), 0.99),
    (PLAIN, lambda shape: shape == LLAMA, 1.00),
    (PLAIN, lambda shape: shape == TINY, 0.80),
    (LAZY, lambda shape: True, 1.00),
    (KEPT, lambda shape: shape == LONG, 1.10),
    (KEPT, lambda shape: shape == TINY, 0.80),
    (ONE_HEAD, lambda shape: shape != LLAMA, 0.36),
)
ENTERED = [one for one in CONTENDERS if one.dtype == torch.float32]


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """The workloads of benchmarks.models, with targets."""
    shapes = (*QUICK, LLAMA_QUICK) if chosen.quick else MEASURED
    return workloads(shapes, ENTERED, wanted, add_targets)


def add_targets(shape: Shape, rows: Rows) -> None:
    """Add to the rows of a shape what they are to reach."""
    for name, applies, most in TARGETS:
        if shape in MEASURED and applies(shape) and "ratio" in rows.get(name, {}):
            rows[name]["targets"] = {REFERENCE: target(rows[name]["ratio"], most=most)}


BENCHMARK = Benchmark("spine", "minibert's speed beside transformers, with its targets.", asked)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
