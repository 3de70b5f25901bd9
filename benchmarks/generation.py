"""How fast text is generated, beside transformers: greedy, each with its cache of keys and values.

    python -m benchmarks.generation [--quick] [--rows REGEX] [--threads 2] [--rounds 5] [--output F]

All in one process, in turns, on random weights in one checkpoint folder, without a network. A
contender whose token ids are not those of transformers' `generate` is a row with the reason and
no speed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import Case
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, at_once
from minibert.bench.result_rows import Outputs, Row, WrongError

REFERENCE = "transformers generate"


@dataclass(frozen=True)
class Task:
    """A batch of prompts and how many tokens are written after each."""

    model: str
    batch: int
    prompt: int
    new: int

    def __str__(self) -> str:
        return f"{self.model} B{self.batch} prompt {self.prompt} new {self.new}"


TASKS = [Task(model, batch, 32, 64) for model in ("gpt2", "llama-1b-4") for batch in (1, 8)]
TASKS += [Task(model, 1, 32, 256) for model in ("gpt2", "llama-1b-4")]
QUICK = [Task(model, batch, 19, 5) for model in ("gpt2-quick", "llama-quick") for batch in (1, 3)]

#: From prompts, (prompt, position), and how many tokens to write, the new ids of each prompt.
Generate = Callable[[Tensor, int], list[list[int]]]


def contenders(case: Case) -> dict[str, Generate]:
    """How each writes `new` tokens after the prompts and gives back the new ids."""
    theirs = case.transformers("sdpa")
    # Cases are made for single passes, where the cache is off.
    theirs.config.use_cache = theirs.generation_config.use_cache = True
    return {
        REFERENCE: partial(by_transformers, theirs),
        "transformers generate, measured": partial(by_measured, theirs),
        "minibert": partial(by_minibert, case.minibert()),
    }


def by_transformers(model: Any, ids: Tensor, new: int) -> list[list[int]]:
    options = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    whole: Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=new, **options)
    return whole[:, ids.shape[1] :].tolist()


def by_measured(model: Any, ids: Tensor, new: int) -> list[list[int]]:
    """With entropy, received, two offsets and the eight largest keys of every head and token."""
    import minibert

    want = ("entropy", "received", ("offset_mass", (-1, 1)), ("top_keys", 8))
    with minibert.measuring(model, want=want):
        return by_transformers(model, ids, new)


def by_minibert(model: Any, ids: Tensor, new: int) -> list[list[int]]:
    from minibert import Tokens

    written = model.generate(Tokens.from_ids(ids), max_new_tokens=new, temperature=0)
    return [list(one.new_ids) for one in written]


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each task."""
    tasks = [task for task in (QUICK if chosen.quick else TASKS) if wanted(str(task))]
    for model, of_model in groupby(tasks, lambda task: task.model):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(model, Path(folder))
            built = contenders(case)
            for task in of_model:
                yield workload(task, case.ids(task.batch, task.prompt), built)


def workload(task: Task, given: Tensor, built: dict[str, Generate]) -> Workload:
    """Everyone at one task."""
    expected = built[REFERENCE](given, task.new)
    runs = {name: partial(generate, given, task.new) for name, generate in built.items()}
    return Workload(
        str(task),
        at_once(runs, lambda ids: {"ids": ids}),
        lambda name, found, verdicts: compare(found, expected),
        REFERENCE,
        lambda name: vars(task),
        partial(add_speeds, task),
        memory=False,
    )


def compare(found: Outputs, expected: list[list[int]]) -> Row:
    """Nothing to say of the same ids. Raises WrongError where they differ."""
    for text, (mine, its) in enumerate(zip(found["ids"], expected, strict=True)):
        if mine != its:
            pairs = zip(mine, its, strict=False)
            step = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(its)))
            raise WrongError(f"the ids of text {text} differ from token {step} of the new ones on")
    return {}


def add_speeds(task: Task, rows: Rows) -> None:
    """Add tokens a second, and how many times those of transformers they are."""
    for row in rows.values():
        if "median_ms" in row:
            row["tokens_per_second"] = round(task.batch * task.new / row["median_ms"] * 1e3, 2)
            row["tokens_per_second_to_reference"] = round(1 / row["ratio"], 3)


BENCHMARK = Benchmark(
    "generation",
    "Speed of generation beside transformers.",
    asked,
    rounds=5,
    columns=("median ms", "p20 - p80", "tokens/s", "ratio"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
