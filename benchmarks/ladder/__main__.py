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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.ladder.picture import svg
from benchmarks.ladder.rungs import FOLDER, RUNGS, Rung, counted, drawn, loaded
from benchmarks.session import Kept, parse, session
from minibert.bench.clock import Clock
from minibert.bench.contest import Contender, contest
from minibert.bench.gate import Outputs, Truth, WrongError
from minibert.bench.result_rows import Row, read_rows
from minibert.errors import AttentionError
from minibert.kernels import eager
from minibert.kernels.check.cases import Problem, truth
from minibert.kernels.check.gradient_check import check_gradients
from minibert.kernels.check.tolerances import tolerance_of

N, D = 1024, 64
TORCH, TORCH_BACKWARD = "torch's own", "torch's own backward"
VECTORS = ("query", "key", "value")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every rung is right."""
    parser = argparse.ArgumentParser(description="The rungs of docs/lessons/flash.")
    parser.add_argument("--table", type=Path, nargs="*", metavar="RESULTS", help="print the table")
    parser.add_argument("--pictures", action="store_true", help="draw the lesson's pictures")
    chosen = parse(arguments, "", rounds=7, quick_rounds=1, parser=parser)
    if chosen.table is not None:
        print(table([row for path in chosen.table for row in read_rows(path)]), end="")
        return 0
    if chosen.pictures:
        for rung in RUNGS:
            picture_path(rung).write_text(picture(rung), encoding="utf-8")
        return 0
    kept = Kept("ladder", chosen)
    n = 128 if chosen.quick else N
    with session(chosen.threads, ("triton",), peer="triton") as known:
        for row in (*forward_rows(n, chosen.rounds), *backward_rows(n, chosen.rounds)):
            kept.rows.append({**row, **known})
            print(said(kept.rows[-1]), flush=True)
            kept.save()
    return 0 if all(row["ok"] for row in kept.finish()) else 1


def picture_path(rung: Rung) -> Path:
    """Where the picture of a rung lies."""
    return FOLDER / "pictures" / f"rung{rung.number}.svg"


def picture(rung: Rung) -> str:
    """The picture of a rung, as SVG."""
    return svg(counted(rung, n=N, d_head=D, causal=True), f"The tiles of rung {rung.number}")


def forward_rows(n: int, rounds: int) -> list[Row]:
    """A row for each rung with a forward of its own, and one for torch."""
    given = drawn(n, D)
    problem = Problem(*given.values(), scale=D**-0.5)
    exact = truth(problem)
    yardstick = eager.attend(*given.values(), **problem.options())
    allowed = tolerance_of("z", problem, yardstick, exact)
    check = Truth({"z": exact["z"]}, absolute=allowed, complete=True).check
    runs = {
        str(rung.number): Contender(partial(loaded(rung), *given.values()), _z)
        for rung in RUNGS[:-1]
    }
    runs[TORCH] = Contender(
        partial(scaled_dot_product_attention, *given.values()), lambda z: {"z": z}
    )
    found = contest(runs, check, Clock(), rounds=rounds, baseline=TORCH, memory=False)
    return [_row(name, n, row) for name, row in found.items()]


def _z(found: dict[str, Tensor]) -> Outputs:
    return {"z": found["z"]}


def backward_rows(n: int, rounds: int) -> list[Row]:
    """A row for the backward of the last rung, and one for torch's."""
    given = drawn(n, D, "z_gradient")
    z_gradient = given.pop("z_gradient")
    leaves = [one.requires_grad_() for one in given.values()]

    def gradients(z: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(z, leaves, z_gradient, retain_graph=True)

    def check(found: Outputs) -> Row:
        vectors = (one.detach() for one in leaves)
        try:
            check_gradients(dict(found), z_gradient, *vectors, scale=D**-0.5)
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
    found = contest(runs, check, Clock(), rounds=rounds, baseline=TORCH_BACKWARD, memory=False)
    return [_row(name, n, row) for name, row in found.items()]


def _row(name: str, n: int, row: Row) -> Row:
    head = {"what": "ladder", "rung": name, "position": n, "d_head": D, "dtype": "float32"}
    rung = next((one for one in RUNGS if str(one.number) == name), None)
    if rung is None:
        return {**head, **row}
    counts = counted(rung, n=n, d_head=D)
    head |= {"file": rung.path.name, "written_in": rung.written_in}
    head |= {"read_bytes": dict(counts.read), "written_bytes": dict(counts.written)}
    return {**head, "flop": counts.flop, "exponentials": counts.exponentials, **row}


def said(row: Row) -> str:
    """A row in one line."""
    result = f"{row['median_ms']:9.2f} ms" if row["ok"] else row["reason"]
    return f"{row['rung']:22} {row.get('written_in', ''):7} {result}"


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


if __name__ == "__main__":
    sys.exit(main())
