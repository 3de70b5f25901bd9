"""`minibert check`, and the options that it shares with `minibert bench`.

torch is imported only when a command runs.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from minibert.errors import MinibertError
from minibert.terminal import Terminal, note, say

if TYPE_CHECKING:
    import torch

    from minibert.bench.judged_function import JudgedFunction
    from minibert.kernels.check.workload import Workload

__all__ = [
    "Asked",
    "Backward",
    "CausalOnly",
    "Device",
    "Dtypes",
    "HeadWidth",
    "Quick",
    "SignatureName",
    "Timeout",
    "WorkloadName",
    "check",
    "chosen_dtypes",
    "judged",
    "run_check",
    "unusable",
    "workload_of",
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
Cache = Annotated[
    bool, typer.Option("--cache", help="Also check fewer queries than keys, as with a KV cache.")
]
CompileOnly = Annotated[
    bool,
    typer.Option("--compile", help="Without a GPU: compile its Triton kernels, judge nothing."),
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
    d_head: HeadWidth = None,
    workload: WorkloadName = None,
    signature: SignatureName = None,
    causal_only: CausalOnly = False,
    backward: Backward = False,
    cache: Cache = False,
    compile_only: CompileOnly = False,
    quick: Quick = False,
    timeout: Timeout = 300,
) -> None:
    """Say whether an attention kernel is right and, if not, what is probably wrong with it.

    FILE.py runs with all your permissions: check only files you trust.
    FUNCTION takes (query, key, value, lengths, causal) and returns a dictionary with z and, if you
    like, lse, row_max, max_prob, entropy, argmax, received, offset_mass, scores and probs.
    query, key and value are (batch, head, position, d_head). lengths is the number of real keys of
    each sentence, or None where all are real. The scale is 1/sqrt(d_head). It may also name window,
    prefix, soft_cap, alibi_slopes, sinks, mask, bias, scale, packed and pages, as attend() does.
    Functions written for flash-attn, FlashInfer, FlexAttention, torch's SDPA or transformers are
    called in their own way (--signature). In place of FILE.py, a dotted module name is imported.
    On a CPU, Triton kernels run in Triton's interpreter.

    Exits with 0 when the kernel is right, 1 when it is wrong, 2 for a command that cannot be run.
    """

    if compile_only:
        _compile(target, signature, d_head or 64, timeout)
        return
    asked = Asked(workload_of(workload), d_head, tokens, backward, cache, quick)
    with judged(target, device, timeout, signature, causal_only) as user:
        run_check(user, chosen_dtypes(dtypes, user), asked)


def _compile(target: str, signature: str | None, d_head: int, timeout: float) -> None:
    from minibert.bench.read_file import read_lines
    from minibert.bench.user_file import target_parts

    try:
        source, name = target_parts(target)
        if isinstance(source, str):
            raise MinibertError(f"There is no file {source}; --compile reads FILE.py:FUNCTION.")
        lines, fine = read_lines(
            source,
            name,
            signature,
            d_head=d_head,
            seconds=timeout,
            terminal=Terminal.of(sys.stdout),
        )
    except MinibertError as error:
        unusable(str(error))
    say(*lines)
    if not fine:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Asked:
    """What of a kernel is checked."""

    workload: "Workload | None" = None
    d_head: int | None = None
    tokens: list[int] | None = None
    backward: bool = False
    cache: bool = False
    quick: bool = False


def run_check(user: "JudgedFunction", dtypes: Sequence["torch.dtype"], asked: Asked) -> None:
    """Print the report. Exits with 1 when the kernel is wrong."""
    from minibert.bench.kernel_gate import QUICK_TOKENS, TOKENS, asked_kinds, gate
    from minibert.bench.printed import progress
    from minibert.bench.tables import check_lines

    tokens = asked.tokens or (QUICK_TOKENS if asked.quick else TOKENS)
    d_head = asked.d_head or (None if asked.workload else 64)
    with progress("case") as watch:
        report = gate(
            user,
            device=user.device,
            dtypes=dtypes,
            tokens=tokens,
            d_head=d_head,
            kinds=asked_kinds(
                user.signature,
                user.options,
                causal_only=user.causal_only,
                cache=asked.cache,
                workload=asked.workload,
            ),
            input_scales=(1.0, 30.0) if asked.quick else (1.0, 10.0, 30.0),
            watch=watch,
            backward=asked.backward,
        )
    context = _name(user.device)
    if user.signature.known_by:
        context += f", called as {user.signature.name}"
    if user.triton and user.device.type == "cpu":
        context += ", through Triton's interpreter"
    lines = check_lines(report, Terminal.of(sys.stdout), context=context)
    if asked.workload is not None:
        sizes = ", ".join(map(str, tokens))
        full = asked.workload
        lines.append(
            f"  {full.name} is {full.batch} x {full.heads} heads, {full.tokens} tokens; checked "
            f"with 3 sentences of up to {sizes} tokens and 2 key heads, windows cut likewise"
        )
    say(*lines)
    if not report.ok:
        raise typer.Exit(1)


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


def _name(place: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def unusable(message: str) -> NoReturn:
    """Print why a command cannot be run, and exit with 2."""
    note("error", message)
    raise typer.Exit(2)
