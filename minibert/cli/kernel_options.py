"""The options that `minibert check` and `minibert bench` share, and the function they name.

torch is imported only when a command runs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.options import unusable
from minibert.errors import MinibertError

if TYPE_CHECKING:
    import torch

    from minibert.bench.judged_function import JudgedFunction
    from minibert.kernels.check.workload import Workload

__all__ = [
    "Backward",
    "CausalOnly",
    "Device",
    "Dtypes",
    "HeadWidth",
    "Quick",
    "SignatureName",
    "Timeout",
    "WorkloadName",
    "chosen_dtypes",
    "judged",
    "workload_of",
]


class NumberType(StrEnum):
    """Number types of query, key and value."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu or cuda. Default: cuda where there is one."),
]
Dtypes = Annotated[
    list[NumberType] | None,
    typer.Option("--dtype", help="Number type; repeatable."),
]
HeadWidth = Annotated[
    int | None,
    typer.Option("--d-head", min=1, max=1024, help="Width of a head. Default: 64."),
]
WorkloadName = Annotated[
    str | None,
    typer.Option("--workload", metavar="NAME", help="One of those that bench --list names."),
]
SignatureName = Annotated[
    str | None,
    typer.Option(
        "--signature",
        metavar="NAME",
        help="How the function is called, as bench --list says. Default: by its parameters.",
    ),
]
CausalOnly = Annotated[
    bool, typer.Option("--causal-only", help="The function is always causal: ask nothing else.")
]
Backward = Annotated[
    bool, typer.Option("--backward", help="Also the gradients of query, key and value.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer cases, for a first answer.")]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Longest time that one call may take.")
]


def workload_of(name: str | None) -> "Workload | None":
    """The workload of this name. Exits with 2 where there is none."""
    if name is None:
        return None
    from minibert.kernels.check.workload import workload_named

    try:
        return workload_named(name)
    except MinibertError as error:
        unusable(f"--workload: {error}")


@contextmanager
def judged(
    target: str,
    device: str | None,
    timeout: float,
    signature: str | None = None,
    causal_only: bool = False,
) -> Iterator["JudgedFunction"]:
    """The function, in a worker that ends when the block does.

    Exits with 2 where the function or the device does not exist.
    """
    # Set before torch is imported, so that its profiler, which measures memory, prints nothing.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from minibert.bench.judged_function import JudgedFunction
    from minibert.bench.signatures import SIGNATURES
    from minibert.bench.worker_process import WorkerEndedError

    place = _device(device)
    if signature is not None and signature not in SIGNATURES:
        unusable(f"--signature {signature} is not known; known are {', '.join(SIGNATURES)}.")
    try:
        user = JudgedFunction(
            target, place, seconds=timeout, signature=signature, causal_only=causal_only
        )
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
