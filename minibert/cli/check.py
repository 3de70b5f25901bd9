"""`minibert check`, and the options that it shares with `minibert bench`.

torch is imported only when a command runs.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from minibert.errors import MinibertError
from minibert.terminal import Terminal, note, say

if TYPE_CHECKING:
    import torch

    from minibert.bench.judged_function import JudgedFunction

__all__ = [
    "Device",
    "Dtypes",
    "HeadWidth",
    "Quick",
    "Timeout",
    "check",
    "chosen_dtypes",
    "judged",
    "run_check",
    "unusable",
]


class NumberType(StrEnum):
    """Number types of query, key and value."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


Target = Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function.")]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu or cuda. Default: cuda where there is one."),
]
Dtypes = Annotated[
    list[NumberType] | None,
    typer.Option("--dtype", help="Number type; repeatable."),
]
HeadWidth = Annotated[int, typer.Option("--d-head", min=1, max=1024, help="Width of a head.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer cases, for a first answer.")]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Longest time that one call may take.")
]
Cache = Annotated[
    bool, typer.Option("--cache", help="Also check fewer queries than keys, as with a KV cache.")
]
KeyNumbers = Annotated[
    list[int] | None,
    typer.Option("--tokens", min=1, max=4096, help="Number of keys; repeatable."),
]


def check(
    target: Target,
    device: Device = None,
    dtypes: Dtypes = None,
    tokens: KeyNumbers = None,
    d_head: HeadWidth = 64,
    cache: Cache = False,
    quick: Quick = False,
    timeout: Timeout = 300,
) -> None:
    """Say whether an attention kernel is right and, if not, what is probably wrong with it.

    FILE.py runs with all your permissions: check only files you trust.
    FUNCTION takes (query, key, value, lengths, causal) and returns a dictionary with z and, if you
    like, lse, row_max, max_prob, entropy, argmax, received, offset_mass, scores and probs.
    query, key and value are (batch, head, position, d_head). lengths is the number of real keys of
    each sentence, or None where all are real. The scale is 1/sqrt(d_head). On a CPU, Triton kernels
    run in Triton's interpreter.

    Exits with 0 when the kernel is right, 1 when it is wrong, 2 for a command that cannot be run.
    """

    with judged(target, device, timeout) as user:
        run_check(user, chosen_dtypes(dtypes, user), tokens, d_head, cache, quick)


def run_check(
    user: "JudgedFunction",
    dtypes: Sequence["torch.dtype"],
    tokens: list[int] | None,
    d_head: int,
    cache: bool,
    quick: bool,
) -> None:
    """Print the report. Exits with 1 when the kernel is wrong."""
    from minibert.bench.kernel_gate import KINDS, QUICK_TOKENS, TOKENS, gate
    from minibert.bench.printed import progress
    from minibert.bench.tables import check_lines

    with progress("case") as watch:
        report = gate(
            user,
            device=user.device,
            dtypes=dtypes,
            tokens=tokens or (QUICK_TOKENS if quick else TOKENS),
            d_head=d_head,
            kinds=(*KINDS, *(("causal cache",) if cache else ())),
            input_scales=(1.0, 30.0) if quick else (1.0, 10.0, 30.0),
            watch=watch,
        )
    context = _name(user.device)
    if user.triton and user.device.type == "cpu":
        context += ", through Triton's interpreter"
    say(*check_lines(report, Terminal.of(sys.stdout), context=context))
    if not report.ok:
        raise typer.Exit(1)


@contextmanager
def judged(target: str, device: str | None, timeout: float) -> Iterator["JudgedFunction"]:
    """The function, in a worker that ends when the block does.

    Exits with 2 where the function or the device does not exist.
    """
    # Set before torch is imported, so that its profiler, which measures memory, prints nothing.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from minibert.bench.judged_function import JudgedFunction
    from minibert.bench.worker_process import WorkerEndedError

    place = _device(device)
    try:
        user = JudgedFunction(target, place, seconds=timeout)
    except WorkerEndedError:
        raise
    except MinibertError as error:
        unusable(str(error))
    try:
        if user.triton and place.type == "cpu":
            _check_interpreter()
        yield user
    finally:
        user.close()
        user.printed.say_the_rest()


def _device(name: str | None) -> "torch.device":
    """The device of this name. Exits with 2 where there is none."""
    import torch

    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        unusable(f'--device "{name}" is not known; expected cpu or cuda.')
    if place.type not in ("cpu", "cuda"):
        unusable(f'--device "{name}" is not measured here; expected cpu or cuda.')
    if place.type == "cuda" and not torch.cuda.is_available():
        unusable("--device cuda: there is no CUDA device here; use --device cpu.")
    return place


def chosen_dtypes(
    named: list[NumberType] | None, user: "JudgedFunction", timed: bool = False
) -> list["torch.dtype"]:
    """The types asked for. Default: the usual two, or for timing the one used most in practice."""
    import torch

    interpreted = user.triton and user.device.type == "cpu"
    if named and interpreted and NumberType.bfloat16 in named:
        unusable(
            "--dtype bfloat16: Triton's interpreter multiplies it wrongly without an error; use "
            "float16 or float32, or a GPU."
        )
    usual = [NumberType.float32, NumberType.float16 if interpreted else NumberType.bfloat16]
    if timed and not interpreted:
        usual = [NumberType.bfloat16 if user.device.type == "cuda" else NumberType.float32]
    return [getattr(torch, one.value) for one in named or usual]


def _check_interpreter() -> None:
    import numpy as np

    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
        unusable(
            f"Triton's interpreter needs numpy below 2.4, and this is {np.__version__}; "
            "install numpy<2.4, or check on a GPU with --device cuda."
        )


def _name(place: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def unusable(message: str) -> NoReturn:
    """Print why a command cannot be run, and exit with 2."""
    note("error", message)
    raise typer.Exit(2)
