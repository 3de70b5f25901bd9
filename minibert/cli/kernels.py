"""`minibert check` and `minibert bench`: is an attention kernel right, and how fast is it?

torch is imported only when a command runs.
"""

import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from minibert.cli.options import check_file, refusing, say_json, spread, unusable
from minibert.errors import MinibertError, did_you_mean
from minibert.terminal import Terminal, note, say

if TYPE_CHECKING:
    import torch

    from minibert.bench.judge import JudgedFunction
    from minibert.kernels.check.parity import Finding, ParityReport
    from minibert.kernels.check.workload import Workload

    Rows = list[dict[str, object]]


class NumberType(StrEnum):
    """Number types of query, key and value."""

    # An enumeration, because typer takes no list of literals.
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


@dataclass(frozen=True)
class Asked:
    """How a kernel is called and what of it is checked, by both commands.

    Options:
        device [NAME]: cpu or cuda. Default: cuda where there is one.
        dtypes [--dtype]: Number type, for example --dtype float16 --dtype float32.
        d_head [--d-head, >=1, <=1024]: Width of a head. Default: 64.
        workload [--workload, NAME|FILE]: A named workload, such as llama3-8b-prefill, or a file
            of shapes (.jsonl, .json, .yml); docs/kernels.md describes both.
        signature [--signature, NAME]: How the function is called; docs/kernels.md has the names.
            Default: by its parameters.
        layout [--layout, AXES]: The axes of query, key and value, in order, and those of z after a
            comma: bhnd, bnhd, nbhd, (bh)nd, nd; "bhnd,bn(hd)". Default: that of the signature, or
            found by trying.
        causal_only [--causal-only]: The function is always causal: check only that.
        backward [--backward]: Also the gradients of query, key and value.
        quick [--quick]: Fewer cases, for a first answer.
        timeout [SECONDS, >=0.1]: Longest time that one call may take.
    """

    device: str | None = None
    dtypes: list[NumberType] | None = None
    d_head: int | None = None
    workload: str | None = None
    signature: str | None = None
    layout: str = ""
    causal_only: bool = False
    backward: bool = False
    quick: bool = False
    timeout: float = 300

    @property
    def shapes(self) -> Path | None:
        """The file of shapes; None where the workload has a name."""
        path = Path(self.workload or "")
        return path if path.suffix in (".jsonl", ".json", ".yml", ".yaml") else None

    def works(self, causal: bool | None = None) -> list["Workload"]:
        """What is asked by name or file, none where neither is. Exits with 2 for an unknown one."""
        if self.workload is None:
            return []
        from minibert.bench.workload_file import workloads_of
        from minibert.kernels.check.workload import WORKLOADS, named

        with refusing("--workload: "):
            if self.shapes:
                return workloads_of(
                    self.shapes,
                    causal=True if self.causal_only else causal,
                    dtypes=[str(one) for one in self.dtypes or ()],
                )
            return [named("workload", self.workload, WORKLOADS)]

    def chosen_dtypes(
        self, user: "JudgedFunction", timed: bool = False, work: "Workload | None" = None
    ) -> list["torch.dtype"]:
        """The types asked for. Default: the usual two; for timing the one most used in practice.

        A workload of a file says its own.
        """
        import torch

        asked: Sequence[str] = [work.dtype] if work and self.shapes else self.dtypes or ()
        if user.interpreted and "bfloat16" in asked:
            unusable(
                "bfloat16: Triton's interpreter multiplies it wrongly without an error; "
                "use float16 or float32, or a GPU."
            )
        if user.interpreted and not asked:
            user.untried["bfloat16"] = "is multiplied wrongly there"
        usual = ["float32", "float16" if user.interpreted else "bfloat16"]
        if timed and not user.interpreted:
            usual = ["bfloat16" if user.device.type == "cuda" else "float32"]
        return [getattr(torch, str(one)) for one in asked or usual]

    @contextmanager
    def judged(self, target: str) -> Iterator["JudgedFunction"]:
        """The function, in a worker that ends when the block does.

        Exits with 2 where the function or the device does not exist.
        """
        # Set before torch is imported, so that its profiler, which measures memory, prints nothing.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        from minibert.bench.judge import JudgedFunction
        from minibert.bench.signatures import SIGNATURES
        from minibert.bench.worker_process import WorkerEndedError

        place, known = _device(self.device), ", ".join(SIGNATURES)
        if self.signature is not None and self.signature not in SIGNATURES:
            unusable(
                f"--signature {self.signature} is not known"
                f"{did_you_mean(self.signature, SIGNATURES)}; known are {known}."
            )
        try:
            user = JudgedFunction(
                target,
                place,
                seconds=self.timeout,
                signature=self.signature,
                layout=self.layout,
                causal_only=self.causal_only,
            )
        except WorkerEndedError:
            raise
        except MinibertError as error:
            unusable(str(error))
        try:
            if user.interpreted:
                _check_interpreter()
            yield user
        finally:
            user.close()
            user.printed.say_the_rest()


