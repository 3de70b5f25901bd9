"""How a page is made, of which attention: minibert's and BertViz', in a process of its own.

The attention is that of a BERT with random, seeded weights, whose heads are more or less sharp as
real heads are: those of W_Q and W_K are enlarged, from head to head by more. It is there before the
clock starts, which runs until the file is written; a page of four tokens was made before, so that
imports are not counted.
"""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import minibert
import minibert.viz
from benchmarks.session import REPOSITORY
from minibert.bench.result_rows import GateError, Row, require
from minibert.layers.config import Config
from minibert.model import Model
from minibert.text.tokens import Tokens
from minibert.trace.read import Trace

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


# The size of a head, and by how much the scores of the broadest and of the sharpest are enlarged.
D_HEAD, SHARPNESS = 64, (1, 25)


@cache
def trace_of(shape: Shape) -> Trace:
    """A trace of random tokens with everything of attention computed."""
    tokenizer = minibert.load("tiny-bert").tokenizer
    assert tokenizer is not None
    assert tokenizer.cls_id is not None
    assert tokenizer.sep_id is not None
    config = Config(
        family="bert",
        task="none",
        vocab_size=tokenizer.vocab_size,
        n_positions=shape.tokens,
        n_segments=2,
        n_layers=shape.layers,
        n_heads=shape.heads,
        d_model=shape.heads * D_HEAD,
        d_mlp=D_HEAD,
    )
    model = Model.from_config(config, tokenizer=tokenizer)
    enlarged = torch.linspace(*SHARPNESS, shape.heads).repeat_interleave(D_HEAD)[:, None]
    with torch.no_grad():
        for layer in model.body.layers:
            layer.attention.query.weight.mul_(enlarged)
        generator = torch.Generator().manual_seed(7)
        ids = torch.randint(200, config.vocab_size, (1, shape.tokens), generator=generator)
        ids[0, 0], ids[0, -1] = tokenizer.cls_id, tokenizer.sep_id
        trace = model.trace(Tokens.from_ids(ids, tokenizer=tokenizer))
        assert trace.attentions
    return trace


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
    trace = trace_of(shape)
    if holds == WEIGHTS:
        given, tokens = trace.attentions, trace.tokens.raw[0]
        return lambda path: minibert.viz.attention_page(given, tokens).save(path)
    return lambda path: trace.view().save(path)


def bertviz_page(view: str, holds: str, shape: Shape) -> Write:
    """What writes BertViz' page: the HTML that it returns, as a document."""
    import bertviz

    trace = trace_of(shape)
    given, tokens = list(trace.attentions), list(trace.tokens.raw[0])
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
