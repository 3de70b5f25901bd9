"""What `minibert.measuring` costs a pass and a generation, and what it takes in memory.

    python -m benchmarks.measuring [--quick] [--rows REGEX] [--threads 2] [--rounds 4] [--output F]

It takes some 15 minutes of two cores.

In one process, in turns, on random weights, without a network. A pass with all statistics is beside
the pass of transformers with sdpa, and beside eager's matrices with NumPy, where they fit into
memory; only the last logits are computed, as before a generation. `generate` is beside itself
measured. Memory is that of a process of its own along a generation, beside one that measures
nothing.
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import generation
from benchmarks.generation import Task
from benchmarks.models import REFERENCE, TOLERANCE, Case, Shape
from benchmarks.runner import Benchmark, Rows, Truth, Wanted, Workload
from minibert.bench.contest import Contender
from minibert.bench.result_rows import Outputs, Row

MEASURED, MATRICES = "minibert measured", "eager's matrices and NumPy"
RANKS = 8
WANT: tuple[object, ...] = (
    "entropy", "max_prob", "row_max", "argmax", "received", ("key_mass", (0,)),
    ("offset_mass", (-1, 1)), ("top_keys", RANKS), ("top_probs", RANKS),
)  # fmt: skip
#: Of matrices, which are held together.
MOST_BYTES = 4 << 30
LENGTHS = (512, 2048, 8192)
PASSES = [Shape(model, 1, length) for model in ("gpt2-long", "llama-1b-4") for length in LENGTHS]
TASKS = [Task(model, 1, 32, 256) for model in ("gpt2-long", "llama-1b-4")]
QUICK = [Shape("gpt2-quick", 1, 41), Task("llama-quick", 1, 19, 5)]
MEMORY = Task("gpt2-long-3", 1, 32, 4096)


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each pass and generation, and one for memory."""
    works: list[Any] = QUICK if chosen.quick else [*PASSES, *TASKS]
    works = sorted((work for work in works if wanted(str(work))), key=lambda work: work.model)
    for model, of_model in groupby(works, lambda work: work.model):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(model, Path(folder))
            for work in of_model:
                yield of_pass(work, case) if isinstance(work, Shape) else of_generation(work, case)
    memory = Task("gpt2-quick", 1, 4, 16) if chosen.quick else MEMORY
    if wanted(f"memory {memory}"):
        yield of_memory(memory)


def of_pass(shape: Shape, case: Case) -> Workload:
    """A pass that measures beside one that does not, and beside matrices."""
    import minibert

    ids, config = case.ids(shape.batch, shape.position), case.config
    size = 4 * config.num_hidden_layers * config.num_attention_heads * shape.position**2
    attached = minibert.attach(case.transformers("sdpa"))
    runs = {REFERENCE: partial(plain, case, ids), MEASURED: partial(measured, case, attached, ids)}
    if size <= MOST_BYTES:
        # First, because it has all that is compared.
        runs = {MATRICES: partial(by_matrices, case, ids), **runs}
    contenders: dict[str, Contender | Row] = {
        name: Contender(run, lambda found: found) for name, run in runs.items()
    }
    if size > MOST_BYTES:
        contenders[MATRICES] = {"ok": False, "reason": f"its matrices are {size >> 30} GiB"}
    first: Outputs = {}

    def check(name: str, found: Outputs, verdicts: Rows) -> Row:
        nonlocal first
        first = first or found
        return Truth(first, absolute=TOLERANCE).check(
            {one: value for one, value in found.items() if one in first}
        )

    return Workload(
        f"pass {shape}",
        contenders,
        check,
        REFERENCE,
        lambda name: vars(shape),
        rounds={8192: 1, 2048: 2}.get(shape.position),
        calls=1,
        memory=False,
    )


def plain(case: Case, ids: Tensor) -> Outputs:
    return {"logits": case.transformers("sdpa")(ids, logits_to_keep=1).logits}


def measured(case: Case, attached: Any, ids: Tensor) -> Outputs:
    import minibert

    with minibert.measuring(attached, want=WANT) as seen:
        found = plain(case, ids)
    for layer in range(case.config.num_hidden_layers):
        found |= {f"entropy {layer}": seen[layer].entropy, f"top {layer}": seen[layer].top_probs}
    return found


