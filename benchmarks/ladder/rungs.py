"""The rungs of the ladder, and one run of each to be counted."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ladder.counting import Counts, count_arrays, count_tensors
from benchmarks.session import REPOSITORY
from minibert.bench.user_file import load_function

FOLDER = REPOSITORY / "docs" / "lessons" / "flash"


@dataclass(frozen=True)
class Rung:
    """One file of the lesson: its number, its name, and what it is written in."""

    number: int
    name: str
    written_in: str

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / f"rung{self.number}_{self.name}.py"


RUNGS = (
    Rung(1, "naive", "NumPy"),
    Rung(2, "online", "NumPy"),
    Rung(3, "tiled", "torch"),
    Rung(4, "triton", "Triton"),
    Rung(5, "statistics", "Triton"),
    Rung(6, "backward", "Triton"),
)


@cache
def loaded(rung: Rung) -> Callable[..., Any]:
    """Its function `attention`, as `minibert check` loads it."""
    # Read when triton is imported. A count needs the interpreter, on a machine with a GPU too.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    return of_file(rung.path)


def of_file(path: Path) -> Callable[..., Any]:
    """The function `attention` of a file; all keys are real and seen, unless it is told others."""
    return partial(load_function(path, "attention").function, lengths=None, causal=False)


def drawn(n: int, d_head: int, *names: str) -> dict[str, Tensor]:
    """Random query, key and value of one head, (1, 1, n, d_head), float32; more by `names`."""
    generator = torch.Generator().manual_seed(0)
    named = ("query", "key", "value", *names)
    return {name: torch.randn(1, 1, n, d_head, generator=generator) for name in named}


@cache
def counted(rung: Rung, *, n: int = 1024, d_head: int = 64, causal: bool = False) -> Counts:
    """The counts of one head in float32. Of the last rung those of the backward alone."""
    function = loaded(rung)
    module = sys.modules[function.func.__module__]
    given = drawn(n, d_head)
    if rung.written_in == "NumPy":
        heads = {name: one[0, 0].numpy() for name, one in given.items()}
        allowed = np.ones((n, n), dtype=bool)
        return count_arrays(module.one_head, heads, np.tril(allowed) if causal else allowed)
    if rung.name == "backward":
        return _backward(module, drawn(n, d_head, "z_gradient"), causal=causal)
    call = partial(function.func, *given.values(), None, causal)
    return count_tensors(call, given, kernels=rung.written_in == "Triton")


def _backward(module: ModuleType, given: dict[str, Tensor], *, causal: bool) -> Counts:
    vectors = [given[name] for name in ("query", "key", "value")]
    found = module.forward(*vectors, None, causal)
    kept: Any = SimpleNamespace(
        saved_tensors=(*vectors, None, found["z"], found["lse"]), causal=causal
    )
    dz, d_lse = given["z_gradient"], torch.zeros_like(found["lse"])
    return count_tensors(lambda: module.Attention.backward(kept, dz, d_lse), given, kernels=True)
