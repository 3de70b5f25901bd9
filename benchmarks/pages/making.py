"""How a page is made, of which attention: minibert's and BertViz', in a process of its own.

The attention is random, seeded, with the peaks that real heads have: each head looks, more or less
sharply, at a neighbour, at itself, at the ends, or anywhere. probs = softmax(query · key /
sqrt(d_head)), so that weights and vectors of a page say the same. It is there before the clock
starts, which runs until the file is written; a page of four tokens was made before, so that imports
are not counted.
"""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.session import REPOSITORY
from minibert.bench.gate import GateError, require
from minibert.bench.result_rows import Row

MINIBERT, BERTVIZ = "minibert", "BertViz"

# What a page of minibert holds: what `trace.view()` puts in without options (query and key, and
# value while the file stays below 8 MB), or weights alone, as BertViz' always do.
DEFAULT = "default"
WEIGHTS = "weights only"

SIZE = (12, 12)
LENGTHS = (16, 64, 128, 256, 512)
# From this length on nobody makes a page of all weights.
LONG = 512
QUICK_SIZE, QUICK_LENGTHS = (2, 3), (8, 16)
VIEWS = ("head", "model")


@dataclass(frozen=True)
class Shape:
    """How much attention there is."""

    layers: int
    heads: int
    tokens: int


@dataclass(frozen=True)
class Case:
    """One row: a view of a program's page at a size."""

    program: str
    view: str
    shape: Shape
    holds: str

    def __str__(self) -> str:
        """What --rows is matched against: minibert head 12x12 T128 default."""
        shape = self.shape
        size = f"{shape.layers}x{shape.heads} T{shape.tokens}"
        return f"{self.program} {self.view} {size} {self.holds}"

    @property
    def file(self) -> tuple[str, str, Shape, str]:
        """Cases of one file are equal in this: minibert's page has all views, BertViz' has one."""
        return (self.program, self.view if self.program == BERTVIZ else "", self.shape, self.holds)


def cases(*, quick: bool = False, wanted: re.Pattern[str] | None = None) -> list[Case]:
    """All rows in the order they are measured: short texts first, what fails there fails early."""
    size, lengths = (QUICK_SIZE, QUICK_LENGTHS) if quick else (SIZE, LENGTHS)
    planned = [
        Case(program, view, Shape(*size, tokens), holds)
        for tokens in lengths
        for program, holds in ((MINIBERT, DEFAULT), (MINIBERT, WEIGHTS), (BERTVIZ, WEIGHTS))
        for view in VIEWS
        if holds == DEFAULT or tokens < LONG
    ]
    return [case for case in planned if wanted is None or wanted.search(str(case))]


WIDTH = 64
SCALE = WIDTH**-0.5
WORDS = ("the", "straw", "##berries", "were", "red", "and", "fresh", "so", "we", "bought", "##s")

Array = npt.NDArray[np.float32]


def token_strings(n: int) -> list[str]:
    """`n` strings of a word-piece vocabulary, special ones at both ends."""
    return ["[CLS]", *(WORDS[i % len(WORDS)] for i in range(n - 2)), "[SEP]"]


def vectors(shape: Shape, layer: int) -> tuple[Array, Array, Array]:
    """query, key and value of a layer, (head, position, d_head)."""
    generator = np.random.default_rng([7, shape.layers, shape.heads, shape.tokens, layer])
    size = (3, shape.heads, shape.tokens, WIDTH)
    query, key, value = generator.standard_normal(size, dtype=np.float32)
    places = generator.standard_normal((shape.tokens + 2, WIDTH), dtype=np.float32)
    end = generator.standard_normal(WIDTH, dtype=np.float32)
    for head in range(shape.heads):
        offset, (sharp, ending) = generator.integers(0, 3), generator.uniform(0, (1.3, 0.9))
        query[head] += sharp * places[1:-1] + ending * end
        key[head] += sharp * places[offset : offset + shape.tokens]
        key[head, [0, -1]] += ending * end
    return query, key, value


