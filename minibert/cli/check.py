"""`minibert check`: is an attention kernel right? torch is imported only when it runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from minibert.cli.json_output import AsJson, say_json
from minibert.cli.kernel_options import (
    Backward,
    CausalOnly,
    Device,
    Dtypes,
    HeadWidth,
    Quick,
    SignatureName,
    Timeout,
    WorkloadName,
    chosen_dtypes,
    judged,
    workload_of,
)
from minibert.cli.options import unusable
from minibert.errors import MinibertError
from minibert.terminal import Terminal, say

if TYPE_CHECKING:
    import torch

    from minibert.bench.judged_function import JudgedFunction
    from minibert.kernels.check.report import ParityReport
    from minibert.kernels.check.workload import Workload

__all__ = ["Asked", "check", "run_check"]

Target = Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function.")]
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
    as_json: AsJson = False,
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
        if as_json:
            unusable("--compile reads the code and judges nothing, so it has no --json.")
        _compile(target, signature, d_head or 64, timeout)
        return
    asked = Asked(workload_of(workload), d_head, tokens, backward, cache, quick)
    with judged(target, device, timeout, signature, causal_only) as user:
        report = run_check(user, chosen_dtypes(dtypes, user), asked, quiet=as_json)
    if as_json:
        say_json(check_document(report, target))
    if not report.ok:
        raise typer.Exit(1)


def check_document(report: "ParityReport", target: str) -> dict[str, object]:
    """The report as plain values: the verdict, the likely causes, and every check."""
    return {
        "target": target,
        "name": report.name,
        "right": report.ok,
        "causes": list(report.causes),
        "checks": [
            {
                "case": one.case,
                "dtype": str(one.dtype).removeprefix("torch."),
                "output": one.output,
                "right": one.ok,
                "error": one.error,
                "allowed": one.tolerance,
                "cause": one.cause or None,
            }
            for one in report.findings
        ],
        "not_covered": list(report.skipped),
    }


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


def run_check(
    user: "JudgedFunction", dtypes: Sequence["torch.dtype"], asked: Asked, *, quiet: bool = False
) -> "ParityReport":
    """What the check found; printed as a table unless it is to be `quiet`."""
    from minibert.bench.kernel_gate import QUICK_TOKENS, TOKENS, asked_kinds, gate
    from minibert.bench.printed import progress

    tokens = asked.tokens or (QUICK_TOKENS if asked.quick else TOKENS)
    with progress("case") as watch:
        report = gate(
            user,
            device=user.device,
            dtypes=dtypes,
            tokens=tokens,
            d_head=asked.d_head or (None if asked.workload else 64),
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
    if not quiet:
        _say_report(report, user, asked, tokens)
    return report


def _say_report(
    report: "ParityReport", user: "JudgedFunction", asked: Asked, tokens: Sequence[int]
) -> None:
    from minibert.bench.tables import check_lines
    from minibert.kernels.check.cases import fewest_keys

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
            f"with 3 sentences of up to {sizes} tokens and 2 key heads, windows cut likewise, and "
            f"with all {full.heads} heads in 2 sentences of {fewest_keys(tokens)} tokens"
        )
    say(*lines)


def _name(place: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
