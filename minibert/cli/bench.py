"""`minibert bench`. torch is imported only when the command runs."""

import hashlib
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibert.cli.check import Asked, run_check
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
from minibert.cli.output_files import check_file, check_picture
from minibert.errors import MinibertError
from minibert.terminal import Terminal, note, say

if TYPE_CHECKING:
    import torch

    from minibert.bench.judged_function import JudgedFunction
    from minibert.bench.workload import Workload

__all__ = ["bench"]


class Lengths(StrEnum):
    """How long the sentences of a timed batch are."""

    full = "full"
    varied = "varied"


Target = Annotated[str | None, typer.Argument(metavar="FILE.py:FUNCTION", help="The function.")]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Time this one too; repeatable: flash, cudnn, efficient, flex, math, eager, sdpa, and "
        "every name that attend() knows. Default: the usual ones for the device.",
    ),
]
Tokens = Annotated[
    list[int] | None, typer.Option(min=1, help="Length of the sentences; repeatable.")
]
Causal = Annotated[
    bool | None,
    typer.Option("--causal/--full", help="Only one of the two. Default: both."),
]
LengthsName = Annotated[
    Lengths, typer.Option(help="varied: from all tokens down to a quarter of them, padded.")
]
Heads = Annotated[
    int | None, typer.Option(min=1, help="Heads. Default: 2048 / d-head on CUDA, 4 on a CPU.")
]
Batch = Annotated[
    int | None, typer.Option(min=1, help="Sentences. Default: 16384 tokens in all on CUDA, else 1.")
]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="Turns of each implementation. Default: 5, with --quick 2."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Also write the rows, as JSON lines."),
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the times: .svg, .pdf or .png.")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="BEFORE AFTER", help="Compare two files of rows; nothing is run."),
]
ListAll = Annotated[
    bool,
    typer.Option(
        "--list", help="What each implementation takes, the workloads and signatures; runs nothing."
    ),
]


def bench(
    target: Target = None,
    baselines: Baselines = None,
    device: Device = None,
    dtypes: Dtypes = None,
    tokens: Tokens = None,
    causal: Causal = None,
    lengths: LengthsName = Lengths.full,
    d_head: HeadWidth = None,
    heads: Heads = None,
    batch: Batch = None,
    workload: WorkloadName = None,
    signature: SignatureName = None,
    causal_only: CausalOnly = False,
    backward: Backward = False,
    rounds: Rounds = None,
    output: Output = None,
    plot: Plot = None,
    compare: Compare = None,
    list_all: ListAll = False,
    quick: Quick = False,
    timeout: Timeout = 300,
) -> None:
    """Check an attention kernel, then time it beside other implementations.

    First the kernel is checked as by `minibert check`; only a right one is timed. Then it prints
    the median, p20 and p80 of single calls, with a cold and a warm cache, and the speed as a share
    of the most that this machine can do, which is measured too. FILE.py runs with all your
    permissions: bench only files you trust. On a CPU, Triton kernels are checked through the
    interpreter and not timed.

    Exits with 0 when the kernel is right (with --compare: not slower than before, beyond the
    noise), 1 when it is not, 2 for a command that cannot be run.
    """
    if compare is not None or list_all:
        _list() if compare is None else _compare(compare)
        return
    if target is None:
        unusable("no function is given; expected FILE.py:FUNCTION, or --compare BEFORE AFTER.")
    _check_files(output, plot)
    asked = Asked(workload_of(workload), d_head, backward=backward, quick=quick)
    if asked.workload and (causal is not None or d_head or lengths is not Lengths.full):
        unusable("--workload says --causal, --lengths and --d-head itself; leave them out.")
    orders = [True] if causal_only else [False, True] if causal is None else [causal]
    sizes = _Sizes(tokens, heads, batch, quick)
    timing = _Timing(sizes, orders, lengths.value, baselines, rounds or (2 if quick else 5), output)
    with judged(target, device, timeout, signature, causal_only) as user:
        rows = _check_and_time(user, chosen_dtypes(dtypes, user, timed=True), asked, timing)
    _finish(rows, plot)


@dataclass(frozen=True)
class _Sizes:
    """How large the timed batches are; None: the usual for the device."""

    tokens: list[int] | None
    heads: int | None
    batch: int | None
    quick: bool


@dataclass(frozen=True)
class _Timing:
    """What is timed, beside what, and how often."""

    sizes: _Sizes
    orders: list[bool]
    lengths: str
    baselines: list[str] | None
    rounds: int
    output: Path | None


def _check_and_time(
    user: "JudgedFunction", dtypes: Sequence["torch.dtype"], asked: Asked, timing: _Timing
) -> list[dict[str, Any]]:
    """The result rows; none of a Triton kernel on a CPU. Exits with 1 where it is wrong."""
    _check_baselines(timing.baselines)
    if not run_check(user, dtypes, asked).ok:
        raise typer.Exit(1)
    if user.triton and user.device.type == "cpu":
        say("", "Not timed: a CPU only interprets this Triton kernel. Times need a GPU.")
        return []
    return _time(user, _shapes(user, dtypes, asked, timing), timing)