@spread()
def check(
    target: str,
    asked: Asked,
    tokens: list[int] | None = None,
    cache: bool = False,
    as_json: bool = False,
) -> None:
    """Say whether an attention kernel is right and, if not, what is probably wrong with it.

    FILE.py runs with all your permissions: check only files you trust.
    FUNCTION takes (query, key, value, lengths, causal) and returns a dictionary with z and, if you
    like, lse, row_max, max_prob, entropy, argmax, received, offset_mass, scores and probs.
    query, key and value are (batch, head, position, d_head). lengths is the number of real keys of
    each sentence, or None where all are real. The scale is 1/sqrt(d_head). It may also name window,
    prefix, soft_cap, alibi_slopes, sinks, mask, bias, scale, packed and pages, as attend() does.
    Functions written for flash-attn, FlexAttention, torch's SDPA or transformers are called in
    their own way (--signature). Instead of FILE.py you can give a dotted module name.
    Of a FOLDER, as a clone of a repository, the functions that look like attention are listed, and
    nothing is run.
    On a CPU, Triton kernels run in Triton's interpreter.

    Exits with 0 when the kernel is right, 1 when it is wrong, 2 for a command that cannot be run.

    Options:
        target [argument, FILE.py:FUNCTION|FOLDER]: The function.
        tokens [--tokens, >=1, <=4096]: Number of keys, for example --tokens 64 --tokens 256.
        cache [--cache]: Also check fewer queries than keys, as with a KV cache.
    """
    if Path(target).is_dir():
        return _list(Path(target), as_json)
    # A workload that does not exist is known at once.
    works = asked.works()
    with asked.judged(target) as user:
        reports = [
            _checked(user, asked, work, tokens=tokens, cache=cache, quiet=as_json)
            for work in _kinds(works)
        ]
    if as_json:
        documents = [_document(report, user, target) for report in reports]
        say_json({"workloads": documents} if asked.shapes else documents[0])
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _list(folder: Path, as_json: bool) -> None:
    """Print the commands for the functions of a folder. Exits with 2 where there is none."""
    from minibert.bench.attention_functions import functions_in

    with refusing():
        found = functions_in(folder)
    if as_json:
        return say_json({"functions": [asdict(one) for one in found]})
    table = [(one.signature, f"minibert check {shlex.quote(one.target)}") for one in found]
    say(*Terminal.of(sys.stdout).table(("called as", "command"), table, "<<"))


def _document(report: "ParityReport", user: "JudgedFunction", target: str) -> dict[str, object]:
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
        "how": user.said,
        "not_covered": [
            *report.skipped,
            *report.not_taken,
            *user.uncovered,
            *(f"{name}: it {why}" for name, why in user.untried.items()),
        ],
    }


def _checked(
    user: "JudgedFunction",
    asked: Asked,
    work: "Workload | None",
    *,
    timed: bool = False,
    tokens: Sequence[int] | None = None,
    cache: bool = False,
    quiet: bool = False,
) -> "ParityReport":
    """What the check found; printed as a table unless `quiet`."""
    from minibert.bench.judge import QUICK_TOKENS, TOKENS, gate
    from minibert.bench.worker_process import progress

    tokens = tokens or (QUICK_TOKENS if asked.quick else TOKENS)
    with progress("case") as watch:
        report = gate(
            user,
            dtypes=asked.chosen_dtypes(user, timed, work),
            tokens=tokens,
            d_head=asked.d_head or (None if work else 64),
            workload=work,
            cache=cache,
            input_scales=(1.0, 30.0) if asked.quick else (1.0, 10.0, 30.0),
            watch=watch,
            backward=asked.backward,
        )
    if not quiet:
        _say_report(report, user, work, tokens)
    return report


