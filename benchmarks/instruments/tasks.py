"""What is measured: tasks, the shapes they run at, what they read, and how fast minibert must be.

A target is minibert's time, or memory, divided by that of the fastest peer with a right result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Shape

# Tokens whose logits the metric of a sweep compares.
RIGHT, WRONG = 7, 11
SENTENCES, SHORTEST, LONGEST = 32, 5, 120
# The lengths of --quick: the second one for what is about length, and within the small models.
QUICK, QUICK_LONG = 13, 60

# Names of the tasks; every contender says which one it answers.
FULL_TRACE = "full trace"
ONE_HEAD = "one head"
ABLATION = "one ablation"
BESIDE_CLEAN = "ablation beside the clean pass"
HEAD_SWEEP = "head sweep"
PATCH_SWEEP = "patch sweep"
GRADIENT = "gradient"
RAGGED = "ragged batch"
MEMORY = "memory of a trace"


@dataclass(frozen=True)
class Task:
    """One question, its target, and at how many positions it is asked."""

    name: str
    target: float
    positions: tuple[int, ...]
    long: bool = False
    """Many seconds: two rounds of one call, and the gate's call is the one that warms."""
    models: tuple[str, ...] = ("bert-base", "gpt2")
    batch: int = 1

    def shapes(self, *, quick: bool) -> list[Shape]:
        """Where it is asked; quick ones are small, one a model."""
        if not quick:
            return [Shape(model, self.batch, T) for model in self.models for T in self.positions]
        length = QUICK if self.positions[0] < LONGEST else QUICK_LONG
        names = [model.replace("-base", "") + "-quick" for model in self.models]
        return [Shape(name, self.batch, length) for name in names]


TASKS = (
    Task(FULL_TRACE, 0.6, (32, 128)),
    Task(ONE_HEAD, 0.6, (32, 128)),
    Task(ABLATION, 0.6, (32, 128)),
    Task(BESIDE_CLEAN, 0.6, (32, 128)),
    Task(GRADIENT, 0.6, (32, 128)),
    Task(RAGGED, 0.6, (LONGEST,), long=True, batch=SENTENCES),
    Task(MEMORY, 0.4, (1024,), models=("gpt2",)),
    Task(HEAD_SWEEP, 0.25, (32,), long=True),
    Task(PATCH_SWEEP, 0.25, (32,), long=True),
)


@dataclass(eq=False)
class Given:
    """What everyone reads at one shape: ids, another input, and the places that are asked about."""

    ids: Tensor
    other: Tensor
    mask: Tensor
    layer: int
    head: int
    position: int

    @cached_property
    def tokens(self) -> Any:
        """The batch as minibert's Tokens, which a tokenizer would have made: off the clock."""
        from minibert import Tokens

        return Tokens.from_ids(self.ids, mask=self.mask)

    @cached_property
    def attention_mask(self) -> Tensor:
        """The mask as transformers takes it: whole numbers."""
        return self.mask.long()


def given(case: Case, task: Task, shape: Shape) -> Given:
    """The input of a task, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    size, vocabulary = (shape.batch, shape.position), case.config.vocab_size
    # Low ids are special (padding) and left out.
    ids, other = (torch.randint(5, vocabulary, size, generator=generator) for _ in range(2))
    mask = torch.ones_like(ids, dtype=torch.bool)
    if task.name == RAGGED:
        lengths = torch.randint(SHORTEST, shape.position + 1, (shape.batch,), generator=generator)
        lengths[0], lengths[-1] = SHORTEST, shape.position
        mask = torch.arange(shape.position) < lengths[:, None]
        ids = ids.where(mask, 0)
    layer, head = case.one_head
    position = 5 if case.config.model_type == "bert" else shape.position - 1
    return Given(ids, other, mask, layer, head, position)


def metric(given: Given) -> Callable[[Tensor], Tensor]:
    """The difference of two logits at one position, of whole logits: a number a sentence."""
    return lambda logits: logits[:, given.position, RIGHT] - logits[:, given.position, WRONG]
