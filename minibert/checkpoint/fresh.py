"""A task head that no checkpoint gave: which parameters it has, their first values, its labels."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minibert.errors import CheckpointError
from minibert.layers.config import Config

__all__ = ["first_values", "fresh_names", "with_labels"]

_CLASSES = ("sequence-classification", "token-classification")


def fresh_names(wanted: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Our names of the parameters of a fresh head: all of the head, and a pooler no file has."""
    has_pooler = any("pooler." in name for name in stored)
    parts = ("head.",) if has_pooler else ("head.", "body.pooler.")
    return [name for name in wanted if name.startswith(parts)]


def first_values(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Normal numbers of standard deviation 0.02, biases 0, norms 1, as `Model.from_config`."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        values = torch.zeros(shape)
        if not name.endswith("bias"):
            if "norm" in name:
                values.fill_(1.0)
            else:
                values.normal_(0.0, 0.02, generator=generator)
        made[name] = values
    return made


def with_labels(config: Config, labels: Any, head_seed: Any) -> Config:
    """The Config with these labels, None for its own.

    Raises CheckpointError for what are no names, for a task without classes, and for a seed of a
    head that cannot start anew.
    """
    if head_seed is not None:
        _check_seed(config, head_seed)
    if labels is None:
        return config
    names = labels if isinstance(labels, list | tuple) else ()
    named = len(names) > 0 and all(isinstance(name, str) and name for name in names)
    if config.task not in _CLASSES or not named or len(set(names)) < len(names):
        raise CheckpointError(
            f"labels={labels!r:.80} with task {config.task!r}: expected a list of different names, "
            'as task="sequence-classification", labels=["negative", "positive"].'
        )
    return replace(config, labels=tuple(names))


def _check_seed(config: Config, seed: Any) -> None:
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise CheckpointError(f"head_seed={seed!r:.80}: expected a whole number from 0 on.")
    if config.task not in (*_CLASSES, "question-answering"):
        raise CheckpointError(
            f"head_seed={seed}: task {config.task!r} has no head that starts anew; expected "
            f"task={', '.join(_CLASSES)} or question-answering."
        )