def _say_report(
    report: "ParityReport", user: "JudgedFunction", work: "Workload | None", tokens: Sequence[int]
) -> None:
    import torch

    from minibert.kernels.check.parity import short
    from minibert.kernels.check.workload import fewest_keys

    on_gpu = user.device.type == "cuda"
    context = [torch.cuda.get_device_name(user.device) if on_gpu else "cpu"]
    if user.triton and not on_gpu:
        context.append("through Triton's interpreter")
    context.append(" and ".join(dict.fromkeys(short(one.dtype) for one in report.findings)))
    context += [f"without {name}: it {why}" for name, why in user.untried.items()]
    if user.signature.known_by:
        context.append(f"called as {user.signature.name}")
    context += user.said
    lines = _check_lines(report, Terminal.of(sys.stdout), context=", ".join(context))
    lines += [f"  not covered: {one}" for one in user.uncovered]
    if work is not None:
        sizes = ", ".join(map(str, tokens))
        lines.append(
            f"  {work.name} is {work.batch} x {work.heads} heads, {work.tokens} tokens; checked "
            f"with 3 sentences of up to {sizes} tokens and 2 key heads, windows cut likewise, and "
            f"with all {work.heads} heads in 2 sentences of {fewest_keys(tokens)} tokens"
        )
    say(*lines)


#: Of the checks that failed, so many are printed.
_FAILED = 5


def _check_lines(report: "ParityReport", terminal: Terminal, *, context: str) -> list[str]:
    """The verdict, the causes, and for each output and dtype how near it is to its limit."""
    n, bad = len(report.findings), report.failures
    verdict = "right" if report.ok else "WRONG"
    painted = terminal.paint(verdict, "positive" if report.ok else "negative")
    count = f"{n} checks" if report.ok else f"{len(bad)} of {n} checks failed"
    lines = [f"{report.name}  {painted}  {count}  {context}"]
    lines += [f"  likely cause: {cause}" for cause in report.causes[:3]]
    lines += ["", *_outputs(report, terminal)]
    if bad:
        header = ("failed", "case", "error", "allowed")
        rows = [
            (f"{one.output} {_short(one.dtype)}", one.case, *_numbers(one)) for one in bad[:_FAILED]
        ]
        lines += ["", *terminal.table(header, rows, "<<>>")]
        if len(bad) > _FAILED:
            lines.append(f"  and {len(bad) - _FAILED} more")
    missing = dict.fromkeys(one.split(" in ")[0] for one in report.skipped)
    if missing:
        lines += [
            "",
            f"  not covered, as the function takes no such argument: {', '.join(missing)}",
        ]
    lines += [f"  {line}" for line in report.not_taken]
    kinds = {one.case.split(",")[0] for one in report.findings}
    if "causal" in kinds and "causal cache" not in kinds:
        lines.append("  not covered: fewer queries than keys, as with a cache (--cache)")
    return lines


def _outputs(report: "ParityReport", terminal: Terminal) -> list[str]:
    nearest: dict[tuple[str, str], Finding] = {}
    for one in report.findings:
        if one.tolerance > 0:
            other = nearest.setdefault((_short(one.dtype), one.output), one)
            if _share(one) > _share(other):
                nearest[_short(one.dtype), one.output] = one
    header = ("output", "", "error", "allowed", "part", "where")
    rows = [
        (one.output, _short(one.dtype), *_numbers(one), _part(_share(one)), one.case)
        for one in nearest.values()
    ]
    return terminal.table(header, rows, "<<>>><") if rows else []


def _time_lines(rows: Sequence[dict[str, object]], terminal: Terminal) -> list[str]:
    """A block for each shape and state of the cache: implementations below one another."""
    lines: list[str] = []
    for place in dict.fromkeys(map(_place, rows)):
        here = [row for row in rows if _place(row) == place]
        lines += ["", place]
        header = ("", "median ms", "p20 to p80", "TFLOP/s", "of the ceiling", "beside yours", "")
        table = [_time_row(row) for row in here]
        lines += terminal.table(header, table, "<>>>>><")
    return lines


def _place(row: dict[str, object]) -> str:
    order = "causal" if row["causal"] else "full"
    lengths = "" if row["lengths"] == "full" else f", {row['lengths']} lengths"
    lengths += f", {row['about']}" if row.get("about") else ""
    return (
        f"{row['batch']} x {row['heads']} heads, {row['tokens']} tokens, d_head {row['d_head']}, "
        f"{row['dtype']}, {order}{lengths}, {row['cache']} cache"
    )


