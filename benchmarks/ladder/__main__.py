"""Times the rungs of docs/lessons/flash, prints its table and draws its pictures.

    python -m benchmarks.ladder [--rounds 7] [--threads 1] [--output FILE]
    python -m benchmarks.ladder --table [RESULTS]
    python -m benchmarks.ladder --pictures

One head of 1,024 queries and keys with d_head 64, float32, not causal; of the last rung the
backward alone. Each rung is compared with float64 before a clock runs; a wrong one is a row with
the reason and no time. Bytes and FLOP are counted while the rung runs (counts.py). Triton rungs run
in Triton's interpreter on a CPU, and their time says nothing of a GPU. torch's own attention, and
its backward, are there for comparison.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.ladder.picture import svg
from benchmarks.ladder.rungs import FOLDER, RUNGS, Rung, counted, drawn, loaded
from benchmarks.runner import Benchmark, Check, Rows, Wanted, Workload
from minibert.bench.contest import Contender
from minibert.bench.gate import Outputs, Truth, WrongError
from minibert.bench.result_rows import Row, read_rows
from minibert.errors import AttentionError
from minibert.kernels import eager
from minibert.kernels.check.gradients import check_gradients
from minibert.kernels.check.problem import Problem, truth
from minibert.kernels.check.tolerances import tolerance_of

N, D = 1024, 64
TORCH, TORCH_BACKWARD = "torch's own", "torch's own backward"
VECTORS = ("query", "key", "value")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every rung is right."""
    parser = argparse.ArgumentParser(description="The rungs of docs/lessons/flash.")
    parser.add_argument("--table", type=Path, nargs="*", metavar="RESULTS", help="print the table")
    parser.add_argument("--pictures", action="store_true", help="draw the lesson's pictures")
    chosen, others = parser.parse_known_args(arguments)
    if chosen.table is not None:
        print(table([row for path in chosen.table for row in read_rows(path)]), end="")
        return 0
    if chosen.pictures:
        for rung in RUNGS:
            picture_path(rung).write_text(picture(rung), encoding="utf-8")
        return 0
    return BENCHMARK.run(others)


def picture_path(rung: Rung) -> Path:
    """Where the picture of a rung lies."""
    return FOLDER / "pictures" / f"rung{rung.number}.svg"


def picture(rung: Rung) -> str:
    """The picture of a rung, as SVG."""
    return svg(counted(rung, n=N, d_head=D, causal=True), f"The tiles of rung {rung.number}")


def asked(chosen: argparse.Namespace, wanted: Wanted) -> Iterable[Workload]:
    """The forward of each rung that has one of its own, and the backward of the last."""
    n = 128 if chosen.quick else N
    return (
        make(n) for name, make in (("forward", forward), ("backward", backward)) if wanted(name)
    )


def forward(n: int) -> Workload:
    """Each rung with a forward of its own, and torch."""
    given = drawn(n, D)
    problem = Problem(*given.values(), scale=D**-0.5)
    exact = truth(problem)
    yardstick = eager.attend(problem.call())
    allowed = tolerance_of("z", problem, yardstick, exact)
    gate = Truth({"z": exact["z"]}, absolute=allowed, complete=True)
    runs = {
        str(rung.number): Contender(partial(loaded(rung), *given.values()), _z)
        for rung in RUNGS[:-1]
    }
    theirs = partial(scaled_dot_product_attention, *given.values())
    runs[TORCH] = Contender(theirs, lambda z: {"z": z})
    return _workload("forward", n, runs, lambda name, found, verdicts: gate.check(found), TORCH)


def _z(found: dict[str, Tensor]) -> Outputs:
    return {"z": found["z"]}


def backward(n: int) -> Workload:
    """The backward of the last rung, and torch's."""
    given = drawn(n, D, "z_gradient")
    z_gradient = given.pop("z_gradient")
    leaves = [one.requires_grad_() for one in given.values()]

    def gradients(z: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(z, leaves, z_gradient, retain_graph=True)

    def check(name: str, found: Outputs, verdicts: Rows) -> Row:
        vectors = (one.detach() for one in leaves)
        try:
            check_gradients(dict(found), Problem(*vectors, D**-0.5, z_gradient=z_gradient))
        except AttentionError as error:
            raise WrongError(str(error)) from error
        return {"compared": len(found)}

    def named(found: Any) -> Outputs:
        return dict(zip(VECTORS, found, strict=True))

    with torch.enable_grad():
        ours = loaded(RUNGS[-1])(*leaves)["z"]
        theirs = scaled_dot_product_attention(*leaves)
    runs = {
        str(RUNGS[-1].number): Contender(partial(gradients, ours), named),
        TORCH_BACKWARD: Contender(partial(gradients, theirs), named),
    }
    return _workload("backward", n, runs, check, TORCH_BACKWARD)


def _workload(
    name: str, n: int, runs: Mapping[str, Contender], check: Check, baseline: str
) -> Workload:
    return Workload(name, runs, check, baseline, partial(_about, n), memory=False)


def _about(n: int, name: str) -> Row:
    """The fields of a row: of a rung, what was counted."""
    head = {"rung": name, "position": n, "d_head": D, "dtype": "float32"}
    rung = next((one for one in RUNGS if str(one.number) == name), None)
    if rung is None:
        return head
    counts = counted(rung, n=n, d_head=D)
    head |= {"file": rung.path.name, "written_in": rung.written_in}
    head |= {"read_bytes": dict(counts.read), "written_bytes": dict(counts.written)}
    return {**head, "flop": counts.flop, "exponentials": counts.exponentials}


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def table(rows: Sequence[Row]) -> str:
    """The table of the lesson: MB that are moved and arithmetic, counted now; the times of rows."""
    times = {row["rung"]: _time(row["median_ms"]) if row["ok"] else "wrong" for row in rows}
    lines = [
        "| rung | query, key, value | scores, mask | z, other rows | all MB | MFLOP | exp | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rung in RUNGS:
        counts = counted(rung, n=N, d_head=D)
        moved = counts.read + counts.written
        parts = [moved["scores"], moved["rows"]]
        parts = [moved.total() - sum(parts), *parts, moved.total(), counts.flop]
        cells = " | ".join(f"{one / 1e6:.1f}" for one in parts)
        time = times.get(str(rung.number), "not measured")
        interpreted = " (interpreter)" if rung.written_in == "Triton" and times else ""
        lines.append(
            f"| [{rung.number}]({rung.path.name}) | {cells} | "
            f"{counts.exponentials / 1e6:.2f} M | {time}{interpreted} |"
        )
    for name in (TORCH, TORCH_BACKWARD):
        if name in times:
            lines.append(f"| {name} | | | | | | | {times[name]} |")
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "ladder",
    "The rungs of docs/lessons/flash.",
    asked,
    rounds=7,
    quick_rounds=1,
    columns=("median ms", "p20 - p80", "ratio"),
    packages=("triton",),
    peer="triton",
)

if __name__ == "__main__":
    sys.exit(main())