def by_matrices(case: Case, ids: Tensor) -> Outputs:
    out = case.transformers("eager")(ids, logits_to_keep=1, output_attentions=True)
    found: dict[str, Tensor] = {"logits": out.logits}
    for layer, probs in enumerate(out.attentions):
        numbers = by_numpy(probs.numpy())
        found[f"entropy {layer}"] = torch.from_numpy(numbers["entropy"])
        found[f"top {layer}"] = torch.from_numpy(numbers["top_probs"])
    return found


def by_numpy(probs: Any) -> dict[str, Any]:
    """The statistics of (batch, head, query, key) weights; they tell nothing of row_max."""
    logarithms = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
    best = np.argpartition(probs, -RANKS, -1)[..., -RANKS:]
    weights = np.take_along_axis(probs, best, -1)
    order = np.argsort(-weights, -1)
    return {
        "entropy": -(probs * logarithms).sum(-1),
        "max_prob": probs.max(-1),
        "argmax": probs.argmax(-1),
        "received": probs.sum(2),
        "key_mass": probs[..., 0],
        "offset_mass": [probs.diagonal(offset, 2, 3) for offset in (-1, 1)],
        "top_keys": np.take_along_axis(best, order, -1),
        "top_probs": np.take_along_axis(weights, order, -1),
    }


def of_generation(task: Task, case: Case) -> Workload:
    """`generate` beside itself measured."""
    built = generation.contenders(case)
    built.pop("minibert")
    found = generation.workload(task, case.ids(task.batch, task.prompt), built)
    return replace(found, calls=1, rounds=None if task.model.startswith("gpt2") else 2)


def of_memory(task: Task) -> Workload:
    """Resident bytes at a quarter and at the end of a generation, each in a process of its own."""
    ways = ("plain", MEASURED, f"{MEASURED}, in a folder")
    return Workload(
        f"memory {task}",
        {name: Contender(partial(apart, name, task), lambda found: found) for name in ways},
        lambda name, found, verdicts: dict(found),
        about=lambda name: vars(task),
        rounds=0,
    )


def apart(name: str, task: Task) -> Row:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: Row = pool.apply(resident, (name, task))
        return found


def resident(name: str, task: Task) -> Row:
    """Bytes of a new token: of memory, and of files that are mapped into it."""
    import minibert

    at: dict[int, dict[str, int]] = {}

    def note(ids: Tensor, scores: Tensor, **more: object) -> Tensor:
        written = ids.shape[1] - task.prompt
        if written in (task.new // 4, task.new - 1):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            pairs = [line.split() for line in lines if line.startswith(("RssAnon", "RssFile"))]
            at[written] = {name: int(size) << 10 for name, size, _ in pairs}
        return torch.zeros(len(ids), dtype=torch.bool)

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        case = Case(task.model, Path(folder))
        model = case.transformers("sdpa")
        model.generation_config.use_cache = model.config.use_cache = True
        write: Callable[[], object] = partial(
            model.generate, case.ids(task.batch, task.prompt), max_new_tokens=task.new,
            do_sample=False, eos_token_id=None, pad_token_id=0, stopping_criteria=[note],
        )  # fmt: skip
        if name == "plain":
            write()
        else:
            where = folder if name.endswith("folder") else None
            with minibert.measuring(model, want=WANT, folder=where):
                write()
    (start, first), (end, last) = sorted(at.items())
    grown = {kind: (last[kind] - first[kind]) // (end - start) for kind in first}
    return {"bytes_of_memory_a_token": grown["RssAnon:"], "bytes_of_files": grown["RssFile:"],
            "resident_bytes": sum(last.values())}  # fmt: skip


BENCHMARK = Benchmark(
    "cost-of-measuring",
    "What measuring costs a pass, a generation, and in memory.",
    asked,
    rounds=4,
    columns=("median ms", "p20 - p80", "tokens/s", "ratio", "its p20 - p80", "bytes a token"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