def _time_row(row: dict[str, object]) -> tuple[str, ...]:
    name = str(row["implementation"]) + (" (yours)" if row["role"] == "kernel" else "")
    if not row["ok"]:
        return (name, "-", "", "", "", "", str(row["reason"]))
    percent = f"{row['percent']:.0f} % ({row['bound']})" if row.get("percent") else ""
    return (
        name,
        f"{row['median_ms']:.4g}",
        f"{row['p20_ms']:.4g} to {row['p80_ms']:.4g}",
        f"{row['tflops']:.4g}",
        percent,
        _beside(row),
        str(row.get("note", "")),
    )


def _beside(row: dict[str, object]) -> str:
    if row.get("ratio") is None:
        return ""
    if row["role"] == "kernel":
        return f"± {100 * float(str(row['noise'])):.1f} % noise"
    ratio = float(str(row["ratio"]))
    return f"{ratio:.2f} x slower" if ratio >= 1 else f"{1 / ratio:.2f} x faster"


def _numbers(one: "Finding") -> tuple[str, str]:
    return f"{one.error:.1e}", f"{one.tolerance:.1e}"


def _share(one: "Finding") -> float:
    return one.error / one.tolerance if one.error == one.error else math.inf


def _part(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 1e4 else "over"


def _short(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Timed:
    """What is timed, beside what, and how often.

    Options:
        baselines [--baseline, NAME]: Time this one too; repeatable: flash, cudnn, efficient, flex,
            math, eager, sdpa, and every name that attend() knows. Default: the usual ones for the
            device.
        tokens [>=1]: Length of sentences, for example --tokens 512 --tokens 2048.
        causal [--causal/--full]: Only one of the two. Default: both.
        lengths: varied: from all tokens down to a quarter of them, padded.
        heads [>=1]: Heads. Default: 2048 / d-head on CUDA, 4 on a CPU.
        batch [>=1]: Sentences. Default: 16384 tokens in all on CUDA, else 1.
        rounds [>=1]: Turns of each implementation. Default: 5, with --quick 2.
        output [-o, FILE]: Also write the rows, as JSON lines.
    """

    baselines: list[str] | None = None
    tokens: list[int] | None = None
    causal: bool | None = None
    lengths: Literal["full", "varied"] = "full"
    heads: int | None = None
    batch: int | None = None
    rounds: int | None = None
    output: Path | None = None


@spread()
def bench(targets: list[str], *, asked: Asked, timed: Timed) -> None:
    """Check attention kernels, then time them and other implementations.

    First each kernel is checked as by `minibert check`; only a right one is timed. Then it prints
    the median, p20 and p80 of single calls, with a cold and a warm cache, and the speed as a share
    of the most that this machine can do, which is measured too. Several kernels take turns; the
    others are compared with the first. Each FILE.py runs with all your permissions: bench only
    files you trust. On a CPU, Triton kernels are checked through the interpreter and not timed.

    Exits with 0 when the kernels are right, 1 when one is not or could not be timed, 2 for a
    command that cannot be run.

    Options:
        targets [argument, FILE.py:FUNCTION...]: The functions.
    """
    if timed.output is not None:
        _check_output(timed.output)
    if asked.workload and (asked.d_head or timed.lengths != "full"):
        unusable("--workload says --lengths and --d-head itself; leave them out.")
    if asked.shapes and (timed.tokens or timed.heads or timed.batch):
        unusable(f"{asked.shapes} says --tokens, --heads and --batch itself; leave them out.")
    if asked.workload and not asked.shapes and timed.causal is not None:
        unusable("--workload says --causal itself; leave it out.")
    if twice := [one for one in targets if targets.count(one) > 1]:
        unusable(f"{twice[0]} is named twice; name each function once.")
    works = asked.works(timed.causal)
    _check_baselines(timed.baselines)
    with ExitStack() as workers:
        users = [workers.enter_context(asked.judged(target)) for target in targets]
        labels = [user.label for user in users]
        for user, target in zip(users, targets, strict=True):
            user.label = target if labels.count(user.label) > 1 else user.label
        right = [user for user in users if _is_right(user, asked, works)]
        clocked = [user for user in right if not user.interpreted]
        for user in right:
            if user.interpreted:
                why = "a CPU only interprets this Triton kernel. Times need a GPU."
                say("", f"{user.label} is not timed: {why}")
        rows: Rows = []
        if clocked:
            shapes = _shapes(clocked[0], works, asked, timed)
            rows = _time(clocked, shapes, timed, 2 if asked.quick else 5)
    if len(right) < len(users) or any(not row["ok"] for row in rows if row["role"] != "baseline"):
        raise typer.Exit(1)


def _is_right(user: "JudgedFunction", asked: Asked, works: list["Workload"]) -> bool:
    try:
        return all(_checked(user, asked, work, timed=True).ok for work in _kinds(works))
    except MinibertError as error:
        # The others are timed without it.
        note("error", str(error))
        return False


def _kinds(works: list["Workload"]) -> list["Workload | None"]:
    """One of the workloads that differ in size alone; [None] for none."""
    from minibert.bench.workload_file import kinds_among

    return [*kinds_among(works)] or [None]


def _shapes(
    user: "JudgedFunction", works: list["Workload"], asked: Asked, timed: Timed
) -> list["Workload"]:
    """What is timed: the workloads, or every combination of the options.

    A named workload has its full size on a GPU; on a CPU it is cut, and what was cut is printed.
    """
    from minibert.kernels.check.gradients import refused
    from minibert.kernels.check.workload import Size, Workload

    size = Size(timed.tokens, timed.heads, timed.batch, asked.quick)
    kinds = [str(one).removeprefix("torch.") for one in asked.chosen_dtypes(user, timed=True)]
    if not works:
        both = [False, True] if timed.causal is None else [timed.causal]
        width, lengths, back = asked.d_head or 64, timed.lengths, asked.backward
        every = [
            Workload(1, 1, 1, width, kind, order, lengths, backward=back)
            for kind in kinds
            for order in ([True] if user.causal_only else both)
        ]
        return [one for work in every for one in size.usual(user.device, work)]
    fitted = [user.signature.fitted(work) or work for work in works]
    if asked.backward and (why := next(filter(None, map(refused, fitted)), None)):
        unusable(f"--backward: {why}")
    if asked.shapes:
        return [replace(work, backward=asked.backward) for work in fitted]
    [work] = fitted
    cut = size.cut(user.device, work)
    small = cut[0]
    if (small.batch, small.heads, small.tokens) != (work.batch, work.heads, work.tokens):
        say(
            "",
            f"{asked.workload} is {work.batch} x {work.heads} heads, {work.tokens} tokens; here "
            f"{small.batch} x {small.heads} heads, {', '.join(str(one.tokens) for one in cut)} "
            "tokens",
        )
    return [replace(one, dtype=kind, backward=asked.backward) for kind in kinds for one in cut]


def _time(
    users: Sequence["JudgedFunction"], work: list["Workload"], timed: Timed, usual: int
) -> "Rows":
    """The result rows of all workloads; each is printed and written when it is ready."""
    import torch

    from minibert.bench.baselines import usual_baselines
    from minibert.bench.measure import measure
    from minibert.bench.result_rows import busy, facts, write_rows
    from minibert.bench.worker_process import Printed, WorkerProcess, progress

    place, seconds = users[0].device, users[0].worker.seconds
    common = facts(threads=torch.get_num_threads(), device=place)
    digests = {user.label: user.digest for user in users if user.digest}
    if digests:
        common["file_sha256"] = digests
    if place.type == "cpu" and (warning := busy(common)):
        note("warning", warning)
    rows: Rows = []
    printed = Printed("a baseline")
    with closing(WorkerProcess("a baseline", str(place), seconds, printed)) as others:
        for one in work:
            with progress("step") as watch:
                found = measure(
                    users,
                    others,
                    one,
                    baselines=timed.baselines or usual_baselines(place),
                    rounds=timed.rounds or usual,
                    common=common,
                    watch=watch,
                )
            rows += found
            say(*_time_lines(found, Terminal.of(sys.stdout)))
            if timed.output is not None:
                write_rows(rows, timed.output)
    return rows


def _check_output(path: Path) -> None:
    if str(path) == "-":
        unusable(
            "--output -: standard output is used for the table; expected a file name, for "
            "instance --output rows.jsonl."
        )
    check_file(path)


def _check_baselines(names: list[str] | None) -> None:
    from minibert.bench.baselines import baseline_names

    known = baseline_names()
    if unknown := [name for name in names or [] if name not in known]:
        unusable(
            f"--baseline {unknown[0]} is not known"
            f"{did_you_mean(unknown[0], known)}; known are {', '.join(known)}."
        )


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


def _check_interpreter() -> None:
    import numpy as np

    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
        unusable(
            f"Triton's interpreter needs numpy below 2.4, and this is {np.__version__}; "
            "install numpy<2.4, or check on a GPU with --device cuda."
        )