def _list() -> None:
    from minibert.bench.lists import list_lines

    say(*list_lines(Terminal.of(sys.stdout)))


def _shapes(
    user: "JudgedFunction", dtypes: Sequence["torch.dtype"], asked: Asked, timing: _Timing
) -> list["Workload"]:
    """What is timed: the named workload, or every combination of the options."""
    from minibert.bench.workload import workloads

    kinds = [str(one).removeprefix("torch.") for one in dtypes]
    if asked.workload is not None:
        return _of_workload(user, asked.workload, timing.sizes, kinds, asked.backward)
    return workloads(
        user.device,
        **vars(timing.sizes),
        dtypes=kinds,
        orders=timing.orders,
        d_head=asked.d_head or 64,
        lengths=timing.lengths,
        backward=asked.backward,
    )


def _of_workload(
    user: "JudgedFunction", named: "Workload", sizes: _Sizes, dtypes: list[str], backward: bool
) -> list["Workload"]:
    """The workload at its full size on a GPU; on a CPU cut, and what was cut is printed."""
    from minibert.bench.workload import cut_for
    from minibert.kernels.check.backward import refused

    work = user.signature.fitted(named) or named
    if backward and (why := refused(work)):
        unusable(f"--backward: {why}")
    cut = cut_for(work, user.device, **vars(sizes))
    small = cut[0]
    if (small.batch, small.heads, small.tokens) != (work.batch, work.heads, work.tokens):
        say(
            "",
            f"{named.name} is {work.batch} x {work.heads} heads, {work.tokens} tokens; here "
            f"{small.batch} x {small.heads} heads, {', '.join(str(one.tokens) for one in cut)} "
            "tokens",
        )
    return [replace(one, dtype=dtype, backward=backward) for dtype in dtypes for one in cut]


def _finish(rows: list[dict[str, Any]], plot: Path | None) -> None:
    """Draw the times. Exits with 1, and draws nothing, where the kernel could not be timed."""
    if any(not row["ok"] for row in rows if row["role"] == "kernel"):
        raise typer.Exit(1)
    if plot is not None and rows:
        from minibert.viz.plots.bench import bench_times

        bench_times(rows, plot)
        say("", str(plot))


def _time(user: "JudgedFunction", work: list["Workload"], timing: _Timing) -> list[dict[str, Any]]:
    """The result rows of all workloads; each is printed and written when it is ready."""
    import torch

    from minibert.bench.baselines import usual_baselines
    from minibert.bench.measure import measure
    from minibert.bench.printed import Printed, progress
    from minibert.bench.result_rows import busy, facts, write_rows
    from minibert.bench.tables import time_lines
    from minibert.bench.worker_process import WorkerProcess

    place = user.device
    common = facts(threads=torch.get_num_threads(), device=place)
    if isinstance(user.source, Path):
        common["file_sha256"] = hashlib.sha256(user.source.read_bytes()).hexdigest()
    if place.type == "cpu" and (warning := busy(common)):
        note("warning", warning)
    rows: list[dict[str, Any]] = []
    printed = Printed("a baseline")
    with closing(WorkerProcess("a baseline", str(place), user.worker.seconds, printed)) as others:
        for one in work:
            with progress("step") as watch:
                found = measure(
                    user,
                    others,
                    one,
                    baselines=timing.baselines or usual_baselines(place),
                    rounds=timing.rounds,
                    common=common,
                    watch=watch,
                )
            rows += found
            say(*time_lines(found, Terminal.of(sys.stdout)))
            if timing.output is not None:
                write_rows(rows, timing.output)
    return rows


def _compare(files: tuple[Path, Path]) -> None:
    from minibert.bench.compare import comparison_lines

    try:
        lines, slower = comparison_lines(files, Terminal.of(sys.stdout))
    except MinibertError as error:
        unusable(str(error))
    say(*lines)
    if slower:
        raise typer.Exit(1)


def _check_files(output: Path | None, plot: Path | None) -> None:
    for option, path, name in (("--output", output, "rows.jsonl"), ("--plot", plot, "times.svg")):
        if path is not None and str(path) == "-":
            unusable(
                f"{option} -: standard output is used for the table; expected a file name, for "
                f"instance {option} {name}."
            )
    if output is not None:
        check_file(output)
    if plot is not None:
        check_picture(plot)


def _check_baselines(names: list[str] | None) -> None:
    from minibert.bench.baselines import baseline_names

    known = baseline_names()
    if unknown := [name for name in names or [] if name not in known]:
        unusable(f"--baseline {unknown[0]} is not known; known are {', '.join(known)}.")
