"""How fast text is generated, beside transformers: greedy, each with its cache of keys and values.

    python -m benchmarks.generation [--quick] [--rows REGEX] [--threads 2] [--rounds 5] [--output F]

All in one process, in turns, on random weights in one checkpoint folder, without a network. A
contender whose token ids are not those of transformers' `generate` is a row with the reason and
no speed. The rows go to `benchmarks/results/generation-<processor>-<date>.jsonl`.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, linear_backend
from benchmarks.models import chosen_backends
from benchmarks.session import Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest
from minibert.bench.gate import Outputs, WrongError
from minibert.bench.result_rows import Row
from minibert.bench.tables import line

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


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every contender was right and every target is met."""
    description = "Speed of generation beside transformers."
    chosen = parse(arguments, description, rounds=5, quick_rounds=2)
    with session(chosen.threads) as known:
        rows = collect(chosen, known)
    return 0 if all(row["ok"] and row.get("met", True) for row in rows) else 1


def target(row: Row) -> Row:
    """The target of a row and whether it is met; nothing where it has none."""
    least = TARGETS.get((row["model"], row["batch"]))
    if least is None or row["implementation"] != "minibert" or not row["ok"]:
        return {}
    return {"target": least, "met": row["tokens_per_second_to_reference"] >= least}


def collect(chosen: argparse.Namespace, known: Row) -> list[Row]:
    """All rows, shown as they come; in the file at the end, in `.partial.jsonl` until then."""
    kept = Kept("generation", chosen)
    tasks = [task for task in (QUICK if chosen.quick else TASKS) if wanted(task, chosen.rows)]
    for model, of_model in groupby(tasks, lambda task: task.model):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(model, Path(folder))
            built = contenders(case)
            for task in of_model:
                for row in measure(task, prompts(case, task), built, chosen.rounds):
                    kept.rows.append({**row, **target(row), **known})
                    show(kept.rows[-1])
                kept.save()
    kept.rows.append({**chosen_backends(), **known})
    return kept.finish()


def wanted(task: Task, rows: re.Pattern[str] | None) -> bool:
    return rows is None or bool(rows.search(str(task)))


Generate = Callable[[Prompts, int], list[list[int]]]


def contenders(case: Case) -> dict[str, Generate]:
    """How each writes `new` tokens behind the prompts and gives back the new ids."""
    theirs = case.transformers("sdpa", torch.float32)
    # Cases are made for single passes, where the cache is off.
    theirs.config.use_cache = theirs.generation_config.use_cache = True
    return {
        REFERENCE: partial(by_transformers, theirs),
        "minibert": partial(by_minibert, case.minibert(torch.float32, None), None),
        "minibert (linear=torch)": partial(
            by_minibert, case.minibert(torch.float32, "torch"), "torch"
        ),
    }


def by_transformers(model: Any, given: Prompts, new: int) -> list[list[int]]:
    # Its batches are padded on the left, as its documentation asks for generation.
    ids, mask = (part.flip(1) for part in padded([row[::-1] for row in given]))
    options = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0}
    whole: Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=new, **options)
    return whole[:, ids.shape[1] :].tolist()


def by_minibert(model: Any, linear: str | None, given: Prompts, new: int) -> list[list[int]]:
    from minibert import Tokens

    ids, mask = padded(given)
    with linear_backend(linear):
        found = model.generate(
            Tokens.from_ids(ids, mask=mask.bool()), max_new_tokens=new, temperature=0
        )
    return [list(one.new_ids) for one in found]


def padded(rows: Prompts) -> tuple[Tensor, Tensor]:
    """The ids, filled up on the right, and 1 where they are real."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def prompts(case: Any, task: Task) -> Prompts:
    """Random token ids; low ones are special and left out."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = case.config.vocab_size
    return [
        torch.randint(5, vocabulary, (length,), generator=generator).tolist()
        for length in task.lengths()
    ]


def measure(task: Task, given: Prompts, built: dict[str, Generate], rounds: int) -> Iterator[Row]:
    """The rows of one task: everyone passes the gate, then speed."""
    expected = built[REFERENCE](given, task.new)
    runs = {
        name: Contender(partial(generate, given, task.new), lambda ids: {"ids": ids})
        for name, generate in built.items()
    }
    check = partial(compare, expected=expected)
    rows = contest(runs, check, Clock(), rounds=rounds, baseline=REFERENCE, memory=False)
    for name, row in rows.items():
        speed = tokens_per_second(row, task) if "median_ms" in row else {}
        yield {"what": "generation", **vars(task), "implementation": name, **row, **speed}


def compare(found: Outputs, expected: list[list[int]]) -> Row:
    """Nothing to say of the same ids. Raises WrongError where they differ."""
    for text, (mine, its) in enumerate(zip(found["ids"], expected, strict=True)):
        if mine != its:
            pairs = zip(mine, its, strict=False)
            step = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(its)))
            raise WrongError(f"the ids of text {text} differ from token {step} of the new ones on")
    return {}


def tokens_per_second(row: Row, task: Task) -> Row:
    """Of this contender, and in those of the reference."""
    return {
        "tokens_per_second": round(task.batch * task.new / row["median_ms"] * 1e3, 2),
        "tokens_per_second_to_reference": round(1 / row["ratio"], 3),
    }


WIDTHS = (26, 10, 19, 10, 16, 15)
HEADINGS = ("implementation", "median ms", "p20 - p80", "tokens/s", "to transformers", "p20 - p80")


def show(row: Row) -> None:
    """Print a row; the reference opens the table of its task."""
    if row["implementation"] == REFERENCE:
        task = Task(**{name: row[name] for name in Task.__dataclass_fields__})
        print(f"\n{task}")
        print(line(HEADINGS, WIDTHS))
    if not row["ok"]:
        print(f"{row['implementation']:<{WIDTHS[0]}}  {row['reason']}", flush=True)
        return
    cells = (
        row["implementation"],
        f"{row['median_ms']:.1f}",
        f"{row['p20_ms']:.1f} - {row['p80_ms']:.1f}",
        f"{row['tokens_per_second']:.1f}",
        f"{row['tokens_per_second_to_reference']:.2f}",
        f"{1 / row['ratio_p80']:.2f} - {1 / row['ratio_p20']:.2f}",
    )
    print(line(cells, WIDTHS), flush=True)
    if "target" in row:
        print(f"  at least {row['target']:.2f}: {'met' if row['met'] else 'NOT MET'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
