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

from benchmarks.models import Case, chosen_backends
from benchmarks.runner import Benchmark, Rows, Wanted, Workload, at_once, target
from minibert.bench.gate import Outputs, WrongError
from minibert.bench.result_rows import Row

REFERENCE = "transformers generate"


@dataclass(frozen=True)
class Task:
    """A batch of prompts and how many tokens are written behind each.

    A padded batch has prompts of all lengths from half to the whole of `prompt`.
    """

    model: str
    batch: int
    prompt: int
    new: int
    padded: bool = False

    def __str__(self) -> str:
        padded = " padded" if self.padded else ""
        return f"{self.model} B{self.batch} prompt {self.prompt}{padded} new {self.new}"

    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        if not self.padded:
            return [self.prompt] * self.batch
        half = self.prompt // 2
        return [self.prompt - i * half // max(self.batch - 1, 1) for i in range(self.batch)]


TASKS = (
    *(
        Task("gpt2", batch, prompt, new)
        for batch in (1, 8)
        for prompt in (1, 32, 512)
        for new in (64, 128)
    ),
    Task("gpt2", 8, 32, 64, padded=True),
    Task("gpt2", 8, 512, 64, padded=True),
    *(Task("llama-1b-4", batch, 32, 64) for batch in (1, 8)),
)
QUICK = (
    Task("gpt2-quick", 1, 1, 7),
    Task("gpt2-quick", 2, 19, 5),
    Task("gpt2-quick", 3, 19, 5, padded=True),
    Task("llama-quick", 3, 19, 5, padded=True),
)
#: Tokens a second in those of transformers, at least: (model, batch) -> target of `minibert`.
TARGETS = {("llama-1b-4", 1): 1.05, ("llama-1b-4", 8): 1.3}

# A task's prompts, a row of ids each.
Prompts = list[list[int]]
Generate = Callable[[Prompts, int], list[list[int]]]


def contenders(case: Case) -> dict[str, Generate]:
    """How each writes `new` tokens behind the prompts and gives back the new ids."""
    theirs = case.transformers("sdpa")
    # Cases are made for single passes, where the cache is off.
    theirs.config.use_cache = theirs.generation_config.use_cache = True
    return {
        REFERENCE: partial(by_transformers, theirs),
        "minibert": partial(by_minibert, case.minibert()),
    }


def by_transformers(model: Any, given: Prompts, new: int) -> list[list[int]]:
    # Its batches are padded on the left, as its documentation asks for generation.
    ids, mask = (part.flip(1) for part in padded([row[::-1] for row in given]))
    options = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0}
    whole: Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=new, **options)
    return whole[:, ids.shape[1] :].tolist()


def by_minibert(model: Any, given: Prompts, new: int) -> list[list[int]]:
    from minibert import Tokens

    ids, mask = padded(given)
    tokens = Tokens.from_ids(ids, mask=mask.bool())
    return [list(one.new_ids) for one in model.generate(tokens, max_new_tokens=new, temperature=0)]


def padded(rows: Prompts) -> tuple[Tensor, Tensor]:
    """The ids, filled up on the right, and 1 where they are real."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def prompts(case: Case, task: Task) -> Prompts:
    """Random token ids; low ones are special and left out."""
    return [
        ids[:length].tolist()
        for ids, length in zip(case.ids(task.batch, task.prompt), task.lengths(), strict=True)
    ]


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Workload]:
    """A workload for each task."""
    tasks = [task for task in (QUICK if chosen.quick else TASKS) if wanted(str(task))]
    for model, of_model in groupby(tasks, lambda task: task.model):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(model, Path(folder))
            built = contenders(case)
            for task in of_model:
                yield workload(task, prompts(case, task), built)


def workload(task: Task, given: Prompts, built: dict[str, Generate]) -> Workload:
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
    """Add tokens a second, and what minibert's are to be in those of transformers."""
    for name, row in rows.items():
        if "median_ms" not in row:
            continue
        row["tokens_per_second"] = round(task.batch * task.new / row["median_ms"] * 1e3, 2)
        row["tokens_per_second_to_reference"] = round(1 / row["ratio"], 3)
        if name == "minibert" and (least := TARGETS.get((task.model, task.batch))):
            speed = target(row["tokens_per_second_to_reference"], least=least)
            row["targets"] = {f"times the tokens a second of {REFERENCE}": speed}


BENCHMARK = Benchmark(
    "generation",
    "Speed of generation beside transformers.",
    asked,
    rounds=5,
    columns=("median ms", "p20 - p80", "tokens/s", "ratio"),
    last=chosen_backends,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.run())