def probs(shape: Shape, layer: int) -> Tensor:
    """The weights of a layer, (head, query, key)."""
    query, key, _ = map(torch.from_numpy, vectors(shape, layer))
    return (query @ key.mT * SCALE).softmax(-1)


def attention(shape: Shape) -> list[Tensor]:
    """What transformers would give: (1, head, query, key) of each layer."""
    return [probs(shape, layer)[None] for layer in range(shape.layers)]


class GivenTrace:
    """What minibert.viz.view reads of a trace, all of it computed before."""

    def __init__(self, shape: Shape) -> None:
        from minibert import Tokens

        strings = tuple(token_strings(shape.tokens))
        ids = torch.arange(shape.tokens)[None]
        nothing = tuple((None,) * len(strings) for _ in range(1))
        readable = tuple(string.removeprefix("##") for string in strings)
        special = tuple(string.startswith("[") for string in strings)
        self.tokens = Tokens(
            ids=ids,
            mask=torch.ones_like(ids, dtype=torch.bool),
            segments=torch.zeros_like(ids),
            raw=(strings,),
            strings=(readable,),
            spans=nothing,
            words=nothing,
            special=(special,),
            texts=(),
        )
        self.model_name = "random"
        self.config = SimpleNamespace(
            n_layers=shape.layers,
            n_heads=shape.heads,
            d_head=WIDTH,
            causal=False,
            attention_scale=lambda layer: SCALE,
        )
        self.layers = [self._layer(shape, layer) for layer in range(shape.layers)]

    @staticmethod
    def _layer(shape: Shape, layer: int) -> Any:
        query, key, value = (torch.from_numpy(one)[None] for one in vectors(shape, layer))
        found = probs(shape, layer)[None]
        return SimpleNamespace(query=query, key=key, value=value, probs=found)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Any:
        return self.layers[layer]


# A page that would take more memory than this ends with an error, not the machine.
MEMORY_LIMIT = 16 * 2**30
PACKAGES = {MINIBERT: "minibert", BERTVIZ: "bertviz"}


def made(case: Case, path: Path, seconds: float) -> Row:
    """The file's fields of a row. Raises GateError where there is no file, with the reason."""
    require(PACKAGES[case.program])
    shape = case.shape
    sizes = [str(number) for number in (shape.layers, shape.heads, shape.tokens)]
    command = [sys.executable, "-m", "benchmarks.pages.making", case.program, case.view, case.holds]
    try:
        done = subprocess.run(
            [*command, *sizes, str(path)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise GateError(f"Python was not done after {seconds:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise GateError(f"Python: {last[:200]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: list[str]) -> None:
    program, view, holds, *sizes, path = arguments
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    shape = Shape(*map(int, sizes))
    make = MAKERS[program]
    make(view, holds, Shape(2, 2, 4))(Path(path))
    write = make(view, holds, shape)
    start = time.perf_counter()
    write(Path(path))
    seconds = round(time.perf_counter() - start, 4)
    print(json.dumps({"bytes": Path(path).stat().st_size, "python_s": seconds}))


Write = Callable[[Path], Any]


def minibert_page(view: str, holds: str, shape: Shape) -> Write:
    """What writes minibert's page of attention that is there."""
    import minibert.viz

    if holds == WEIGHTS:
        given, tokens = attention(shape), token_strings(shape.tokens)
        return lambda path: minibert.viz.attention_page(given, tokens).save(path)
    trace = GivenTrace(shape)
    return lambda path: minibert.viz.view(trace).save(path)


def bertviz_page(view: str, holds: str, shape: Shape) -> Write:
    """What writes BertViz' page: the HTML that it returns, as a document."""
    import bertviz

    given, tokens = attention(shape), token_strings(shape.tokens)
    show = {"head": bertviz.head_view, "model": bertviz.model_view}[view]

    def write(path: Path) -> None:
        html = show(given, tokens, html_action="return").data
        with path.open("w", encoding="utf-8") as file:
            file.write('<!doctype html>\n<meta charset="utf-8">\n')
            file.write(html)

    return write


MAKERS = {MINIBERT: minibert_page, BERTVIZ: bertviz_page}


if __name__ == "__main__":
    main(sys.argv[1:])
